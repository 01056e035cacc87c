"""`StructuredOutputs`: compiles grammars of outputs off the event loop, within a time limit."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Collection
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

from ..errors import InvalidRequestError, PybatcherError, QueueFullError
from ..params import StructuredOutput
from ..scheduling import own_copy
from ..text import Tokenizer
from ..text.grammars import GrammarCompiler, OutputMatcher
from ..text.grammars.probe import is_harmless

__all__ = ["StructuredOutputs"]

_T = TypeVar("_T")

_COMPILE_TIMEOUT = 20.0
"""Seconds until a form that is compiled is given up, or one that waits for others to be."""

_RETRY_AFTER = 5.0  # seconds
_MOST_AT_ONCE = 4
_MOST_SLOW = 2  # besides, of those that may take long
_SHORT_OUTPUT = 64  # tokens; a matcher follows so many in some 0.3 ms


class StructuredOutputs:
    """Makes matchers of the forms that callers ask for. For one event loop."""

    def __init__(
        self, tokenizer: Tokenizer, vocab_size: int, markers: Collection[int] = ()
    ) -> None:
        self._compiler = GrammarCompiler(tokenizer, vocab_size, markers)
        self._slots = asyncio.Semaphore(_MOST_AT_ONCE)
        self._slow_slots = asyncio.Semaphore(_MOST_SLOW)
        self._compiling: dict[StructuredOutput, asyncio.Future[Any]] = {}

    async def matcher(self, form: StructuredOutput, output: tuple[int, ...]) -> OutputMatcher:
        """Return a new matcher of a form, at the end of `output`.

        A form that several callers ask for at a time is compiled once. Raises InvalidRequestError
        for a form that cannot be compiled, or not in time, and for an output that has not the form;
        QueueFullError where the forms of others leave no time to begin.
        """
        if not self._compiler.is_ready(form):
            await self._compiled(form)
        if len(output) <= _SHORT_OUTPUT:
            return self._compiler.matcher(form, output)
        slots = await self._slot(form)
        follow = partial(self._compiler.matcher, form, output)
        return await self._in_time(form, _on_thread(follow, slots.release))

    async def _compiled(self, form: StructuredOutput) -> None:
        """Return when the form is compiled. Where a caller waits no longer, others do."""
        if form not in self._compiling:
            slots = await self._slot(form)
            if form in self._compiling or self._compiler.is_ready(form):  # for another caller
                slots.release()
            else:
                compile_form = partial(self._compiler.matcher, form)
                begun = asyncio.ensure_future(_on_thread(compile_form, slots.release))
                self._compiling[form] = begun
                begun.add_done_callback(partial(self._ended, form))
        if (compiling := self._compiling.get(form)) is None:
            return
        try:
            await self._in_time(form, asyncio.shield(compiling))
        except PybatcherError as error:
            raise own_copy(error) from None

    async def _slot(self, form: StructuredOutput) -> asyncio.Semaphore:
        """Wait for a slot to work on a form in, and return what to give it back to.

        Forms that may take long have slots of their own: they keep no others waiting.
        """
        slots = self._slots if is_harmless(form) else self._slow_slots
        try:
            async with asyncio.timeout(_COMPILE_TIMEOUT):
                await slots.acquire()
        except TimeoutError:
            raise QueueFullError(
                f"the form of this output was not compiled, as others were for "
                f"{_COMPILE_TIMEOUT:g} s; try again later, or with fewer forms at a time",
                _RETRY_AFTER,
            ) from None
        return slots

    async def _in_time(self, form: StructuredOutput, work: Awaitable[_T]) -> _T:
        try:
            async with asyncio.timeout(_COMPILE_TIMEOUT):
                return await work
        except TimeoutError:
            raise InvalidRequestError(
                f"{form.field} was not compiled within {_COMPILE_TIMEOUT:g} s: it is too large; "
                "make it simpler",
                field=form.field,
            ) from None

    def _ended(self, form: StructuredOutput, compiling: asyncio.Future[Any]) -> None:
        del self._compiling[form]
        if not compiling.cancelled():
            compiling.exception()  # else asyncio logs it where all callers have gone


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
