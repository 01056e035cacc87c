"""Compiling beside the loop: in time, a few at once, and once for each form."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
from batcher_helpers import PATIENCE, until

from pybatcher import InvalidRequestError
from pybatcher.params import OutputForm
from pybatcher.serving import forms as module
from pybatcher.serving.forms import Forms
from pybatcher.text import Tokenizer

FORM = OutputForm("regex", "a")


class Compiler:
    """In place of the real one: compiles when it is let."""

    def __init__(self) -> None:
        self.go_on = threading.Event()
        self.n_begun = 0
        self.ready = False

    def is_ready(self, form: OutputForm) -> bool:
        return self.ready

    def matcher(self, form: OutputForm, output: tuple[int, ...]) -> Any:
        self.n_begun += 1
        if form.text == "bad":
            raise InvalidRequestError("bad")
        assert self.ready or self.go_on.wait(PATIENCE)
        return form.text, threading.current_thread().name


@pytest.fixture
def compiler(monkeypatch: pytest.MonkeyPatch) -> Compiler:
    one = Compiler()
    monkeypatch.setattr(module, "GrammarCompiler", lambda *_: one)
    return one


async def test_what_is_compiled_is_made_at_once_and_the_rest_on_a_thread(
    compiler: Compiler,
) -> None:
    forms = Forms(Tokenizer(None), 9)
    compiler.go_on.set()
    assert await forms.matcher(FORM, ()) == ("a", "pybatcher-form")
    compiler.ready = True
    assert await forms.matcher(FORM, ()) == ("a", "MainThread")
    assert await forms.matcher(FORM, tuple(range(5000))) == ("a", "pybatcher-form")
    with pytest.raises(InvalidRequestError, match="bad"):
        await forms.matcher(OutputForm("regex", "bad"), ())


async def test_a_form_that_takes_too_long_is_given_up_and_keeps_its_place(
    compiler: Compiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_COMPILE_TIMEOUT", 0.01)
    forms = Forms(Tokenizer(None), 9)
    for _ in range(module._MOST_AT_ONCE + 2):
        with pytest.raises(InvalidRequestError, match=r"regex was not compiled within 0\.01 s"):
            await forms.matcher(FORM, ())
    assert compiler.n_begun == module._MOST_AT_ONCE
    compiler.go_on.set()
    await until(lambda: not forms._slots.locked())
    monkeypatch.setattr(module, "_COMPILE_TIMEOUT", PATIENCE)
    made = await asyncio.gather(*(forms.matcher(FORM, ()) for _ in range(9)))
    assert {text for text, _ in made} == {"a"}
