"""Compiling beside the loop: in time, a few at once, and once for each form."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
from batcher_helpers import PATIENCE, until

from pybatcher import InvalidRequestError, QueueFullError
from pybatcher.params import StructuredOutput
from pybatcher.serving import structured_outputs as module
from pybatcher.serving.structured_outputs import StructuredOutputs
from pybatcher.text import Tokenizer
from pybatcher.text.grammars.probe import Abandonment

FORM = StructuredOutput("regex", "a")
MOST = module._MOST_AT_ONCE // 2  # of one tenant
MOST_SLOW = module._MOST_SLOW // 2


class Compiler:
    """In place of the real one: compiles when it is let."""

    def __init__(self) -> None:
        self.go_on = threading.Event()
        self.begun: list[str] = []
        self.ready: set[StructuredOutput] = set()
        self.abandoned: dict[str, Abandonment | None] = {}

    def is_ready(self, form: StructuredOutput) -> bool:
        return form in self.ready

    def matcher(
        self,
        form: StructuredOutput,
        output: tuple[int, ...] = (),
        abandoned: Abandonment | None = None,
    ) -> Any:
        if form not in self.ready:
            self.begun.append(form.text)
            self.abandoned[form.text] = abandoned
            assert threading.current_thread().name == "pybatcher-form"
            assert self.go_on.wait(PATIENCE)
            if form.text == "bad":
                raise InvalidRequestError("bad")
            self.ready.add(form)
        return form.text, threading.current_thread().name


@pytest.fixture
def compiler(monkeypatch: pytest.MonkeyPatch) -> Compiler:
    one = Compiler()
    monkeypatch.setattr(module, "GrammarCompiler", lambda *_: one)
    return one


async def test_forms_are_compiled_on_a_thread_and_matchers_made_at_once(compiler: Compiler) -> None:
    forms = StructuredOutputs(Tokenizer(None), 9)
    compiler.go_on.set()
    assert await forms.matcher(FORM, ()) == ("a", "MainThread")
    assert await forms.matcher(FORM, ()) == ("a", "MainThread")
    assert await forms.matcher(FORM, tuple(range(5000))) == ("a", "pybatcher-form")
    assert compiler.begun == ["a"]


async def test_what_several_ask_for_is_compiled_once(compiler: Compiler) -> None:
    forms = StructuredOutputs(Tokenizer(None), 9)
    bad = StructuredOutput("regex", "bad")
    good = [asyncio.ensure_future(forms.matcher(FORM, ())) for _ in range(5)]
    failing = [asyncio.ensure_future(forms.matcher(bad, ())) for _ in range(3)]
    await until(lambda: len(compiler.begun) == 2)
    good.pop().cancel()  # who waits no longer takes nothing from the others
    compiler.go_on.set()
    assert [await one for one in good] == [("a", "MainThread")] * 4
    errors = await asyncio.gather(*failing, return_exceptions=True)
    assert [str(error) for error in errors] == ["bad"] * 3
    assert len({id(error) for error in errors}) == 3
    assert sorted(compiler.begun) == ["a", "bad"]
    with pytest.raises(InvalidRequestError, match="bad"):
        await forms.matcher(bad, ())


async def test_a_form_that_takes_too_long_is_given_up_and_keeps_its_place(
    compiler: Compiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_COMPILE_TIMEOUT", 0.01)
    forms = StructuredOutputs(Tokenizer(None), 9)
    several = [StructuredOutput("regex", "b" * i) for i in range(1, MOST + 1)]
    for form in several:
        with pytest.raises(InvalidRequestError, match=r"regex was not compiled within 0\.01 s"):
            await forms.matcher(form, ())
        given_up = compiler.abandoned[form.text]
        assert given_up is not None
        assert given_up.is_set()
    others = [StructuredOutput("regex", "c" * i) for i in range(1, 3)]
    for form in (*others, several[0]):
        with pytest.raises(QueueFullError, match="try again later") as raised:
            await forms.matcher(form, ())
        assert raised.value.retry_after > 0
    assert len(compiler.begun) == MOST
    compiler.go_on.set()
    monkeypatch.setattr(module, "_COMPILE_TIMEOUT", PATIENCE)
    made = await asyncio.gather(*(forms.matcher(form, ()) for form in (*several, *others)))
    assert [text for text, _ in made] == [form.text for form in (*several, *others)]
    await until(lambda: not forms._slots.n_held)


async def test_forms_that_may_take_long_keep_no_others_waiting(compiler: Compiler) -> None:
    forms = StructuredOutputs(Tokenizer(None), 9)
    slow = [StructuredOutput("regex", f"(a{{1000}}){{{900 + i}}}") for i in range(8)]
    waiting = [asyncio.ensure_future(forms.matcher(form, ())) for form in slow]
    await until(lambda: len(compiler.begun) == MOST_SLOW)
    quick = asyncio.ensure_future(forms.matcher(FORM, ()))
    await until(lambda: "a" in compiler.begun)
    assert len(compiler.begun) == MOST_SLOW + 1
    compiler.go_on.set()
    assert await quick == ("a", "MainThread")
    assert [text for text, _ in await asyncio.gather(*waiting)] == [form.text for form in slow]
    await until(lambda: not forms._slow_slots.n_held)


async def test_the_time_of_a_form_begins_with_its_turn(
    compiler: Compiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is not to pay for those before it: the work that is timed begins in a slot."""
    forms = StructuredOutputs(Tokenizer(None), 9)
    timed: list[str] = []

    async def in_time(self: StructuredOutputs, form: StructuredOutput, work: Any) -> Any:
        timed.append(form.text)
        return await work

    monkeypatch.setattr(StructuredOutputs, "_in_time", in_time)
    several = [StructuredOutput("regex", "b" * i) for i in range(1, MOST + 2)]
    made = [asyncio.ensure_future(forms.matcher(form, ())) for form in several]
    await until(lambda: len(compiler.begun) == MOST)
    assert timed == [form.text for form in several[:-1]]
    compiler.go_on.set()
    await asyncio.gather(*made)
    assert timed == [form.text for form in several]


