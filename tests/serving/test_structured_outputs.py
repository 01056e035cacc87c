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

FORM = StructuredOutput("regex", "a")


class Compiler:
    """In place of the real one: compiles when it is let."""

    def __init__(self) -> None:
        self.go_on = threading.Event()
        self.begun: list[str] = []
        self.ready: set[StructuredOutput] = set()

    def is_ready(self, form: StructuredOutput) -> bool:
        return form in self.ready

    def matcher(self, form: StructuredOutput, output: tuple[int, ...] = ()) -> Any:
        if form not in self.ready:
            self.begun.append(form.text)
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
    several = [StructuredOutput("regex", "b" * i) for i in range(1, module._MOST_AT_ONCE + 1)]
    for form in several * 2:
        with pytest.raises(InvalidRequestError, match=r"regex was not compiled within 0\.01 s"):
            await forms.matcher(form, ())
    others = [StructuredOutput("regex", "c" * i) for i in range(1, 3)]
    for form in others:
        with pytest.raises(QueueFullError, match="try again later") as raised:
            await forms.matcher(form, ())
        assert raised.value.retry_after > 0
    assert len(compiler.begun) == module._MOST_AT_ONCE
    compiler.go_on.set()
    monkeypatch.setattr(module, "_COMPILE_TIMEOUT", PATIENCE)
    made = await asyncio.gather(*(forms.matcher(form, ()) for form in (*several, *others)))
    assert [text for text, _ in made] == [form.text for form in (*several, *others)]
    await until(lambda: not forms._slots.locked())


async def test_forms_that_may_take_long_keep_no_others_waiting(compiler: Compiler) -> None:
    forms = StructuredOutputs(Tokenizer(None), 9)
    slow = [StructuredOutput("regex", f"(a{{1000}}){{{900 + i}}}") for i in range(8)]
    waiting = [asyncio.ensure_future(forms.matcher(form, ())) for form in slow]
    await until(lambda: len(compiler.begun) == module._MOST_SLOW)
    quick = asyncio.ensure_future(forms.matcher(FORM, ()))
    await until(lambda: "a" in compiler.begun)
    assert len(compiler.begun) == module._MOST_SLOW + 1
    compiler.go_on.set()
    assert await quick == ("a", "MainThread")
    assert [text for text, _ in await asyncio.gather(*waiting)] == [form.text for form in slow]
    assert not forms._slow_slots.locked()


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
    several = [StructuredOutput("regex", "b" * i) for i in range(1, module._MOST_AT_ONCE + 2)]
    made = [asyncio.ensure_future(forms.matcher(form, ())) for form in several]
    await until(lambda: len(compiler.begun) == module._MOST_AT_ONCE)
    assert timed == [form.text for form in several[:-1]]
    compiler.go_on.set()
    await asyncio.gather(*made)
    assert timed == [form.text for form in several]


async def test_who_waited_for_a_turn_finds_what_another_has_compiled(compiler: Compiler) -> None:
    forms = StructuredOutputs(Tokenizer(None), 9)
    several = [StructuredOutput("regex", "b" * i) for i in range(1, module._MOST_AT_ONCE + 2)]
    made = [asyncio.ensure_future(forms.matcher(form, ())) for form in (*several, several[-1])]
    await until(lambda: len(compiler.begun) == module._MOST_AT_ONCE)
    compiler.go_on.set()
    await asyncio.gather(*made)
    assert sorted(compiler.begun) == [form.text for form in several]
    assert not forms._slots.locked()
