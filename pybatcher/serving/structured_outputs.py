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
"""The most seconds to compile a grammar, and to wait for a slot to compile it in."""

_RETRY_AFTER = 5.0  # seconds
_MOST_AT_ONCE = 4
_MOST_SLOW = 2  # additional slots, for grammars that may take long
_SHORT_OUTPUT = 64  # tokens; a matcher consumes that many in about 0.3 ms


class StructuredOutputs:
    """Makes matchers of structured outputs. For one event loop."""

    def __init__(
        self, tokenizer: Tokenizer, vocab_size: int, markers: Collection[int] = ()
    ) -> None:
        self._compiler = GrammarCompiler(tokenizer, vocab_size, markers)
        self._slots = asyncio.Semaphore(_MOST_AT_ONCE)
        self._slow_slots = asyncio.Semaphore(_MOST_SLOW)
        self._compiling: dict[StructuredOutput, asyncio.Future[Any]] = {}

    async def matcher(self, form: StructuredOutput, output: tuple[int, ...]) -> OutputMatcher:
        """Return a new matcher of a structured output, advanced to the end of `output`.

        A grammar that several callers request at a time is compiled once. Raises
        InvalidRequestError for a grammar that cannot be compiled, or not in time, and for an output
        that violates it; QueueFullError if no slot becomes free in time.
        """
        if not self._compiler.is_ready(form):
            await self._compiled(form)
        if len(output) <= _SHORT_OUTPUT:
            return self._compiler.matcher(form, output)
        slots = await self._slot(form)
        follow = partial(self._compiler.matcher, form, output)
        return await self._in_time(form, _on_thread(follow, slots.release))

    async def _compiled(self, form: StructuredOutput) -> None:
        """Return when the grammar is compiled. Compilation goes on for other callers if this one
        leaves.
        """
        if form not in self._compiling:
            slots = await self._slot(form)
            # another caller has started or finished it meanwhile
            if form in self._compiling or self._compiler.is_ready(form):
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
        """Wait for a slot to compile in, and return the semaphore to release afterwards.

        Grammars that may take long have slots of their own, so that they delay no others.
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
            # without this call asyncio logs the exception when all callers are gone
            compiling.exception()


async def _on_thread(function: Callable[[], _T], ended: Callable[[], object]) -> _T:
    """Run a function on a daemon thread of its own, so that it does not delay the interpreter's
    exit.

    The function cannot be stopped: it runs to its end even if the caller waits no longer.
    ended: called on the loop when the function has ended.
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
