"""Frames: msgpack arrays back to back on a stream, from bytes and to bytes, within limits.

A header of 5 bytes may claim 2**32 elements, and msgpack allocates memory for the claim. So a frame
is first skipped (`Unpacker.skip`), which finds its end and builds nothing. It is built only when
all its bytes have come: then every claim in it is true. `frame_head.py` reads the claims of
incomplete frames.

Bytes that cannot be a frame end the stream, because the beginning of the next frame is unknown.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cached_property
from typing import Any, NamedTuple

import msgpack

from .frame_head import FrameHead
from .limits import Limits

__all__ = ["Fault", "FrameReader", "FrameWriter"]

SLICE = 65536
"""Bytes given to the parser at a time, so that its buffer stays small."""

_LOOK = 2**20  # bytes of an incomplete frame after which the free memory is read again
_COPIES = 3  # of a frame's bytes, while it is built
_RESERVE = 2**22  # bytes of free memory that are left to others

_SMALL = 2048
"""Bytes of a frame up to which counting is faster than parsing."""

_NOT_CONTAINERS = bytes(b for b in range(256) if not (0x80 <= b <= 0x9F or 0xDC <= b <= 0xDF))
_BIG_MAP = re.compile(rb"\xdf\x00[\x01-\x7f]")  # the header of a map of 2**16 pairs or more
_OPEN_ARRAY = b"\x91"  # the header of an array of one element


class Fault(NamedTuple):
    """The reason why no more frames of a stream can be read."""

    reason: str
    msgid: int | None
    """The msgid of the faulty frame if it is a Request and the id can be read; else None."""


class MalformedFrameError(Exception):
    """A frame that cannot be built, or exceeds a limit."""


def _height_of_parser() -> int:
    """Return the number of nested containers that the parser can have open."""
    parser = msgpack.Unpacker()
    parser.feed(_OPEN_ARRAY * 65536)
    try:
        parser.skip()
    except msgpack.StackError:
        return int(parser.tell())
    except msgpack.OutOfData:
        pass
    raise ImportError("pybatcher.sidecar needs msgpack with its compiled extension")


_HEIGHT = _height_of_parser()


class _Builder:
    """Builds frames of complete bytes. Raises MalformedFrameError for a frame beyond a limit."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._max_frame, self._max_depth = limits.max_frame, limits.max_depth
        # With that many arrays around a frame, the parser's own limit equals `max_depth` of the
        # frame.
        self._around = _OPEN_ARRAY * (_HEIGHT - limits.max_depth)
        self._options: dict[str, Any] = {
            "raw": False,
            "unicode_errors": "surrogateescape",
            "strict_map_key": False,
            # msgpack's Timestamps can share a hash as keys, which takes n**2 time for a map
            "timestamp": 1,
            "max_array_len": limits.max_elements,
            "max_map_len": limits.max_pairs,
        }
        # The heaviest byte is an empty container in another: it weighs 9. Shorter frames are
        # never too heavy.
        self._most_simple = min(SLICE, limits.max_weight // 9)

    def check(self, frame: bytes) -> None:
        """Raise MalformedFrameError for a well-formed frame beyond a limit.

        The frame is built only if its bytes leave doubt.
        """
        limits, n_bytes = self._limits, len(frame)
        self._check_size_and_depth(frame)
        if (
            n_bytes > limits.max_elements
            or (9 * n_bytes > limits.max_weight and self._most_weight(frame) > limits.max_weight)
            or (n_bytes > 2 * limits.max_pairs and self._may_have_big_map(frame))
        ):
            self.build(frame)

    def build(self, frame: bytes) -> list[Any]:
        """Return the array of these bytes, which must be exactly one msgpack object."""
        self._check_size_and_depth(frame)
        try:
            if len(frame) <= self._most_simple:
                self._parser.feed(frame)
                built = self._parser.unpack()
            else:
                hook = self._weighing_hook()
                built = msgpack.unpackb(frame, list_hook=hook, object_hook=hook, **self._options)
        except MalformedFrameError:
            raise
        except Exception as error:  # hostile frames raise exceptions of many types
            self.__dict__.pop("_parser", None)  # the parser may have stopped in the middle
            reason = f"{type(error).__name__}: {error}"[:200]
            raise MalformedFrameError(f"cannot be read: {reason}") from error
        if type(built) is not list:
            raise MalformedFrameError("a frame must be an array")
        return built

    @cached_property
    def _parser(self) -> Any:
        """The parser of small frames, used many times. It takes 50 KB: made on first use."""
        return msgpack.Unpacker(read_size=4096, **self._options)

    def _check_size_and_depth(self, frame: bytes) -> None:
        n_bytes, max_depth = len(frame), self._max_depth
        if n_bytes > self._max_frame:
            raise MalformedFrameError(f"a frame of {n_bytes} bytes; max_frame is {self._max_frame}")
        # The first test counts the bytes that could open a container, whether they do or not.
        if n_bytes <= _SMALL and len(frame.translate(None, _NOT_CONTAINERS)) <= max_depth:
            return
        if self._is_too_deep(frame):
            raise MalformedFrameError(f"nested deeper than max_depth = {max_depth}")

    def _is_too_deep(self, frame: bytes) -> bool:
        n_bytes = len(self._around) + len(frame)
        parser = msgpack.Unpacker(read_size=n_bytes, max_buffer_size=n_bytes)
        parser.feed(self._around)
        parser.feed(frame)
        try:
            parser.skip()
        except msgpack.StackError:
            return True
        except msgpack.OutOfData:
            pass  # the arrays around the frame are incomplete
        return False

    def _most_weight(self, frame: bytes) -> int:
        return len(frame) + 8 * len(frame.translate(None, _NOT_CONTAINERS))

    def _may_have_big_map(self, frame: bytes) -> bool:
        return self._limits.max_pairs < 2**16 or _BIG_MAP.search(frame) is not None

    def _weighing_hook(self) -> Callable[[Any], Any]:
        """Return a function to be called with each container that is built."""
        limit = self._limits.max_weight
        weight = 0

        def weigh(container: Any) -> Any:
            nonlocal weight
            weight += 8 + len(container)
            if weight > limit:
                raise MalformedFrameError(
                    f"more than {limit} elements in a frame, a container counting as 8 more"
                )
            return container

        return weigh


class FrameReader:
    """Splits bytes into frames as they come. After a fault it reads no more."""

    def __init__(self, limits: Limits) -> None:
        self.fault: Fault | None = None
        self._limits = limits
        self._builder = _Builder(limits)
        self._begun = bytearray()  # the bytes so far of an incomplete frame
        self._head: FrameHead | None = None  # head of that frame
        self._start_over()

    def read(self, data: bytes) -> list[list[Any]]:
        """Return the frames that `data` completes, in order, up to a fault."""
        frames: list[list[Any]] = []
        if len(data) <= SLICE:
            if self.fault is None:
                self._read_slice(bytes(data), frames)
            return frames
        for start in range(0, len(data), SLICE):
            if self.fault is not None:
                break
            self._read_slice(bytes(data[start : start + SLICE]), frames)
        return frames

    def _start_over(self) -> None:
        """Make a new parser, since one that parsed a long text keeps its memory."""
        self._parser = msgpack.Unpacker(
            read_size=4096, max_buffer_size=self._limits.max_frame + 2 * SLICE
        )
        self._n_fed = 0

    def _read_slice(self, data: bytes, frames: list[list[Any]]) -> None:
        parser = self._parser
        offset = self._n_fed  # offset of `data` in the parser's input
        start, size = 0, len(data)
        parser.feed(data)
        self._n_fed = offset + size
        while start < size:
            try:
                parser.skip()
            except msgpack.OutOfData:
                self._keep(data[start:])
                return
            except (msgpack.UnpackException, ValueError) as error:
                what = f"no msgpack: {type(error).__name__}"
                self._fail(what, bytes(self._begun) + data[start:])
                return
            end = parser.tell() - offset
            frame = data[start:end]
            if self._begun:
                frame = bytes(self._begun) + frame
            try:
                frames.append(self._builder.build(frame))
            except MalformedFrameError as error:
                self._fail(str(error), frame)
                return
            if self._begun:
                self._begun = bytearray()
                self._head = None
            start = end
        if self._n_fed > SLICE:
            self._start_over()

    def _keep(self, data: bytes) -> None:
        """Keep `data`, which belongs to an incomplete frame."""
        is_longer = (len(self._begun) + len(data)) // _LOOK > len(self._begun) // _LOOK
        self._begun += data
        if self._head is None:
            self._head = FrameHead(self._limits)
        reason = self._head.read_on(self._begun)
        if reason is None and len(self._begun) >= self._limits.max_frame:
            reason = f"a frame of more than max_frame = {self._limits.max_frame} bytes"
        if reason is None and is_longer:
            reason = self._lacks_memory()
        if reason is not None:
            self._end(Fault(reason, self._head.msgid))

    def _lacks_memory(self) -> str | None:
        """Return why the incomplete frame takes too much memory, or None."""
        look = self._limits.free_memory
        free = None if look is None else look()
        if free is None or _COPIES * len(self._begun) + _RESERVE <= free:
            return None
        return (
            f"a frame of more than {len(self._begun)} bytes, and {free} bytes of memory are left; "
            "send less at a time, or again later"
        )

    def _fail(self, reason: str, frame: bytes) -> None:
        """End the stream with a faulty whole frame. Its head may provide a better reason."""
        head = FrameHead(self._limits)
        reason = head.read_on(frame) or reason
        self._end(Fault(reason, head.msgid))

    def _end(self, fault: Fault) -> None:
        self.fault = fault
        self._begun = bytearray()
        self._start_over()


class FrameWriter:
    """Encodes frames, with one msgpack.Packer for many."""

    def __init__(self, limits: Limits) -> None:
        self._builder = _Builder(limits)
        self._start_over()

    def write(self, frame: tuple[Any, ...]) -> bytes:
        """Return the frame as bytes.

        Raises TypeError, ValueError or OverflowError for a value that msgpack cannot encode.
        """
        data: bytes = self._pack(frame)
        if len(data) > SLICE:
            self._start_over()
        return data

    def refusal(self, data: bytes) -> str | None:
        """Return why a reader with these limits would refuse a written frame, or None."""
        try:
            self._builder.check(data)
        except MalformedFrameError as error:
            return str(error)
        return None

    def _start_over(self) -> None:
        """Make a new packer, since one that packed a long frame keeps its memory."""
        self._pack = msgpack.Packer(unicode_errors="surrogateescape", buf_size=4096).pack
