"""Hostile bytes at both sides of the protocol: no exception, bounded memory, any cut the same."""

from __future__ import annotations

import random
import tracemalloc

import msgpack
import pytest
from hostile_bytes import KINDS, TIGHT, ask, bombard, check, honest_frame, serve
from hypothesis import given, settings
from hypothesis import strategies as st

from pybatcher.sidecar.protocol.connection import Limits, ServerProtocol

MIB = 2**20
# Of where bytes are cut. Hypothesis would choose each cut on its own, which takes most of the time.
SEEDS = st.integers(0, 2**32)


@pytest.mark.parametrize("seed", range(4))
def test_bytes_of_all_kinds(seed: int) -> None:
    n_violations = bombard(5000, seed)
    assert 1000 < n_violations < 5000  # the honest ones are no violation


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__.strip("_"))
def test_bytes_of_each_kind_take_no_memory(kind: object) -> None:
    assert callable(kind)
    rng = random.Random(3)
    inputs = [kind(rng) for _ in range(200)]
    tracemalloc.start()
    try:
        for data in inputs:
            check(data, rng)
        held, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held < 200_000
    assert peak < MIB / 2


@settings(max_examples=2000, deadline=None)
@given(st.binary(max_size=200), SEEDS)
def test_any_bytes(data: bytes, seed: int) -> None:
    check(data, random.Random(seed))


@settings(max_examples=1000, deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(0, 2**16), st.integers(0, 3), st.binary(max_size=6)),
        min_size=1,
        max_size=4,
    ),
    SEEDS,
)
def test_an_honest_stream_with_bytes_in_it_changed(
    changes: list[tuple[int, int, bytes]], seed: int
) -> None:
    rng = random.Random(seed)
    stream = bytearray(b"".join(honest_frame(rng) for _ in range(3)))
    for where, n_replaced, others in changes:
        at = where % len(stream)
        stream[at : at + n_replaced] = others
        if not stream:
            return
    check(bytes(stream), rng)


@settings(max_examples=500, deadline=None)
@given(
    st.lists(
        st.sampled_from(
            [b"\x91", b"\x9f", b"\xdc\xff\xff", b"\xdd\0\x10\0\0", b"\xdd" + b"\xff" * 4]
        )
        | st.sampled_from([b"\x81", b"\xde\xff\xff", b"\xdf\0\1\0\0", b"\xdf" + b"\xff" * 4])
        | st.sampled_from([b"\xdb" + b"\xff" * 4, b"\xc6\x01\0\0\0", b"\xc9" + b"\xff" * 5])
        | st.sampled_from([b"\x05", b"\xc0", b"\xa1a", b"\x90", b"\x80"]),
        max_size=60,
    ),
    SEEDS,
)
def test_headers_that_claim_what_does_not_come(headers: list[bytes], seed: int) -> None:
    check(b"\x94\x00\x05\xa1g" + b"".join(headers), random.Random(seed))


def test_a_request_follows_a_bad_one_on_another_connection_unharmed() -> None:
    rng = random.Random(5)
    good = msgpack.packb([0, 1, "g", []])
    for kind in KINDS:
        serve([kind(rng)], TIGHT)
        events, is_over, refusals = serve([good], TIGHT)
        assert (len(events), is_over, refusals) == (1, False, [])
        assert not ask([msgpack.packb([1, 1, None, None])], TIGHT)[1]


@pytest.mark.parametrize(
    "header", [b"\xdb" + b"\xff" * 4, b"\xc6" + b"\xff" * 4, b"\xdd" + b"\xff" * 4]
)
@pytest.mark.parametrize("n_before", [0, 400], ids=["in front", "behind many elements"])
def test_four_gigabytes_that_never_come(header: bytes, n_before: int) -> None:
    """Behind many elements a claim is not looked at: it ends at `max_frame`."""
    limits = Limits(max_frame=4 * MIB)
    server = ServerProtocol(limits)
    begin = b"\x94\x00\x05\xa1g\xdc" + (n_before + 1).to_bytes(2, "big") + b"\x01" * n_before
    chunk = b"\x01" * MIB
    tracemalloc.start()
    try:
        assert server.receive(begin + header) == []
        for _ in range(100):
            assert server.receive(chunk) == []
        assert tracemalloc.get_traced_memory()[1] < 20 * MIB
        assert tracemalloc.get_traced_memory()[0] < MIB
    finally:
        tracemalloc.stop()
    assert server.must_close
    assert msgpack.unpackb(server.data_to_send())[1] == 5
