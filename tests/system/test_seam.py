"""The seam is short: how many functions, files and objects lie between a call and its answer.

The way is what passes a call, or its token, from hand to hand; the chain is all that is called.
Bounds, of the way and the objects what there is, of the chain a little above it. A failure prints
both, to be looked at: what is new, and whether it has to be there.
"""

from __future__ import annotations

import ast
import asyncio
import sys
from collections.abc import Callable, Collection
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import pytest
from batcher_helpers import until

import pybatcher
from pybatcher import Batcher
from pybatcher.calls.reply import Reply
from pybatcher.scheduling import Generated
from pybatcher.scheduling.queue import WaitingQueue
from pybatcher.serving.coordinator import Coordinator
from pybatcher.serving.mailbox import Mailbox, StepEnded
from pybatcher.testing import FakeClock, fake_batcher

PACKAGE = Path(pybatcher.__file__).parent
PROMPT = "Once upon a time"


class Chain:
    """What is called of pybatcher, and which of its objects are made, on this thread.

    Once each, in the order of the first time. Comprehensions, and the fakes of
    `pybatcher.testing`, are not counted.

    way: of the functions, those of `hands` and their callers, up to the user's call or to the
        coordinator's loop, which takes what was handed over out of the mailbox.
    ends: the chain is complete with the first call of this.
    begins: the chain begins anew with every call of which this is true; None: with the first.
    """

    def __init__(
        self,
        hands: Collection[CodeType],
        ends: CodeType,
        begins: Callable[[FrameType], bool] | None = None,
    ) -> None:
        self.functions: dict[str, None] = {}
        self.way: dict[str, None] = {}
        self.objects: list[object] = []
        self.has_ended = False
        self._begins = begins
        self._has_begun = begins is None
        self._hands = hands
        self._ends = ends

    @property
    def counts(self) -> tuple[int, int, int, int, int]:
        """Functions and files of the way; functions, files and objects of the chain."""
        return (
            len(self.way),
            len(files(self.way)),
            len(self.functions),
            len(files(self.functions)),
            len(self.objects),
        )

    def __enter__(self) -> Chain:
        sys.setprofile(self._note)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)

    def _note(self, frame: FrameType, event: str, _: Any) -> None:
        if event != "call" or self.has_ended:
            return
        if self._begins is not None and self._begins(frame):
            self._has_begun = True
            self.functions.clear()
            self.way.clear()
            self.objects.clear()
        if not self._has_begun:
            return
        code = frame.f_code
        if code in self._hands:
            self._note_way(frame)
        if (name := own_name(code)) is not None:
            self.functions.setdefault(name)
            self.has_ended = code is self._ends
        if code.co_varnames and (code.co_name == "__init__" or code.co_varnames[0] == "_cls"):
            self._note_object(frame.f_locals[code.co_varnames[0]])

    def _note_way(self, hand: FrameType) -> None:
        names: list[str] = []
        frame: FrameType | None = hand
        while frame is not None:
            if (name := own_name(frame.f_code)) is not None:
                names.append(name)
            frame = None if frame.f_code is Coordinator._serve.__code__ else frame.f_back
        self.way.update(dict.fromkeys(reversed(names)))

    def _note_object(self, made: object) -> None:
        """Note an object, or the class of a named tuple that is about to be made."""
        is_class = isinstance(made, type)
        module = (made if is_class else type(made)).__module__
        is_own = module.startswith("pybatcher.") and "testing" not in module
        if is_own and (is_class or not any(made is one for one in self.objects)):
            self.objects.append(made)

    def __str__(self) -> str:
        n_hands, n_hands_files, n_functions, n_files, n_objects = self.counts
        kinds = (one if isinstance(one, type) else type(one) for one in self.objects)
        return "\n".join(
            [
                f"the way, {n_hands} functions in {n_hands_files} files:",
                *(f"    {name}" for name in self.way),
                f"the chain, {n_functions} functions in {n_files} files:",
                *(f"    {name}" for name in self.functions),
                f"{n_objects} objects: {', '.join(kind.__name__ for kind in kinds)}",
            ]
        )


def own_name(code: CodeType) -> str | None:
    """Return the file and the name of a function of pybatcher; None for any other code."""
    path = Path(code.co_filename)
    if PACKAGE not in path.parents or "testing" in path.parts or code.co_name.startswith("<"):
        return None
    return f"{path.relative_to(PACKAGE).as_posix()} {code.co_qualname}"


def files(functions: Collection[str]) -> set[str]:
    return {name.partition(" ")[0] for name in functions}


