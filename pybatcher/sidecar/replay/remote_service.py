"""`RemoteService`: a `CallService` whose calls are served at the other end of a link.

The front process has one between its clients and the worker, and a `Client` has one between its
callers and the sidecar.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import fields, is_dataclass, replace
from functools import partial
from typing import Any, TypeVar

from typing_extensions import override

from ...calls.arguments import (
    MOST_IDS,
    check_ids,
    check_name,
    check_timeout,
    is_chat,
    merge_params,
)
from ...calls.backpressure import CURRENT_BACKPRESSURE
from ...calls.call import Call, CallOptions, CallService, Messages, Prompt, Question
from ...calls.chat_settings import ChatSettings
from ...calls.composed.bounded import map_bounded
from ...calls.questions import (
    AddPrefix,
    Describe,
    ListPrefixes,
    RemovePrefix,
    Tokenize,
)
from ...calls.reply import Reply
from ...calls.telemetry import Handler, Telemetry
from ...errors import (
    ConnectionLostError,
    DeadlineExceededError,
    PybatcherError,
    RequestTooLongError,
)
from ...errors.checks import REQUEST
from ...scheduling import own_copy
from ..protocol.codecs import Codec, codec_of
from ..protocol.wire import event_from_wire, read_content
from ..protocol.wire_fields import ASKED
from ..protocol.wire_images import PackedImage, has_images, pack_images
from .journal import PendingGeneration, PendingQuestion, bytes_of
from .link import Link, ending_of
from .pending_calls import PendingCalls

__all__ = ["RemoteService", "attach_and_watch", "plain_fields"]

_LOGGER = logging.getLogger("pybatcher")
T = TypeVar("T")
_LEAST_TIMEOUT = 1e-3  # seconds
_ITEMS_OF_PART = 1024  # texts of one question
_IDS_OF_PART = 2**15  # token ids of one question, and texts
_PARTS_AT_ONCE = 2
_ANY_TOKEN = 2**63  # only the other end knows the size of the vocabulary


class RemoteService(CallService):
    """Sends calls and questions over a link, and adds prefixes again after the link was lost."""

    def __init__(self, pending: PendingCalls, telemetry: Telemetry | None = None) -> None:
        """Make a service over `pending`. telemetry: has the handlers of events; None: a new one."""
        self._loop = asyncio.get_running_loop()
        self.pending = pending
        self._prefixes: list[AddPrefix] = []
        self._successor: RemoteService | None = None
        self._telemetry = telemetry or Telemetry(pending.clock)
        self._is_watching = False
        self._n_restoring = self._n_restored = 0
        self._restored = asyncio.Event()
        self._restored.set()

    # -- for the owner of the link ----------------------------------------------------------

    def link_made(self, link: Link) -> None:
        """Use a new link: add the prefixes again, ask for events, and send the waiting calls."""
        self._is_watching = False
        self._restore(link, self._prefixes)
        self.pending.link_made(link)
        self.watch_if_needed()

    def link_lost(self, error: PybatcherError, **facts: bool) -> bool:
        """Drop the link that was lost. Arguments and result: as in `PendingCalls.link_lost`."""
        return self.pending.link_lost(error, **facts)

    def watch_if_needed(self) -> None:
        """Ask the other end for events if there are handlers, else ask it to send none."""
        wanted, link = self._telemetry.has_handlers, self.pending.link
        if link is not None and wanted != self._is_watching:
            self._is_watching = wanted
            with suppress(ConnectionLostError):
                link.start_call("watch", [wanted], lambda _error, _result: None)

    def take_prefixes_of(self, other: RemoteService) -> None:
        """Take over the prefixes of another service, including those being added or removed now.

        They are added over the link of this service, or over its next one.
        """
        other._successor = self
        self._prefixes += other._prefixes
        if (link := self.pending.link) is not None:
            self._restore(link, other._prefixes)

    def take_notification(self, method: str, params: list[Any]) -> bool:
        """Emit the event of a notification. Return False if the notification is no event."""
        if method != "event":
            return False
        with suppress(PybatcherError):  # an event of a newer version is dropped
            self._telemetry.emit(event_from_wire(params))
        return True

    # -- calls ------------------------------------------------------------------------------

    @override
    async def submit(self, call: Call, reply: Reply) -> range:
        self.pending.check_open()
        now = self.pending.clock()
        deadline = _deadline(now, call.timeout)
        check_name("namespace", call.namespace)
        params = merge_params(call.params, call.sampling, vocab_size=_ANY_TOKEN)
        content = call.content
        if isinstance(content, (list, tuple)) and len(content) > MOST_IDS:
            await self._check_ids("prompt" if call.chat is None else "messages", content)
        images: tuple[PackedImage, ...] = ()
        if call.chat is not None and has_images(call.content):
            # Their tokens are those of one worker, so that a replay sends the messages again.
            content, images = await asyncio.to_thread(pack_images, call.content)
            call = replace(call, content=read_content(content, True))
        # A template may read the clock: render it once, so that a replay has the same tokens.
        elif call.chat is not None and self.pending.replays and is_chat(call.content):
            tokens = await self._tokenize_until(call.content, call.chat, deadline)
            call = replace(call, content=tokens)
        else:
            call = replace(call, content=read_content(call.content, call.chat is not None))
        n_bytes = bytes_of(replace(call, params=None, sampling={}), params)
        ids = self.pending.new_numbers(params.n)
        reply.expect(params.n)
        times = {"submitted": now, "deadline": deadline, "n_bytes": n_bytes, "images": images}
        self.pending.add(*PendingGeneration.of_samples(call, params, reply, ids, **times))
        return ids

    @override
    def cancel(self, request_ids: range) -> None:
        self.pending.cancel(request_ids)

    @override
    async def ask(self, question: Question[T]) -> T:
        for name in _SEQUENCES.intersection(getattr(question, "__slots__", ())):
            await self._check_ids(name, getattr(question, name))
        question = plain_fields(question)
        images: tuple[PackedImage, ...] = ()
        if isinstance(question, Tokenize) and question.chat and has_images(question.content):
            content, images = await asyncio.to_thread(pack_images, question.content)
            packed: Any = replace(question, content=content)
            question = packed
        codec = codec_of(question)
        answer: T
        listed = next((name for name in _LISTED if hasattr(question, name)), None)
        if listed is not None:
            parts = _parts_of(getattr(question, listed))
            if len(parts) > 1:
                answer = await self._ask_in_parts(question, listed, parts)
                return answer
        params = codec.write(question)
        if isinstance(question, AddPrefix):
            answer = await self._add_prefix(codec, question, params)
            return answer
        if isinstance(question, RemovePrefix):
            # If it were cancelled half way, it would be unknown whether the prefix was removed.
            return await asyncio.shield(self._remove_prefix(codec, question, params))
        if isinstance(question, ListPrefixes):
            answer = await self._list_prefixes(codec, params)
            return answer
        answer = await self._ask_one(codec, question, params, images)
        return answer

    @override
    def attach(self, handler: Handler) -> Callable[[], None]:
        return attach_and_watch(self._telemetry, handler, self.watch_if_needed)

    # -- inside -----------------------------------------------------------------------------

    async def _check_ids(self, field: str, ids: object) -> None:
        """Check the number of token ids before they are copied. Raises RequestTooLongError."""
        try:
            check_ids(field, ids, MOST_IDS)
        except RequestTooLongError:
            limits = (await self.ask(Describe())).get("limits", {})
            check_ids(field, ids, limits.get("max_sequence_length", 0))

    async def _ask_one(
        self,
        codec: Codec[Question[Any]],
        question: Question[Any],
        params: list[Any],
        images: tuple[PackedImage, ...] = (),
    ) -> Any:
        timeout = question.timeout if isinstance(question, CallOptions) else None
        return codec.answer_from_wire(await self._ask(codec.method, params, timeout, images))

    async def _ask_in_parts(self, question: Question[Any], name: str, parts: list[range]) -> Any:
        """Ask a long question by several short ones, and return all their answers in order.

        name: the field of the question that is divided. Reading, writing and packing a
        question takes the event loop, and so delays all streams.
        """
        now = self.pending.clock()
        whole: Any = question
        deadline = _deadline(now, whole.timeout)
        items = getattr(question, name)

        async def ask(part: range) -> Any:
            timeout = whole.timeout
            if deadline is not None:
                timeout = max(deadline - self.pending.clock(), _LEAST_TIMEOUT)
            given: Any = {name: items[part.start : part.stop], "timeout": timeout}
            own = replace(whole, **given)
            codec = codec_of(own)
            try:
                return await self._ask_one(codec, own, codec.write(own))
            except PybatcherError as error:
                raise _moved(error, name, part.start) from None

        answers = await map_bounded(ask, parts, _PARTS_AT_ONCE)
        return [one for answer in answers for one in answer]

    async def _tokenize_until(
        self, content: Prompt | Messages, chat: ChatSettings, deadline: float | None
    ) -> tuple[int, ...]:
        try:
            async with asyncio.timeout_at(
                None if deadline is None else deadline - self.pending.clock() + self._loop.time()
            ):
                return await self.ask(Tokenize(content=content, chat=chat))
        except TimeoutError:
            raise DeadlineExceededError(
                "the time was over before the chat could be read; raise timeout"
            ) from None

    async def _add_prefix(
        self, codec: Codec[AddPrefix], question: AddPrefix, params: list[Any]
    ) -> Any:
        """Add a prefix, and remember it, so that it is added again over the next link."""
        deadline = _deadline(self.pending.clock(), question.timeout)
        asking = asyncio.ensure_future(self._ask(codec.method, params, question.timeout))
        try:
            info = codec.answer_from_wire(await asyncio.shield(asking))
        except asyncio.CancelledError:
            asking.add_done_callback(partial(self._undo_added, question))
            raise
        if self._successor is not None:  # a successor was set during the question
            if deadline is not None:
                left = max(deadline - self.pending.clock(), _LEAST_TIMEOUT)
                question = replace(question, timeout=left)
            return await self._successor.ask(question)
        self._prefixes.append(replace(question, name=str(info.name), timeout=None))
        return info

    async def _list_prefixes(self, codec: Codec[ListPrefixes], params: list[Any]) -> Any:
        """List the prefixes, after all prefixes of a lost link are restored.

        The last one may be restored at the same moment as an answer without it arrives, hence the
        loop.
        """
        while True:
            await self._restored.wait()
            n_restored = self._n_restored
            answer = codec.answer_from_wire(await self._ask(codec.method, params))
            if self._restored.is_set() and self._n_restored == n_restored:
                return answer

    async def _remove_prefix(
        self, codec: Codec[RemovePrefix], question: RemovePrefix, params: list[Any]
    ) -> Any:
        """Remove a prefix, also from the list of prefixes to restore."""
        answer = codec.answer_from_wire(await self._ask(codec.method, params))
        for i, kept in enumerate(self._prefixes):
            if (kept.name, kept.namespace) == (question.name, question.namespace):
                del self._prefixes[i]
                break
        if self._successor is not None:  # the successor has taken the prefix over
            return await self._successor.ask(question)
        return answer

    async def _ask(
        self,
        method: str,
        params: list[Any],
        timeout: float | None = None,  # noqa: ASYNC109
        images: tuple[PackedImage, ...] = (),
    ) -> Any:
        """Send a question and return its result; over the next link too, if calls are replayed."""
        self.pending.check_open()
        now = self.pending.clock()
        answer: asyncio.Future[Any] = self._loop.create_future()

        numbers = self.pending.new_numbers(1)
        self.pending.add(
            PendingQuestion(
                number=numbers[0],
                method=method,
                params=params,
                submitted=now,
                deadline=_deadline(now, timeout),
                end=ending_of(answer),
                n_bytes=bytes_of(*params) + sum(len(image.data) for image in images),
                images=images,
                backpressure=CURRENT_BACKPRESSURE.get(),
            )
        )
        try:
            return await answer
        except asyncio.CancelledError:
            self.pending.cancel(numbers)
            raise
        finally:
            del answer  # the future has the error, whose frames refer to it: a reference cycle

    def _restore(self, link: Link, prefixes: list[AddPrefix]) -> None:
        """Add prefixes again over a new link. Prompts that begin with them wait, as at first."""
        for question in prefixes:
            with suppress(ConnectionLostError):
                codec = codec_of(question)
                restored = partial(self._restored_one, question)
                link.start_call(codec.method, codec.write(question), restored)
                self._n_restoring += 1
                self._restored.clear()

    def _undo_added(self, question: AddPrefix, added: asyncio.Future[Any]) -> None:
        """Remove a prefix that was added after its caller was cancelled."""
        link = self.pending.link
        if not added.cancelled() and added.exception() is None and link is not None:
            with suppress(PybatcherError):
                info = codec_of(question).answer_from_wire(added.result())
                undo = RemovePrefix(name=str(info.name), namespace=question.namespace)
                codec = codec_of(undo)
                link.start_call(codec.method, codec.write(undo), lambda _error, _result: None)

    def _restored_one(
        self, question: AddPrefix, error: PybatcherError | None, _result: Any
    ) -> None:
        if error is not None and not isinstance(error, ConnectionLostError):
            _LOGGER.warning("the prefix %r could not be added again: %s", question.name, error)
        self._n_restoring -= 1
        self._n_restored += 1
        if not self._n_restoring:
            self._restored.set()


def _deadline(now: float, timeout: float | None) -> float | None:
    """Return the time at which a call ends. Raises InvalidRequestError for a bad timeout."""
    checked = check_timeout(timeout)
    return None if checked is None else now + checked


def attach_and_watch(
    telemetry: Telemetry, handler: Handler, watch_if_needed: Callable[[], None]
) -> Callable[[], None]:
    """Attach a handler to events of the other end, and return a function that detaches it.

    watch_if_needed: called after a handler was attached or detached.
    """
    detach = telemetry.attach(handler)
    watch_if_needed()

    def detach_and_unwatch() -> None:
        detach()
        watch_if_needed()

    return detach_and_unwatch


def _parts_of(items: object) -> list[range]:
    """Return the places of the texts of a question, in parts that are read in milliseconds."""
    parts = [range(0)]
    size = 0
    for i, item in enumerate(items if isinstance(items, (list, tuple)) else ()):
        own = len(item) if isinstance(item, (list, tuple)) else 1
        if len(parts[-1]) == _ITEMS_OF_PART or (parts[-1] and size + own > _IDS_OF_PART):
            parts.append(range(i, i))
            size = 0
        parts[-1] = range(parts[-1].start, i + 1)
        size += own
    return parts


def _moved(error: PybatcherError, name: str, start: int) -> PybatcherError:
    """Return an error of a part with the places that its items have in the whole question."""

    def place(found: re.Match[str]) -> str:
        return f"{found[1]}[{int(found[2]) + start}]"

    pattern = re.compile(rf"^({name}|inputs)\[(\d+)\]")
    if error.field is None or start == 0 or not pattern.match(error.field):
        return error
    moved = own_copy(error)
    moved.field = pattern.sub(place, error.field)
    moved.args = (pattern.sub(place, str(error)), *error.args[1:])
    return moved


def _plain(value: Any) -> Any:
    """Return arrays and tensors as lists, also in a list; the other end checks other values.

    Raises InvalidRequestError for an array that is too large.
    """
    name = "a list of token ids"
    with REQUEST.reading(name, value, "readable"):
        if isinstance(value, (list, tuple)):
            if _NO_ARRAYS.issuperset(map(type, value)):  # a million token ids in 20 ms
                return list(value)
            return [ASKED.listed(one, name) for one in value]
        return ASKED.listed(value, name)


def plain_fields(question: Question[T]) -> Question[T]:
    """Return the question with plain lists in its fields, for the wire."""
    if not is_dataclass(question):
        return question
    values = {one.name: getattr(question, one.name) for one in fields(question)}
    plain = {name: _plain(value) for name, value in values.items() if name in _SEQUENCES}
    return replace(question, **plain) if plain else question


_NO_ARRAYS = frozenset({int, str})
_LISTED = ("texts", "continuations")
"""The fields of questions that are divided among several if they are long."""

_SEQUENCES = frozenset({"prompt", "continuations", "texts", "prefix", "token_ids"})
"""The fields of questions that may be arrays, or lists of arrays."""
