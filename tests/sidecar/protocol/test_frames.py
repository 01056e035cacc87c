"""Frames out of bytes and into bytes: however they are cut, and only within the limits."""

from __future__ import annotations

import tracemalloc
from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgpack_values import PARAMS, cut, depth_of

from pybatcher.sidecar.protocol.frames import SLICE, FrameReader, FrameWriter
from pybatcher.sidecar.protocol.limits import Limits

REQUEST = b"\x94\x00\x07\xa1g"  # [0, 7, "g", ...
SMALL = Limits(max_frame=300_000, max_depth=5, max_elements=1600)


def fault_in(data: bytes, limits: Limits = SMALL) -> str:
    """Why `data`, which is at fault, is. The msgid 7 must have been read."""
    reader = FrameReader(limits)
    assert reader.read(data) == []
    assert reader.fault is not None
    assert reader.fault.msgid == 7
    return reader.fault.reason


def peak_of_reading(data: bytes, limits: Limits) -> int:
    """Bytes of memory that reading took at most, beside `data`."""
    reader = FrameReader(limits)
    tracemalloc.start()
    try:
        reader.read(data)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.slow
@given(st.lists(PARAMS, max_size=6), st.data())
def test_frames_are_the_same_however_the_stream_is_cut(frames: list[Any], data: Any) -> None:
    stream = b"".join(map(msgpack.packb, frames))
    reader = FrameReader(Limits())
    assert [f for piece in cut(stream, data.draw) for f in reader.read(piece)] == frames
    assert reader.fault is None


@pytest.mark.slow
@given(st.lists(PARAMS, max_size=6))
def test_frames_are_the_same_byte_by_byte_and_all_at_once(frames: list[Any]) -> None:
    stream = b"".join(map(msgpack.packb, frames))
    reader = FrameReader(Limits())
    assert [f for byte in stream for f in reader.read(bytes([byte]))] == frames
    assert FrameReader(Limits()).read(stream) == frames


@pytest.mark.parametrize("n_bytes", [SLICE - 20, SLICE - 10, SLICE, SLICE + 10, 5 * SLICE])
def test_frames_of_about_a_slice_and_more(n_bytes: int) -> None:
    frames = [["a" * n_bytes], [b"b" * n_bytes, {"c": [1.5]}], [], ["d"]] * 2
    stream = b"".join(map(msgpack.packb, frames))
    for step in (1000, SLICE - 1, SLICE, 3 * SLICE + 7, len(stream)):
        reader = FrameReader(Limits())
        pieces = [stream[i : i + step] for i in range(0, len(stream), step)]
        assert [f for piece in pieces for f in reader.read(piece)] == frames


def test_many_frames_at_once() -> None:
    frames = [[2, "delta", [i, {"text": "x" * (i % 9)}]] for i in range(20_000)]
    assert FrameReader(Limits()).read(b"".join(map(msgpack.packb, frames))) == frames


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_bytes_may_come_in_any_buffer(kind: Any) -> None:
    assert FrameReader(Limits()).read(kind(msgpack.packb([1, "a"]))) == [[1, "a"]]


@given(PARAMS, st.integers(3, 6), st.booleans())
def test_containers_within_each_other_are_counted_exactly(
    frame: list[Any], max_depth: int, is_large: bool
) -> None:
    frame = [*frame, "a" * (5000 if is_large else 0)]
    limits = Limits(max_depth=max_depth)
    reader = FrameReader(limits)
    data = msgpack.packb(frame)
    if depth_of(frame) <= max_depth:
        assert reader.read(data) == [frame]
        assert FrameWriter(limits).refusal(data) is None
    else:
        assert reader.read(data) == []
        assert "nested deeper" in str(FrameWriter(limits).refusal(data))
    assert (reader.fault is not None) == (depth_of(frame) > max_depth)


@pytest.mark.parametrize(
    "level", [b"\x91", b"\x81\x01", b"\xdd\0\0\0\x01"], ids=["array", "map", "long"]
)
@pytest.mark.parametrize("core", [b"\x01", b"\x90", b"\x80", b"\xd9\xff" + b"a" * 255, b""])
@pytest.mark.parametrize(
    "before", [b"\x94\x00\x07\xa1g", b"\x94\x00\x07\xda\x10\x00" + b"a" * 4096]
)
def test_a_nesting_bomb(level: bytes, core: bytes, before: bytes) -> None:
    is_container = core in (b"\x90", b"\x80")
    for depth in (32, 33, 34, 100, 500, 1023, 1024, 1025, 2000):
        data = before + level * (depth - 1 - is_container) + core
        reader = FrameReader(Limits())
        if depth > 32:
            assert reader.read(data) == [], depth
            assert reader.fault is not None, depth
            assert reader.fault.msgid == 7, depth
        else:
            assert len(reader.read(data)) == (core != b""), depth
            assert reader.fault is None, depth


