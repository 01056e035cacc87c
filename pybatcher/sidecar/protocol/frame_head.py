"""`FrameHead`: reads the beginning of a frame that is incomplete or cannot be read.

An incomplete frame may claim a text of 4 GiB, or be nested far too deep. Few of its bytes have
come, but a waiting peer should get the answer now and not when `max_frame` is reached. The answer
needs the msgid, which is in the first bytes. So the headers of a frame's first elements are read
one by one, in Python. A frame that comes whole and is well-formed is never read like this.
"""

from __future__ import annotations

from typing import NamedTuple

from .limits import Limits

__all__ = ["MAX_MSGID", "FrameHead"]

MOST_HEADERS = 256
"""The most elements of a frame whose headers are read. Beyond them, only its limits apply."""

MAX_MSGID = 2**32 - 1
"""The greatest msgid: a uint32."""


class _Header(NamedTuple):
    """The meaning of the first byte of an element.

    kind: "scalar", "bytes" (text, binary, extension), "array", "map" or "never".
    width: bytes of the length or count that follows; 0 if `amount` has it.
    amount: bytes of the body, or elements; with a length: bytes to add to it.
    """

    kind: str
    width: int
    amount: int


def _header(byte: int) -> _Header:
    if byte < 0x80 or byte >= 0xE0 or byte in (0xC0, 0xC2, 0xC3):
        return _Header("scalar", 0, 0)
    if byte < 0x90:
        return _Header("map", 0, byte - 0x80)
    if byte < 0xA0:
        return _Header("array", 0, byte - 0x90)
    if byte < 0xC0:
        return _Header("bytes", 0, byte - 0xA0)
    return _LONG_HEADERS[byte]


_LONG_HEADERS = {
    0xC1: _Header("never", 0, 0),
    **{0xC4 + i: _Header("bytes", 1 << i, 0) for i in range(3)},  # binary
    **{0xC7 + i: _Header("bytes", 1 << i, 1) for i in range(3)},  # extension, with its type
    **{0xCA + i: _Header("scalar", 0, 4 << i) for i in range(2)},  # float
    **{0xCC + i: _Header("scalar", 0, 1 << i) for i in range(4)},  # unsigned
    **{0xD0 + i: _Header("scalar", 0, 1 << i) for i in range(4)},  # signed
    **{0xD4 + i: _Header("bytes", 0, 1 + (1 << i)) for i in range(5)},  # extension, fixed
    **{0xD9 + i: _Header("bytes", 1 << i, 0) for i in range(3)},  # text
    **{0xDC + i: _Header("array", 2 << i, 0) for i in range(2)},
    **{0xDE + i: _Header("map", 2 << i, 0) for i in range(2)},
}
_HEADERS = tuple(_header(byte) for byte in range(256))


class FrameHead:
    """Reads the head of a frame as it grows. msgid: of a Request, once it can be read."""

    def __init__(self, limits: Limits) -> None:
        self.msgid: int | None = None
        self._limits = limits
        self._position = 0  # position of the next header; beyond the end while a body is incomplete
        self._n_left = MOST_HEADERS
        self._open: list[int] = []  # elements still to come, of each container that is open
        self._is_request = False

    def read_on(self, frame: bytes | bytearray) -> str | None:
        """Read the new bytes. Return the fault of the frame, or None. frame: all bytes so far."""
        while self._n_left > 0 and self._position < len(frame):
            if self._position > 0 and not self._open:
                return None  # the whole frame is read
            header = _HEADERS[frame[self._position]]
            if self._position == 0 and header.kind != "array":
                return "a frame must be an array"
            body = self._position + 1 + header.width
            if len(frame) < body:
                return None
            amount = header.amount
            if header.width:
                amount += int.from_bytes(frame[self._position + 1 : body], "big")
            fault = self._refusal(header.kind, amount, body)
            if fault is not None:
                return fault
            if len(self._open) == 1 and header.kind == "scalar":
                if len(frame) < body + amount:
                    return None  # it might be the msgid
                self._of_the_frame(frame[self._position], frame[body : body + amount])
            self._n_left -= 1
            self._step(header.kind, amount, body)
        return None

    def _refusal(self, kind: str, amount: int, body: int) -> str | None:
        limits = self._limits
        if kind == "never":
            return "a byte 0xc1, which msgpack never has"
        if kind in ("array", "map") and len(self._open) >= limits.max_depth:
            return f"nested deeper than max_depth = {limits.max_depth}"
        if kind == "array" and amount > limits.max_elements:
            return f"an array of {amount} elements; max_elements is {limits.max_elements}"
        if kind == "map" and amount > limits.max_pairs:
            return (
                f"a map of {amount} pairs; the most is {limits.max_pairs}, "
                "a sixteenth of max_elements"
            )
        if kind == "bytes" and body + amount > limits.max_frame:
            return f"a text or binary of {amount} bytes; max_frame is {limits.max_frame}"
        return None

    def _of_the_frame(self, byte: int, body: bytes | bytearray) -> None:
        """Process a scalar of the frame's own array: first the type, then the msgid."""
        is_type, is_msgid = self._n_left == MOST_HEADERS - 1, self._n_left == MOST_HEADERS - 2
        if is_type:
            self._is_request = byte == 0
        elif is_msgid and self._is_request:
            value = byte if byte < 0x80 else -1
            if 0xCC <= byte <= 0xD3:
                value = int.from_bytes(body, "big", signed=byte >= 0xD0)
            self.msgid = value if 0 <= value <= MAX_MSGID else None

    def _step(self, kind: str, amount: int, body: int) -> None:
        if self._open:
            self._open[-1] -= 1
        if kind == "array" or kind == "map":
            self._open.append(amount if kind == "array" else 2 * amount)
            self._position = body
        else:
            self._position = body + amount
        while self._open and self._open[-1] == 0:
            self._open.pop()