async def test_who_waited_for_a_turn_finds_what_another_has_compiled(compiler: Compiler) -> None:
    forms = StructuredOutputs(Tokenizer(None), 9)
    several = [StructuredOutput("regex", "b" * i) for i in range(1, MOST + 2)]
    made = [asyncio.ensure_future(forms.matcher(form, ())) for form in (*several, several[-1])]
    await until(lambda: len(compiler.begun) == MOST)
    compiler.go_on.set()
    await asyncio.gather(*made)
    assert sorted(compiler.begun) == [form.text for form in several]
    await until(lambda: not forms._slots.n_held)


async def test_slow_forms_of_one_tenant_leave_slots_for_others(compiler: Compiler) -> None:
    forms = StructuredOutputs(Tokenizer(None), 9)
    slow = [StructuredOutput("regex", f"(a{{1000}}){{{900 + i}}}") for i in range(8)]
    waiting = [asyncio.ensure_future(forms.matcher(form, (), "a")) for form in slow[:-1]]
    await until(lambda: len(compiler.begun) == MOST_SLOW)
    waiting.append(asyncio.ensure_future(forms.matcher(slow[-1], (), "b")))
    await until(lambda: slow[-1].text in compiler.begun)
    assert len(compiler.begun) == MOST_SLOW + 1
    compiler.go_on.set()
    await asyncio.gather(*waiting)


async def test_a_form_is_abandoned_when_the_last_of_its_callers_leaves(compiler: Compiler) -> None:
    forms = StructuredOutputs(Tokenizer(None), 9)
    several = [asyncio.ensure_future(forms.matcher(FORM, ())) for _ in range(3)]
    await until(lambda: bool(compiler.begun))
    given_up = compiler.abandoned["a"]
    assert given_up is not None
    for i, one in enumerate(several, start=1):
        one.cancel()
        await asyncio.wait([one])
        assert given_up.is_set() is (i == len(several))
    later = asyncio.ensure_future(forms.matcher(FORM, ()))
    await until(lambda: len(compiler.begun) == 2)
    compiler.go_on.set()
    assert await later == ("a", "MainThread")
    assert compiler.abandoned["a"] is not given_up


@pytest.mark.parametrize("output", [(), tuple(range(5000))])
async def test_a_thread_that_cannot_start_holds_no_slot(
    compiler: Compiler, monkeypatch: pytest.MonkeyPatch, output: tuple[int, ...]
) -> None:
    forms = StructuredOutputs(Tokenizer(None), 9)
    if output:
        compiler.ready.add(FORM)

    def start(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", start)
        for _ in range(2 * module._MOST_AT_ONCE):
            with pytest.raises(QueueFullError, match="can't start new thread"):
                await forms.matcher(FORM, output)
    compiler.go_on.set()
    assert (await forms.matcher(FORM, output))[0] == "a"
    await until(lambda: not forms._slots.n_held)