@pytest.mark.parametrize("claim", [b"\xdd\0\x10\0\0", b"\xdf\0\0\xff\xff", b"\xdc\xff\xff"])
@pytest.mark.parametrize("n_before", [0, 300])
def test_what_headers_claim_costs_nothing(claim: bytes, n_before: int) -> None:
    begin = b"\x94\x00\x07\xdc" + (n_before + 1).to_bytes(2, "big") + b"\x01" * n_before
    assert peak_of_reading(begin + claim * 1000, Limits()) < 200_000
    # As deep as it may be, and further arrays beside each other at the bottom.
    flood = begin + claim * 29 + (b"\x92" + claim) * 1000
    assert peak_of_reading(flood, Limits()) < 200_000
    assert peak_of_reading(begin + b"\xdb\xff\xff\xff\xff" + b"a" * 1000, Limits()) < 200_000


def test_a_frame_of_the_most_bytes_is_taken_and_one_more_is_not() -> None:
    def frame(n_bytes: int) -> bytes:
        return b"\x94\x00\x07\xa1g\xdb" + (n_bytes - 10).to_bytes(4, "big") + b"a" * (n_bytes - 10)

    for size in (1000, SLICE, 2 * SLICE + 5):
        limits = Limits(max_frame=size)
        assert len(FrameReader(limits).read(frame(size))) == 1
        assert "max_frame" in fault_in(frame(size + 1), limits)
        reader, data = FrameReader(limits), frame(size)
        assert sum(len(reader.read(data[i : i + 99])) for i in range(0, size, 99)) == 1


def test_a_frame_of_many_small_elements_ends_where_max_frame_is_reached() -> None:
    reader = FrameReader(Limits(max_frame=100_000))
    assert reader.read(b"\x94\x00\x07\xa1g" + b"\xdd\0\x0f\xff\xff" + b"\x01" * 99_989) == []
    assert reader.fault is None
    assert reader.read(b"\x01") == []
    assert reader.fault == (f"a frame of more than max_frame = {100_000} bytes", 7)


@pytest.mark.parametrize("value", [[1] * 1601, dict.fromkeys(range(101), 1), [[1.0] * 1601]])
def test_arrays_and_maps_have_a_most(value: Any) -> None:
    assert "the most is 100" in (fault := fault_in(msgpack.packb([0, 7, "g", value]))) or (
        "max_elements is 1600" in fault
    )
    late = [0, 7, *[0] * 300, value]  # behind what is read one by one
    assert "exceeds max" in fault_in(msgpack.packb(late))


def test_the_most_an_array_and_a_map_may_have() -> None:
    frame = [[1] * 1500, dict.fromkeys(range(100), 1)]
    assert FrameReader(SMALL).read(msgpack.packb(frame)) == [frame]


def test_a_frame_as_a_whole_has_a_most_by_what_it_takes() -> None:
    scalars = [0, 7, *[[1] * 1000] * 3]
    assert FrameReader(SMALL).read(msgpack.packb(scalars)) == [scalars]
    assert "more than 3200 elements" in fault_in(msgpack.packb([*scalars, [1] * 200]))
    empty = [0, 7, [{}] * 340]
    assert FrameReader(SMALL).read(msgpack.packb(empty)) == [empty]
    assert "more than 3200 elements" in fault_in(msgpack.packb([0, 7, [[{}] * 200] * 2]))


def test_memory_of_a_frame_of_empty_maps_is_bounded() -> None:
    data = b"\x9f\x00\x07" + (b"\xdd\0\x10\0\0" + b"\x80" * 2**20) * 13
    assert peak_of_reading(data, Limits()) < 100 * 2**20


@pytest.mark.parametrize(
    "value",
    [
        b"\x81\x90\x01",  # a key that cannot be one
        b"\x81\x80\x01",
        b"\xc1",
        b"\xd4\xff\x00",  # a timestamp of one byte
        b"\xd4\x80\x00",  # a reserved extension
    ],
)
def test_what_cannot_be_built_is_malformed(value: bytes) -> None:
    for before in (b"", msgpack.packb([0] * 300)):
        data = b"\x94\x00\x07" + (before or b"\x01") + value
        good = msgpack.packb([0, 6])
        reader = FrameReader(Limits())
        assert reader.read(good + good + data + good) == [[0, 6], [0, 6]]
        assert reader.fault is not None
        assert reader.fault.msgid == 7


def test_extensions_and_timestamps_are_values() -> None:
    stamp = msgpack.Timestamp(2**40, 500_000_000)
    frame = [msgpack.ExtType(5, b"abc"), stamp, {stamp: 1, 1: 2, None: 3, b"k": 4, 1.5: 5}]
    seconds = 2**40 + 0.5
    expected = [frame[0], seconds, {seconds: 1, 1: 2, None: 3, b"k": 4, 1.5: 5}]
    assert FrameReader(Limits()).read(msgpack.packb(frame)) == [expected]


def test_text_that_is_not_utf8_comes_back_as_it_was() -> None:
    data = b"\x92\xa4\xff\xfe\x80a\xa3\xed\xa0\x80"
    (frame,) = FrameReader(Limits()).read(data)
    assert frame[0] == "\udcff\udcfe\udc80a"
    assert FrameWriter(Limits()).write(tuple(frame)) == data


