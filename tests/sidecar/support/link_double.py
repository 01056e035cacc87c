"""A link whose other end is the test, and a remote over it: answers are given by hand."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from pybatcher.calls.call import Call
from pybatcher.calls.chat_settings import ChatSettings
from pybatcher.calls.reply import Reply
from pybatcher.errors import ConnectionLostError, PybatcherError
from pybatcher.sidecar.replay.link import OnDelta, OnEnd
from pybatcher.sidecar.replay.pending_calls import PendingCalls
from pybatcher.sidecar.replay.remote_service import RemoteService


class LinkDouble:
    """`sent` has what is in flight: id -> (method, params). Times and bytes play no role."""

    def __init__(self) -> None:
        self.sent: dict[int, tuple[str, list[Any]]] = {}
        self.cancelled: list[int] = []
        self.notified: list[tuple[str, list[Any]]] = []
        self._calls: dict[int, tuple[OnDelta | None, OnEnd]] = {}
        self._lost = False

    def start_call(
        self, method: str, params: list[Any], on_end: OnEnd, on_delta: OnDelta | None = None
    ) -> int:
        if self._lost:
            raise ConnectionLostError("gone")
        call_id = len(self.sent) + 1
        self.sent[call_id] = (method, params)
        self._calls[call_id] = (on_delta, on_end)
        return call_id

    def cancel(self, call_id: int) -> None:
        if call_id in self._calls:
            self._calls[call_id] = (None, lambda _error, _result: None)
            self.cancelled.append(call_id)

    def notify(self, method: str, params: list[Any]) -> None:
        self.notified.append((method, params))

    # -- the other end ----------------------------------------------------------------------

    @property
    def in_flight(self) -> list[int]:
        """Ids of calls that somebody waits for."""
        return [i for i in self._calls if i not in self.cancelled]

    def delta(self, call_id: int, text: str, *token_ids: int, **more: Any) -> None:
        on_delta = self._calls[call_id][0]
        if on_delta is not None:
            on_delta({"seq": 1, "text": text, "token_ids": list(token_ids), **more})

    def end(self, call_id: int, result: Any = None, error: PybatcherError | None = None) -> None:
        self._calls.pop(call_id)[1](error, result)

    def finish(self, call_id: int, text: str, *token_ids: int, reason: str = "length") -> None:
        self.end(call_id, completion_map(text, token_ids, reason))

    def lose(self, link_lost: Callable[[PybatcherError], None]) -> None:
        """The worker dies."""
        self._lost = True
        calls, self._calls = self._calls, {}
        for _, on_end in calls.values():
            on_end(ConnectionLostError("gone"), None)
        link_lost(ConnectionLostError("the worker died"))


def completion_map(text: str, token_ids: tuple[int, ...], reason: str = "length") -> dict[str, Any]:
    return {
        "text": text,
        "token_ids": list(token_ids),
        "finish_reason": reason,
        "usage": {"prompt_tokens": 4, "cached_tokens": 0, "completion_tokens": len(token_ids)},
        "timeline": {
            "submitted": 1.0,
            "admitted": 1.5,
            "first_token": 2.0,
            "finished": 3.0,
            "token_times": [2.0] * len(token_ids),
            "preemptions": 0,
            "recomputed_tokens": 0,
        },
    }


def a_call(content: Any = "Once", *, is_chat: bool = False, **sampling: Any) -> Call:
    timeout = sampling.pop("timeout", None)
    return Call(
        priority=0,
        timeout=timeout,
        namespace=None,
        content=content,
        chat=ChatSettings() if is_chat else None,
        params=None,
        sampling=sampling,
    )


def made(remote: RemoteService) -> LinkDouble:
    link = LinkDouble()
    remote.link_made(link)  # type: ignore[arg-type]
    return link


def a_relay(*, replays: bool = True, suspects: bool = False, **more: Any) -> RemoteService:
    return RemoteService(PendingCalls(replays=replays, suspects=suspects, **more))


def opts(link: LinkDouble, call_id: int) -> dict[str, Any]:
    params = link.sent[call_id][1]
    found: dict[str, Any] = params[1] if len(params) > 1 else {}
    return found


async def turn() -> None:
    for _ in range(3):
        await asyncio.sleep(0)


def texts(reply: Reply) -> str:
    return "".join(piece.text for piece in reply.pieces)
