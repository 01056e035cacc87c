"""`Flow`: numbers the deltas of one stream, and merges them for a slow reader. Pure.

A client that requests a `window` gets at most that many deltas that it has not acknowledged.
Further pieces wait, and are sent as one delta (one for each index of `n` > 1) when there is room;
as several if one would be too large. The last places of a window are reserved for the ends of
outputs: with a window above `n`, an end never waits, unless several deltas do.
"""

from __future__ import annotations

from collections import deque
from typing import Any

from ...calls.completion import FinishReason, Piece, TokenLogprob
from ...text.tool_call import ToolCallDelta
from .limits import Limits
from .wire_results import delta_of

__all__ = ["Flow"]


class Flow:
    """Turns pieces into deltas: in order, none lost, `seq` from 1 without gaps.

    window: most deltas that are sent and not acknowledged; None: any number.
    n: number of outputs of the stream.
    most_bytes: most bytes, approximately, of pieces that are merged into one delta.
    """

    def __init__(
        self, *, window: int | None = None, n: int = 1, most_bytes: int = Limits().max_delta
    ) -> None:
        self._window = window
        self._most_bytes = most_bytes
        self._kept_for_ends = 0 if window is None else min(n, window - 1)
        self._last_seq = 0
        self._acknowledged = 0
        self._waiting: dict[int, deque[_Waiting]] = {}  # by index; each item becomes one delta
        self._has_ended = False

    @property
    def is_empty(self) -> bool:
        """True if no piece waits."""
        return not self._waiting

    @property
    def n_waiting(self) -> int:
        """Number of pieces that wait."""
        return sum(one.n_pieces for waiting in self._waiting.values() for one in waiting)

    def push(self, piece: Piece, may_send: bool = True) -> list[dict[str, Any]]:
        """Add a piece. Return the deltas to send now; none if the piece waits.

        may_send: True while the client reads its messages.
        """
        waiting = self._waiting.get(piece.index)
        if waiting is None and may_send and self._has_room(piece.finish_reason is not None):
            return [self._number(piece)]
        if waiting is None:
            waiting = self._waiting[piece.index] = deque()
        n_bytes = _bytes_of(piece)
        if not waiting or waiting[-1].n_bytes + n_bytes > self._most_bytes:
            waiting.append(_Waiting())
        waiting[-1].add(piece, n_bytes)
        return self._take(piece.index) if may_send else []

    def end(self) -> None:
        """Record that no more pieces come: waiting pieces may use the places reserved for ends."""
        self._has_ended = True

    def acknowledge(self, seq: object) -> bool:
        """Process the acknowledgement of all deltas up to `seq`. Return False if it is not new."""
        if type(seq) is not int or seq <= self._acknowledged:
            return False
        self._acknowledged = min(seq, self._last_seq)
        return True

    def take(self) -> list[dict[str, Any]]:
        """Return the deltas that waited and may be sent now."""
        return [delta for index in list(self._waiting) for delta in self._take(index)]

    def _take(self, index: int) -> list[dict[str, Any]]:
        deltas = []
        waiting = self._waiting[index]
        while waiting and self._has_room(self._has_ended or waiting[0].finish_reason is not None):
            deltas.append(self._number(waiting.popleft().as_piece(index)))
        if not waiting:
            del self._waiting[index]
        return deltas

    def _has_room(self, is_end: bool) -> bool:
        if self._window is None:
            return True
        room = self._window - (self._last_seq - self._acknowledged)
        return room > (0 if is_end else self._kept_for_ends)

    def _number(self, piece: Piece) -> dict[str, Any]:
        self._last_seq += 1
        return delta_of(piece, self._last_seq)


class _Waiting:
    """Pieces of one index that are sent as one."""

    __slots__ = (
        "_logprobs",
        "_reasoning",
        "_texts",
        "_token_ids",
        "_tool_calls",
        "finish_reason",
        "n_bytes",
        "n_pieces",
    )

    def __init__(self) -> None:
        self.n_pieces = self.n_bytes = 0
        self._texts: list[str] = []
        self._reasoning: list[str] = []
        self._tool_calls: list[ToolCallDelta] = []
        self._token_ids: list[int] = []
        self._logprobs: list[TokenLogprob] | None = None
        self.finish_reason: FinishReason | None = None

    def add(self, piece: Piece, n_bytes: int) -> None:
        self.n_pieces += 1
        self.n_bytes += n_bytes
        self._texts.append(piece.text)
        self._reasoning.append(piece.reasoning)
        self._tool_calls += piece.tool_calls
        self._token_ids += piece.token_ids
        if piece.logprobs is not None:
            if self._logprobs is None:
                self._logprobs = []
            self._logprobs += piece.logprobs
        self.finish_reason = piece.finish_reason

    def as_piece(self, index: int) -> Piece:
        return Piece(
            "".join(self._texts),
            tuple(self._token_ids),
            None if self._logprobs is None else tuple(self._logprobs),
            self.finish_reason,
            index,
            "".join(self._reasoning),
            tuple(self._tool_calls),
        )


def _bytes_of(piece: Piece) -> int:
    """Return the bytes that a piece takes on the wire, or somewhat more."""
    total = 4 * (len(piece.text) + len(piece.reasoning)) + 5 * len(piece.token_ids)
    for one in piece.logprobs or ():
        total += 20 + 15 * len(one.top)
    return total + (4 * len(repr(piece.tool_calls)) if piece.tool_calls else 0)
