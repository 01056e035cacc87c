"""The seam is short: how many functions, files and objects lie between a call and its answer.

Bounds, a little above what there is. A failure prints the chain, to be looked at: what is new on
the way, and whether it has to be there.
"""

from __future__ import annotations

import ast
import asyncio
import sys
from collections.abc import Callable
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import pytest
from batcher_helpers import until

import pybatcher
from pybatcher import Batcher
from pybatcher.calls.reply import Reply
from pybatcher.scheduling.queue import WaitingQueue
from pybatcher.serving.mailbox import Mailbox, StepEnded
from pybatcher.testing import FakeClock, fake_batcher

PACKAGE = Path(pybatcher.__file__).parent
PROMPT = "Once upon a time"


class Chain:
    """What is called of pybatcher, and which of its objects are made, on this thread.

    Once each, in the order of the first time. Comprehensions, and the fakes of
    `pybatcher.testing`, are not counted.

    ends: the chain is complete with the first call of this.
    begins: the chain begins anew with every call of which this is true; None: with the first.
    """

    def __init__(self, ends: CodeType, begins: Callable[[FrameType], bool] | None = None) -> None:
        self.functions: dict[str, None] = {}
        self.objects: list[object] = []
        self.has_ended = False
        self._begins = begins
        self._has_begun = begins is None
        self._ends = ends

    @property
    def files(self) -> set[str]:
        return {name.partition(" ")[0] for name in self.functions}

    @property
    def counts(self) -> tuple[int, int, int]:
        return len(self.functions), len(self.files), len(self.objects)

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
            self.objects.clear()
        if not self._has_begun:
            return
        code, path = frame.f_code, Path(frame.f_code.co_filename)
        if PACKAGE in path.parents and "testing" not in path.parts:
            if not code.co_name.startswith("<"):
                name = f"{path.relative_to(PACKAGE).as_posix()} {code.co_qualname}"
                self.functions.setdefault(name)
            self.has_ended = code is self._ends
        if code.co_varnames and (code.co_name == "__init__" or code.co_varnames[0] == "_cls"):
            self._note_object(frame.f_locals[code.co_varnames[0]])

    def _note_object(self, made: object) -> None:
        """Note an object, or the class of a named tuple that is about to be made."""
        is_class = isinstance(made, type)
        module = (made if is_class else type(made)).__module__
        is_own = module.startswith("pybatcher.") and "testing" not in module
        if is_own and (is_class or not any(made is one for one in self.objects)):
            self.objects.append(made)

    def __str__(self) -> str:
        n_functions, n_files, n_objects = self.counts
        kinds = (one if isinstance(one, type) else type(one) for one in self.objects)
        return "\n".join(
            [
                f"{n_functions} functions in {n_files} files:",
                *(f"    {name}" for name in self.functions),
                f"{n_objects} objects: {', '.join(kind.__name__ for kind in kinds)}",
            ]
        )


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
        with Chain(WaitingQueue.append.__code__) as chain:
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
        with Chain(Reply.wake.__code__, is_a_steps_end) as chain:
            await ask(batcher, how)
    assert chain.has_ended
    return chain


def check(chain: Chain, most_functions: int, most_files: int, most_objects: int) -> None:
    most = most_functions, most_files, most_objects
    assert all(n <= limit for n, limit in zip(chain.counts, most, strict=True)), (
        f"{chain.counts} functions, files and objects; there may be {most}:\n{chain}"
    )
    assert all(n > limit // 2 for n, limit in zip(chain.counts, most, strict=True)), (
        f"{chain.counts} of {most}: lower the bounds, or mend what counts\n{chain}"
    )


@pytest.mark.parametrize(("how", "most"), [("generate", (100, 31, 13)), ("stream", (102, 32, 14))])
async def test_from_a_call_to_the_waiting_queue(how: str, most: tuple[int, int, int]) -> None:
    chain = await to_the_queue(how)
    check(chain, *most)
    for name in ("CallReader.params", "Coordinator._submit", "Scheduler.submit"):
        assert any(one.endswith(name) for one in chain.functions), f"it does not count\n{chain}"


@pytest.mark.parametrize(("how", "most"), [("generate", (50, 20, 10)), ("stream", (40, 18, 5))])
async def test_from_a_steps_end_to_the_caller(how: str, most: tuple[int, int, int]) -> None:
    chain = await to_the_caller(how)
    check(chain, *most)
    for name in ("Scheduler.apply", "OutputProcessor.process", "Delivery.token"):
        assert any(one.endswith(name) for one in chain.functions), f"it does not count\n{chain}"


QUESTION_FILES = {
    "calls/questions.py",  # the kind
    "calls/any_batcher.py",  # its method
    "threads/calls.py",  # its method for threads
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
    """Shown by the one that asks for embeddings, of which nothing else in the package speaks."""
    named = {path.relative_to(PACKAGE).as_posix(): names(path) for path in PACKAGE.rglob("*.py")}
    del named["testing/fake_engine.py"]  # whose `embed` is that of an engine
    of_kind = {file for file, found in named.items() if "EmbedTexts" in found}
    of_method = {file for file, found in named.items() if "embed" in found}
    assert of_kind | of_method == QUESTION_FILES
    assert of_kind == QUESTION_FILES - {"threads/calls.py"}, "a surface for threads only forwards"
