"""`Forms`: compiles the forms of outputs beside the event loop, each within a time limit."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Collection
from contextlib import suppress
from functools import partial
from typing import TypeVar

from ..errors import InvalidRequestError
from ..params import OutputForm
from ..text import Tokenizer
from ..text.grammars import GrammarCompiler, OutputMatcher

__all__ = ["Forms"]

_T = TypeVar("_T")

_COMPILE_TIMEOUT = 20.0
"""Seconds until a form that is compiled is given up."""

_MOST_AT_ONCE = 4
_SHORT_OUTPUT = 64  # tokens; a matcher follows so many in some 0.3 ms


class Forms:
    """Makes matchers of the forms that callers ask for. For one event loop."""

    def __init__(
        self, tokenizer: Tokenizer, vocab_size: int, markers: Collection[int] = ()
    ) -> None:
        self._compiler = GrammarCompiler(tokenizer, vocab_size, markers)
        self._slots = asyncio.Semaphore(_MOST_AT_ONCE)

    async def matcher(self, form: OutputForm, output: tuple[int, ...]) -> OutputMatcher:
        """Return a new matcher of a form, at the end of `output`.

        Raises InvalidRequestError for a form that cannot be compiled, or not in time, and for an
        output that has not the form.
        """
        if len(output) <= _SHORT_OUTPUT and self._compiler.is_ready(form):
            return self._compiler.matcher(form, output)
        try:
            async with asyncio.timeout(_COMPILE_TIMEOUT):
                await self._slots.acquire()
                make = partial(self._compiler.matcher, form, output)
                return await _on_thread(make, self._slots.release)
        except TimeoutError:
            raise InvalidRequestError(
                f"{form.field} was not compiled within {_COMPILE_TIMEOUT:g} s: it is too large, or "
                "others are compiled; make it simpler"
            ) from None


async def _on_thread(function: Callable[[], _T], ended: Callable[[], object]) -> _T:
    """Run a function on a thread of its own, which the interpreter does not wait for at its end.

    It cannot be stopped: where the caller waits no longer, it goes on to its end.
    ended: called on the loop when it has ended.
    """
    loop = asyncio.get_running_loop()
    done: asyncio.Future[_T] = loop.create_future()

    def settle(result: _T | None, error: BaseException | None) -> None:
        ended()
        if done.done():
            return
        if error is not None:
            done.set_exception(error)
        else:
            done.set_result(result)  # type: ignore[arg-type]

    def run() -> None:
        result, error = None, None
        try:
            result = function()
        except BaseException as caught:
            error = caught
        with suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(settle, result, error)

    threading.Thread(target=run, name="pybatcher-form", daemon=True).start()
    return await done
