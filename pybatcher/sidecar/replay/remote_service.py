"""`RemoteService`: a batcher's calls, served elsewhere.

It stands in the front process between the clients and the worker, and in a `Client` between
its callers and the sidecar.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

from ...calls.arguments import check_timeout, merge_params
from ...calls.call import Call, CallOptions
from ...calls.inquiry import Embedding, Score
from ...calls.prefix_info import PrefixInfo
from ...calls.samples import Samples, sample_seed
from ...calls.statistics import Health
from ...calls.stream import Reply
from ...calls.telemetry import Handler, Telemetry
from ...errors import ConnectionLostError, DeadlineExceededError, PybatcherError
from ...errors.checks import REQUEST
from ..protocol.sidecar_statistics import SidecarStatistics
from ..protocol.wire import (
    embeddings_from_wire,
    event_from_wire,
    health_from_wire,
    prefix_info_from_wire,
    scores_from_wire,
    statistics_from_wire,
    write_add_prefix,
    write_detokenize,
    write_embed,
    write_remove_prefix,
    write_score,
    write_tokenize,
)
from ..protocol.wire_fields import ASKED
from ..session.service import SidecarService
from .journal import Generation, Question, bytes_of
from .link import Link, ending_of
from .pending_calls import PendingCalls

__all__ = ["RemoteService", "attach_and_watch"]

_LOGGER = logging.getLogger("pybatcher")
_ANY_TOKEN = 2**63  # the vocabulary is known where the engine is


class RemoteService(SidecarService):
    """What a batcher is asked, asked elsewhere. What has to be kept there is kept here too."""

    def __init__(self, pending: PendingCalls, telemetry: Telemetry | None = None) -> None:
        """telemetry: whose handlers get the events of the other end; None: one of its own."""
        self._loop = asyncio.get_running_loop()
        self.pending = pending
        self._prefixes: list[tuple[object, str, object]] = []
        self._telemetry = telemetry or Telemetry(pending.clock)
        self._is_watching = False
        self._n_restoring = 0
        self._restored = asyncio.Event()
        self._restored.set()

    # -- for the owner of the link ----------------------------------------------------------

    def link_made(self, link: Link) -> None:
        """There is a link: what was kept at the other end is put there again, who waits is sent."""
        self._is_watching = False
        self._restore(link, self._prefixes)
        self.pending.link_made(link)
        self.watch_if_needed()

    def link_lost(
        self, error: PybatcherError, *, final: bool = False, is_evidence: bool = True
    ) -> None:
        """See `PendingCalls.link_lost`."""
        self.pending.link_lost(error, final=final, is_evidence=is_evidence)

    def watch_if_needed(self) -> None:
        """Ask for events as long as somebody wants them."""
        wanted, link = self._telemetry.has_handlers, self.pending.link
        if link is not None and wanted != self._is_watching:
            self._is_watching = wanted
            with suppress(ConnectionLostError):
                link.start_call("watch", [wanted], lambda _error, _result: None)

    def take_prefixes_of(self, other: RemoteService) -> None:
        """Keep what another has kept until now."""
        self._prefixes += other._prefixes
        if (link := self.pending.link) is not None:
            self._restore(link, other._prefixes)

    def take_notification(self, method: str, params: list[Any]) -> bool:
        """What came over the link and answers nothing. False: it is not for a remote."""
        if method != "event":
            return False
        with suppress(PybatcherError):  # of a newer version: not for us
            self._telemetry.emit(event_from_wire(params))
        return True

    # -- calls ------------------------------------------------------------------------------

    async def submit(self, call: Call, reply: Reply) -> range:
        """See `CallService`."""
        self.pending.check_open()
        now = self.pending.clock()
        timeout = check_timeout(call.timeout)
        deadline = None if timeout is None else now + timeout
        params = merge_params(call.params, call.sampling, vocab_size=_ANY_TOKEN)
        if call.is_chat and self.pending.replays:  # a template may look at the clock: read it once
            tokens = await self._tokenize_until(call.content, deadline)
            call = replace(call, content=tokens, is_chat=False)
        else:
            read = ASKED.plain if call.is_chat else ASKED.prompt
            call = replace(call, content=read(call.content, _NAMES[call.is_chat]))
        seed = secrets.randbits(64) if params.seed is None else params.seed
        ids = self.pending.new_numbers(params.n)
        replies = [reply]
        if params.n > 1:
            replies = list(Samples(reply, params.n, partial(self.cancel, ids)).replies)
        for i, number in enumerate(ids):
            own = replace(params, n=1, seed=sample_seed(seed, i))
            entry = Generation(
                number=number,
                call=replace(call, params=own, sampling={}),
                reply=replies[i],
                submitted=now,
                deadline=deadline,
                n_bytes=bytes_of(call.content),
            )
            self.pending.add(entry)
        return ids

    def cancel(self, request_ids: range) -> None:
        """See `CallService`."""
        self.pending.cancel(request_ids)

    async def tokenize(self, content: object, is_chat: bool) -> tuple[int, ...]:
        """See `CallService`."""
        return tuple(await self._ask("tokenize", write_tokenize(_plain(content), is_chat)))

    async def detokenize(self, token_ids: object) -> str:
        """See `CallService`."""
        return str(await self._ask("detokenize", write_detokenize(_plain(token_ids))))

    async def score(
        self, prompt: object, continuations: object, beside: CallOptions
    ) -> list[Score]:
        """See `CallService`."""
        params = write_score(_plain(prompt), _plain(continuations), beside)
        return scores_from_wire(await self._ask("score", params))

    async def embed(self, texts: object, pooling: object, beside: CallOptions) -> list[Embedding]:
        """See `CallService`."""
        params = write_embed(_plain(texts), pooling, beside)
        return embeddings_from_wire(await self._ask("embed", params))

    async def add_prefix(self, prefix: object, name: object, namespace: object) -> PrefixInfo:
        """See `CallService`. It is there again after the link was lost and made anew."""
        content = _plain(prefix)
        params = write_add_prefix(content, name, namespace)
        asking = asyncio.ensure_future(self._ask("add_prefix", params))
        try:
            info = prefix_info_from_wire(await asyncio.shield(asking))
        except asyncio.CancelledError:
            asking.add_done_callback(partial(self._undo_added, namespace))
            raise
        self._prefixes.append((content, str(info.name), namespace))
        return info

    async def remove_prefix(self, name: object, namespace: object) -> None:
        """See `CallService`."""
        await self._ask("remove_prefix", write_remove_prefix(name, namespace))
        for i, (_, own_name, own_namespace) in enumerate(self._prefixes):
            if (own_name, own_namespace) == (name, namespace):
                del self._prefixes[i]
                break

    async def prefixes(self) -> tuple[PrefixInfo, ...]:
        """See `Batcher.prefixes`."""
        while True:
            infos = await self._ask("prefixes", [])
            if self._restored.is_set():
                return tuple(map(prefix_info_from_wire, infos))
            await self._restored.wait()

    async def hello(self) -> dict[str, Any]:
        """What the other end says of itself."""
        hello: dict[str, Any] = await self._ask("hello", [{}])
        return hello

    async def statistics(self) -> SidecarStatistics:
        """See `Batcher.statistics`."""
        return statistics_from_wire(await self._ask("statistics", []))

    async def health(self) -> Health:
        """See `Batcher.health`."""
        return health_from_wire(await self._ask("health", []))

    async def reload(self, changes: Mapping[str, Any]) -> dict[str, Any]:
        """See `Client.reload`."""
        reloaded: dict[str, Any] = await self._ask("reload", [dict(changes)])
        return reloaded

    def attach(self, handler: Handler) -> Callable[[], None]:
        """See `Batcher.attach`."""
        return attach_and_watch(self._telemetry, handler, self.watch_if_needed)

    # -- inside -----------------------------------------------------------------------------

    async def _tokenize_until(self, content: object, deadline: float | None) -> tuple[int, ...]:
        try:
            async with asyncio.timeout_at(
                None if deadline is None else deadline - self.pending.clock() + self._loop.time()
            ):
                return await self.tokenize(content, True)
        except TimeoutError:
            raise DeadlineExceededError(
                "the time was over before the chat could be read; raise timeout"
            ) from None

    async def _ask(self, method: str, params: list[Any]) -> Any:
        """Have a question answered; over the next link, if this one is lost and it replays."""
        self.pending.check_open()
        answer: asyncio.Future[Any] = self._loop.create_future()

        numbers = self.pending.new_numbers(1)
        question = Question(
            number=numbers[0],
            method=method,
            params=params,
            end=ending_of(answer),
            n_bytes=bytes_of(*params),
        )
        self.pending.add(question)
        try:
            return await answer
        except asyncio.CancelledError:
            self.pending.cancel(numbers)
            raise

    def _restore(self, link: Link, prefixes: list[tuple[object, str, object]]) -> None:
        """Put there again what was kept. Prompts that begin so wait for it, as at first."""
        for content, name, namespace in prefixes:
            with suppress(ConnectionLostError):
                params = write_add_prefix(content, name, namespace)
                link.start_call("add_prefix", params, partial(self._restored_one, name))
                self._n_restoring += 1
                self._restored.clear()

    def _undo_added(self, namespace: object, added: asyncio.Future[Any]) -> None:
        """Nobody waits for it any more, and it may be there all the same."""
        link = self.pending.link
        if not added.cancelled() and added.exception() is None and link is not None:
            with suppress(PybatcherError):
                name = prefix_info_from_wire(added.result()).name
                params = write_remove_prefix(name, namespace)
                link.start_call("remove_prefix", params, lambda _error, _result: None)

    def _restored_one(self, name: str, error: PybatcherError | None, _result: Any) -> None:
        if error is not None and not isinstance(error, ConnectionLostError):
            _LOGGER.warning("the prefix %r could not be added again: %s", name, error)
        self._n_restoring -= 1
        if not self._n_restoring:
            self._restored.set()


def attach_and_watch(
    telemetry: Telemetry, handler: Handler, watch_if_needed: Callable[[], None]
) -> Callable[[], None]:
    """Attach a handler to events that come from elsewhere; what detaches it.

    watch_if_needed: called when handlers have come or gone.
    """
    detach = telemetry.attach(handler)
    watch_if_needed()

    def detach_and_unwatch() -> None:
        detach()
        watch_if_needed()

    return detach_and_unwatch


_NAMES = ("prompt", "messages")


def _plain(value: Any) -> Any:
    """Return arrays and tensors as lists, also in a list; the rest is for the other end to judge.

    Raises InvalidRequestError for an array that is too large.
    """
    name = "a list of token ids"
    with REQUEST.reading(name, value, "readable"):
        if isinstance(value, (list, tuple)):
            return [ASKED.listed(one, name) for one in value]
        return ASKED.listed(value, name)
