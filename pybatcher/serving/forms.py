"""`Forms`: compiles the forms of outputs beside the event loop, each within a time limit."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Collection
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

from ..errors import InvalidRequestError, PybatcherError
from ..params import OutputForm
from ..scheduling import own_copy
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
        self._compiling: dict[OutputForm, asyncio.Future[Any]] = {}

    async def matcher(self, form: OutputForm, output: tuple[int, ...]) -> OutputMatcher:
        """Return a new matcher of a form, at the end of `output`.

        A form that several callers ask for at a time is compiled once. Raises InvalidRequestError
        for a form that cannot be compiled, or not in time, and for an output that has not the form.
        """
        try:
            async with asyncio.timeout(_COMPILE_TIMEOUT):
                if not self._compiler.is_ready(form):
                    await self._compiled(form)
                if len(output) <= _SHORT_OUTPUT:
                    return self._compiler.matcher(form, output)
                return await self._on_thread(partial(self._compiler.matcher, form, output))
        except TimeoutError:
            raise InvalidRequestError(
                f"{form.field} was not compiled within {_COMPILE_TIMEOUT:g} s: it is too large, or "
                "others are compiled; make it simpler"
            ) from None

    async def _compiled(self, form: OutputForm) -> None:
        """Return when the form is compiled. Where a caller waits no longer, others do."""
        compiling = self._compiling.get(form)
        if compiling is None:
            compile_form = partial(self._compiler.matcher, form)
            compiling = asyncio.ensure_future(self._on_thread(compile_form))
            self._compiling[form] = compiling
            compiling.add_done_callback(partial(self._ended, form))
        try:
            await asyncio.shield(compiling)
        except PybatcherError as error:
            raise own_copy(error) from None

    def _ended(self, form: OutputForm, compiling: asyncio.Future[Any]) -> None:
        del self._compiling[form]
        if not compiling.cancelled():
            compiling.exception()  # else asyncio logs it where all callers have gone

    async def _on_thread(self, function: Callable[[], _T]) -> _T:
        await self._slots.acquire()
        return await _on_thread(function, self._slots.release)


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