@pytest.mark.parametrize("data", [b"GET / HTTP/1.1\r\n\r\n", b"\xc0", b"\x80", b"\xdf", b'{"a":1}'])
def test_other_protocols_are_seen_at_once(data: bytes) -> None:
    reader = FrameReader(Limits())
    assert reader.read(data) == []
    assert reader.fault == ("a frame must be an array", None)


def test_after_a_fault_nothing_is_taken_and_nothing_kept() -> None:
    reader = FrameReader(Limits())
    reader.read(b"\x92\xdb\x00\x80\x00\x00" + b"a" * 1_000_000)
    tracemalloc.start()
    try:
        reader.read(b"\xff" * 10_000_000)
        fault = reader.fault
        assert reader.read(msgpack.packb([1])) == []
        assert reader.fault == fault is not None
        del fault
        assert tracemalloc.get_traced_memory()[0] < 100_000
    finally:
        tracemalloc.stop()


def test_a_long_frame_leaves_no_memory_behind() -> None:
    reader, writer = FrameReader(Limits()), FrameWriter(Limits())
    tracemalloc.start()
    try:
        long = writer.write((1, "a" * 8_000_000))
        assert len(reader.read(long)) == 1
        del long
        assert tracemalloc.get_traced_memory()[0] < 200_000
    finally:
        tracemalloc.stop()


@given(PARAMS)
def test_what_is_written_is_what_msgpack_writes(frame: list[Any]) -> None:
    writer = FrameWriter(Limits())
    assert writer.write(tuple(frame)) == msgpack.packb(frame)
    assert writer.refusal(msgpack.packb(frame)) is None


@pytest.mark.parametrize("value", [object(), 2**64, "\ud800", {1: {2}}])
def test_what_msgpack_has_not_is_raised_and_leaves_nothing(value: Any) -> None:
    writer = FrameWriter(Limits())
    with pytest.raises((TypeError, ValueError, OverflowError)):
        writer.write((1, "a", value))
    assert writer.write((2,)) == b"\x91\x02"


@pytest.mark.parametrize(
    "value",
    [
        "a" * 300_001,
        [1] * 1601,
        dict.fromkeys(range(101), 1),
        {"a" * 3000: dict.fromkeys(range(101), "b" * 20)},
        [[1] * 1000] * 4,
        [[[[[]]]]],
    ],
    ids=["bytes", "array", "map", "map of texts", "frame", "depth"],
)
def test_who_writes_knows_what_a_reader_would_refuse(value: Any) -> None:
    writer, reader = FrameWriter(SMALL), FrameReader(SMALL)
    data = writer.write((value,))
    assert writer.refusal(data) is not None
    assert reader.read(data) == []
    assert reader.fault is not None


@pytest.mark.slow
@pytest.mark.parametrize(
    ("most", "one_more"),
    [
        ([dict.fromkeys(range(65_536), 1)], [dict.fromkeys(range(65_537), 1)]),
        ([[1] * 2**20], [[1] * (2**20 + 1)]),
        ([[1] * 2**20], [[1] * 2**20, [1] * 2**20]),
        ([[[]] * 233_000], [[[]] * 233_016]),
    ],
    ids=["map", "array", "frame", "frame of empty arrays"],
)
def test_and_knows_it_by_the_default_limits(most: list[Any], one_more: list[Any]) -> None:
    writer = FrameWriter(Limits())
    for frame, is_refused in ((most, False), (one_more, True), (most, False)):
        data = writer.write(tuple(frame))
        assert (writer.refusal(data) is not None) == is_refused
        assert len(FrameReader(Limits()).read(data)) == (not is_refused)


def test_a_refusal_says_nothing_about_the_next_frame() -> None:
    writer = FrameWriter(SMALL)
    good = writer.write((dict.fromkeys(range(100), 1), "a" * 30))
    bad = writer.write((dict.fromkeys(range(101), 1), "a" * 30))
    for _ in range(3):
        assert writer.refusal(bad) is not None
        assert writer.refusal(good) is None


def test_a_frame_beyond_the_memory_is_refused_while_it_comes() -> None:
    mib = 2**20
    looked: list[int] = []

    def free() -> int | None:
        looked.append(1)
        return 10 * mib

    begun = REQUEST + b"\x91\xdb\x00\xff\x00\x00"
    reader = FrameReader(Limits(free_memory=free))
    for _ in range(60):
        assert reader.read(begun + b"x" * (SLICE - len(begun))) == []
        begun = b""
        if reader.fault is not None:
            break
    assert reader.fault is not None
    assert reader.fault.msgid == 7
    assert reader.fault.reason.startswith(f"a frame of more than {3 * mib} bytes, and {10 * mib} b")
    assert len(looked) == 3
    for known in (None, lambda: None):
        reader = FrameReader(Limits(free_memory=known))
        reader.read(REQUEST + b"\x91\xdb\x00\x50\x00\x00" + b"x" * 0x400000)
        assert reader.fault is None