async def idle_batcher(batcher: Batcher) -> None:
    """Have it answer once, so that nothing is done for the first time, and wait for its rest."""
    await batcher.generate(PROMPT, max_tokens=2)
    await until(
        lambda: (
            batcher.statistics().running == 0
            and batcher._running_service()._mailbox._reader is not None
        )
    )


def ask(batcher: Batcher, how: str) -> asyncio.Task[Any]:
    async def stream() -> list[str]:
        return [str(piece) async for piece in batcher.stream(PROMPT, max_tokens=4)]

    async def generate() -> str:
        return str(await batcher.generate(PROMPT, max_tokens=4))

    return asyncio.create_task(stream() if how == "stream" else generate())


async def to_the_queue(how: str) -> Chain:
    """Return the chain from a call to the waiting queue."""
    async with fake_batcher(clock=FakeClock(), batch_size=1) as batcher:
        await idle_batcher(batcher)
        hands = (Mailbox.put.__code__, WaitingQueue.append.__code__)
        with Chain(hands, hands[-1]) as chain:
            await ask(batcher, how)
    assert chain.has_ended
    return chain


async def to_the_caller(how: str) -> Chain:
    """Return the chain from the end of a step to what wakes the caller."""

    def is_a_steps_end(frame: FrameType) -> bool:
        is_put = frame.f_code is Mailbox.put.__code__
        return is_put and isinstance(frame.f_locals["message"], StepEnded)

    async with fake_batcher(clock=FakeClock(), batch_size=1) as batcher:
        await idle_batcher(batcher)
        hands = (Mailbox.put.__code__, Generated.__new__.__code__, Reply.wake.__code__)
        with Chain(hands, hands[-1], is_a_steps_end) as chain:
            await ask(batcher, how)
    assert chain.has_ended
    return chain


Counts = tuple[int, int, int, int, int]


def check(chain: Chain, most: Counts) -> None:
    assert all(n <= limit for n, limit in zip(chain.counts, most, strict=True)), (
        f"{chain.counts} of the way, the chain and objects; there may be {most}:\n{chain}"
    )
    assert all(n > limit // 2 for n, limit in zip(chain.counts, most, strict=True)), (
        f"{chain.counts} of {most}: lower the bounds, or mend what counts\n{chain}"
    )


@pytest.mark.parametrize(
    ("how", "most"), [("generate", (9, 7, 101, 31, 8)), ("stream", (9, 8, 104, 32, 9))]
)
async def test_from_a_call_to_the_waiting_queue(how: str, most: Counts) -> None:
    chain = await to_the_queue(how)
    check(chain, most)
    assert any(one.endswith("CallReader.params") for one in chain.functions)
    for name in ("Service.submit", "Mailbox.put", "Coordinator._submit", "Scheduler.submit"):
        assert any(one.endswith(name) for one in chain.way), f"it does not count\n{chain}"


@pytest.mark.parametrize(
    ("how", "most"), [("generate", (12, 7, 44, 18, 6)), ("stream", (11, 7, 36, 17, 4))]
)
async def test_from_a_steps_end_to_the_caller(how: str, most: Counts) -> None:
    chain = await to_the_caller(how)
    check(chain, most)
    assert any(one.endswith("Detokenizer.push") for one in chain.functions)
    for name in ("Mailbox.put", "Scheduler.apply", "OutputProcessor.process", "RequestState.token"):
        assert any(one.endswith(name) for one in chain.way), f"it does not count\n{chain}"


QUESTION_FILES = {
    "calls/questions.py",  # the kind
    "calls/any_batcher.py",  # its method
    "calls/threads/calls.py",  # its method for threads
    "serving/service.py",  # its handler
    "sidecar/protocol/codecs.py",  # its form on the wire
}


def names(path: Path) -> set[str]:
    """Return what a file defines, imports or uses by name, but for words in its texts."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Name):
            found.add(node.id)
        elif isinstance(node, ast.Attribute):
            found.add(node.attr)
        elif isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef | ast.alias):
            found.add(node.name)
    return found


def test_a_kind_of_question_touches_five_files() -> None:
    """Shown by the one that asks for embeddings, which nothing else in the package serves."""
    named = {path.relative_to(PACKAGE).as_posix(): names(path) for path in PACKAGE.rglob("*.py")}
    del named["testing/fake_engine.py"]  # whose `embed` is that of an engine
    del named["http/openai/embedding_routes.py"]  # which calls it, as any program does
    of_kind = {file for file, found in named.items() if "EmbedTexts" in found}
    of_method = {file for file, found in named.items() if "embed" in found}
    assert of_kind | of_method == QUESTION_FILES
    assert of_kind == QUESTION_FILES - {"calls/threads/calls.py"}, (
        "a surface for threads only forwards"
    )
