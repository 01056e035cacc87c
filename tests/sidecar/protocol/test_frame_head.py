"""The head of a frame: msgid and claims, read before the frame is there."""

from __future__ import annotations

from typing import Any

import msgpack
import pytest

from pybatcher.sidecar.protocol.frame_head import MOST_HEADERS, FrameHead
from pybatcher.sidecar.protocol.limits import Limits

LIMITS = Limits(max_frame=1000, max_depth=5, max_elements=320)
REQUEST = b"\x94\x00\x07\xa1g"  # [0, 7, "g", ...


def fault_of(frame: bytes) -> str | None:
    return FrameHead(LIMITS).read_on(frame)


def msgid_of(frame: bytes) -> int | None:
    head = FrameHead(LIMITS)
    head.read_on(frame)
    return head.msgid


@pytest.mark.parametrize(
    "msgid", [0, 1, 127, 128, 255, 256, 65535, 65536, 2**31, 2**32 - 1], ids=str
)
def test_the_msgid_of_a_request_is_read_however_long_its_number_is(msgid: int) -> None:
    assert msgid_of(msgpack.packb([0, msgid, "g", []])) == msgid


@pytest.mark.parametrize(
    "kind", [b"\xcc\x05", b"\xcd\0\x05", b"\xce\0\0\0\x05", b"\xcf" + b"\0" * 7 + b"\x05"]
)
def test_a_small_msgid_may_be_written_long(kind: bytes) -> None:
    assert msgid_of(b"\x94\x00" + kind) == 5


@pytest.mark.parametrize(
    "kind", [b"\xd0\x05", b"\xd1\0\x05", b"\xd2\0\0\0\x05", b"\xd3" + b"\0" * 7 + b"\x05"]
)
def test_a_msgid_may_be_written_as_a_signed_number(kind: bytes) -> None:
    assert msgid_of(b"\x94\x00" + kind) == 5


@pytest.mark.parametrize("begin", [[1], [2], [3], [False], [None], ["0"], [[0]], [0.0]], ids=str)
def test_only_a_request_has_a_msgid(begin: list[Any]) -> None:
    assert msgid_of(msgpack.packb([*begin, 7])) is None


@pytest.mark.parametrize("msgid", [-1, -200, 2**32, 2**64 - 1, None, True, 7.0, "7", [7]], ids=str)
def test_only_a_uint32_is_a_msgid(msgid: Any) -> None:
    assert msgid_of(msgpack.packb([0, msgid])) is None


def test_a_msgid_that_is_not_all_there_is_not_guessed() -> None:
    head = FrameHead(LIMITS)
    frame = msgpack.packb([0, 2**31 + 5, "g", []])
    for n_bytes in range(1, 7):
        head.read_on(frame[:n_bytes])
        assert head.msgid is None
    head.read_on(frame[:7])
    assert head.msgid == 2**31 + 5


@pytest.mark.parametrize(
    ("rest", "fault"),
    [
        (b"\xdb\xff\xff\xff\xff", "4294967295 bytes; max_frame is 1000"),  # text
        (b"\xda\x03\xe8", "1000 bytes; max_frame is 1000"),
        (b"\xc6\xff\xff\xff\xff", "4294967295 bytes; max_frame is 1000"),  # binary
        (b"\xc9\xff\xff\xff\xff", "4294967296 bytes; max_frame is 1000"),  # extension and type
        (b"\xdd\xff\xff\xff\xff", "an array of 4294967295 elements; max_elements is 320"),
        (b"\xdc\x01\x41", "an array of 321 elements; max_elements is 320"),
        (b"\xdf\xff\xff\xff\xff", "a map of 4294967295 pairs; the most is 20"),
        (b"\xde\x00\x15", "a map of 21 pairs; the most is 20"),
        (b"\x91\x91\x91\x91\x91", "nested deeper than max_depth = 5"),
        (b"\x91\x81\x01\x91\x81\x02\x80", "nested deeper than max_depth = 5"),
        (b"\x91\x91\x91\x91\x90", "nested deeper than max_depth = 5"),  # an empty one counts
        (b"\x93\x01\xc1", "0xc1"),
    ],
)
def test_what_can_never_be_right_is_known_from_its_header(rest: bytes, fault: str) -> None:
    head = FrameHead(LIMITS)
    assert head.read_on((REQUEST + rest)[:-1]) is None
    assert fault in str(head.read_on(REQUEST + rest))
    assert head.msgid == 7


@pytest.mark.parametrize(
    "rest",
    [b"\xda\x03\xe0", b"\xdc\x01\x40", b"\xde\x00\x14", b"\x91\x91\x91\x91", b"\xd9\x05a\xc1"],
    ids=["text", "array", "map", "depth", "a body"],
)
def test_what_may_still_be_right_goes_on(rest: bytes) -> None:
    assert fault_of(REQUEST + rest) is None


@pytest.mark.parametrize("frame", [b"\x00", b"G", b"\x81", b"\xa5h", b"\xc0", b"\xdb", b"\xdf"])
def test_a_frame_is_an_array(frame: bytes) -> None:
    fault = fault_of(frame)
    assert fault is not None
    assert "array" in fault


def test_it_reads_no_further_than_its_frame() -> None:
    frame = msgpack.packb([0, 7, "g", [[], {}, "a"]])
    assert fault_of(frame + b"\xc1") is None


def test_its_work_for_a_frame_is_bounded() -> None:
    frame = b"\xdc\x01\x40" + b"\x01" * MOST_HEADERS + b"\xc1"
    assert "0xc1" in str(fault_of(frame[: MOST_HEADERS - 1] + b"\xc1"))
    assert fault_of(frame) is None
