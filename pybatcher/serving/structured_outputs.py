"""`StructuredOutputs`: compiles grammars of outputs off the event loop, within a time limit."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection
from functools import partial
from typing import Any, TypeVar

from ..calls.threads.loop_thread import on_own_thread
from ..errors import InvalidRequestError, PybatcherError, QueueFullError
from ..params import StructuredOutput
from ..scheduling import own_copy
from ..text import Tokenizer
from ..text.grammars import GrammarCompiler, OutputMatcher
from ..text.grammars.probe import Abandonment, is_harmless
from .fair_slots import FairSlots

__all__ = ["StructuredOutputs"]

_T = TypeVar("_T")

_COMPILE_TIMEOUT = 20.0
"""The most seconds to compile a grammar, and to wait for a slot to compile it in."""

_RETRY_AFTER = 5.0  # seconds
_MOST_AT_ONCE = 8
_MOST_SLOW = 4  # additional slots, for grammars that may take long
_SHORT_OUTPUT = 64  # tokens; a matcher consumes that many in about 0.3 ms


class StructuredOutputs:
    """Makes matchers of structured outputs. For one event loop."""

    def __init__(
        self, tokenizer: Tokenizer, vocab_size: int, markers: Collection[int] = ()
    ) -> None:
        self._compiler = GrammarCompiler(tokenizer, vocab_size, markers)
        self._slots = FairSlots(_MOST_AT_ONCE, _MOST_AT_ONCE // 2)
        self._slow_slots = FairSlots(_MOST_SLOW, _MOST_SLOW // 2)
        self._compiling: dict[StructuredOutput, _Compilation] = {}

    async def matcher(
        self, form: StructuredOutput, output: tuple[int, ...], tenant: str = ""
    ) -> OutputMatcher:
        """Return a new matcher of a structured output, advanced to the end of `output`.

        A grammar that several callers request at a time is compiled once, and no longer than one of
        them waits. Raises InvalidRequestError for a grammar that cannot be compiled, or not in
        time, and for an output that violates it; QueueFullError if no slot becomes free in time.

        tenant: the name under which the caller takes turns with others.
        """
        if not self._compiler.is_ready(form):
            await self._compiled(form, tenant)
        if len(output) <= _SHORT_OUTPUT:
            return self._compiler.matcher(form, output)
        release = await self._slot(form, tenant)
        follow = partial(self._compiler.matcher, form, output)
        return await self._in_time(form, _on_thread(follow, release))

    async def _compiled(self, form: StructuredOutput, tenant: str) -> None:
        """Return when the grammar is compiled. Compilation goes on for other callers if this one
        leaves, and is abandoned when the last one leaves.
        """
        if form not in self._compiling:
            release = await self._slot(form, tenant)
            # another caller has started or finished it meanwhile
            if form in self._compiling or self._compiler.is_ready(form):
                release()
            else:
                self._compiling[form] = begun = _Compilation(self._compiler, form, release)
                begun.done.add_done_callback(partial(self._ended, form, begun))
        if (compiling := self._compiling.get(form)) is None:
            return
        compiling.n_waiting += 1
        try:
            await self._in_time(form, asyncio.shield(compiling.done))
        except PybatcherError as error:
            raise own_copy(error) from None
        finally:
            compiling.n_waiting -= 1
            if not compiling.n_waiting and not compiling.done.done():
                compiling.abandoned.set()
                self._forget(form, compiling)  # a new caller begins anew

    async def _slot(self, form: StructuredOutput, tenant: str) -> Callable[[], None]:
        """Wait for a slot to compile in, and return the function that gives it back.

        Grammars that may take long have slots of their own, so that they delay no others.
        """
        slots = self._slots if is_harmless(form) else self._slow_slots
        try:
            async with asyncio.timeout(_COMPILE_TIMEOUT):
                await slots.acquire(tenant)
        except TimeoutError:
            raise QueueFullError(
                f"the form of this output was not compiled, as others were for "
                f"{_COMPILE_TIMEOUT:g} s; try again later, or with fewer forms at a time",
                _RETRY_AFTER,
            ) from None
        return partial(slots.release, tenant)

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

    def _ended(
        self, form: StructuredOutput, compiling: _Compilation, done: asyncio.Future[Any]
    ) -> None:
        self._forget(form, compiling)
        if not done.cancelled():
            # without this call asyncio logs the exception when all callers are gone
            done.exception()

    def _forget(self, form: StructuredOutput, compiling: _Compilation) -> None:
        if self._compiling.get(form) is compiling:
            del self._compiling[form]


class _Compilation:
    """A compilation under way, for all who wait for it.

    abandoned: set when nobody waits any longer.
    """

    def __init__(
        self, compiler: GrammarCompiler, form: StructuredOutput, release: Callable[[], None]
    ) -> None:
        self.n_waiting = 0
        self.abandoned = Abandonment()
        compile_form = partial(compiler.matcher, form, abandoned=self.abandoned)
        self.done = asyncio.ensure_future(_on_thread(compile_form, release))


async def _on_thread(function: Callable[[], _T], ended: Callable[[], object]) -> _T:
    """Return the result of `on_own_thread`. Raises QueueFullError if no thread can be started."""
    try:
        done = on_own_thread(function, "pybatcher-form", ended)
    except Exception as error:  # the system has no thread or no memory to spare
        ended()
        raise QueueFullError(
            f"the form of this output was not compiled, as no thread can be started: {error}; "
            "try again later",
            _RETRY_AFTER,
        ) from error
    return await done
