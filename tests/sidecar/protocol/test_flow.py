"""The deltas of one stream: whatever is acknowledged when, nothing is lost."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pybatcher.calls.completion import FinishReason, Piece, TokenLogprob
from pybatcher.sidecar.protocol.flow import Flow
from pybatcher.sidecar.protocol.limits import Limits
from pybatcher.text.tool_call import ToolCallDelta


def piece(i: int, index: int = 0, end: FinishReason | None = None) -> Piece:
    logprobs = (TokenLogprob(i, -0.5, ((i, -0.5),)),)
    calls = (ToolCallDelta(0, arguments=f"{i},"),)
    return Piece(f"{i} ", (i,), logprobs, end, index, f"{i};", calls)


class Reader:
    """A client that puts together what it is sent."""

    def __init__(self) -> None:
        self.seqs: list[int] = []
        self.text: defaultdict[int, str] = defaultdict(str)
        self.reasoning: defaultdict[int, str] = defaultdict(str)
        self.arguments: defaultdict[int, str] = defaultdict(str)
        self.token_ids: defaultdict[int, list[int]] = defaultdict(list)
        self.logprobs: defaultdict[int, list[Any]] = defaultdict(list)
        self.ends: dict[int, str] = {}

    def take(self, *deltas: dict[str, Any]) -> None:
        for delta in deltas:
            index = delta.get("index", 0)
            assert index not in self.ends
            self.seqs.append(delta["seq"])
            self.text[index] += delta["text"]
            self.reasoning[index] += delta["reasoning"]
            self.arguments[index] += "".join(one["arguments"] for one in delta["tool_calls"])
            self.token_ids[index] += delta["token_ids"]
            self.logprobs[index] += [one[0] for one in delta["logprobs"]]
            if "finish_reason" in delta:
                self.ends[index] = delta["finish_reason"]


WINDOWS = st.none() | st.integers(1, 6)
STEPS = st.lists(
    st.tuples(st.just("push"), st.integers(0, 63))
    | st.tuples(st.just("ack"), st.integers(-2, 5))
    | st.tuples(st.sampled_from(["pause", "resume"]), st.just(0)),
    max_size=60,
)


@given(WINDOWS, st.integers(1, 4), STEPS, st.booleans(), st.sampled_from([1, 500, 2**20]))
def test_whatever_happens_the_client_has_all_of_it_in_order(
    window: int | None, n: int, steps: list[tuple[str, int]], fails: bool, most_bytes: int
) -> None:
    flow, reader = Flow(window=window, n=n, most_bytes=most_bytes), Reader()
    sent: defaultdict[int, list[int]] = defaultdict(list)
    acknowledged, may_send = 0, True

    def look() -> None:
        assert reader.seqs == list(range(1, len(reader.seqs) + 1))
        assert window is None or len(reader.seqs) - acknowledged <= window

    def push(i: int, index: int, end: FinishReason | None = None) -> None:
        sent[index].append(i)
        deltas = flow.push(piece(i, index, end), may_send)
        assert not deltas or may_send
        reader.take(*deltas)

    for i, (what, number) in enumerate(steps):
        if what == "push":
            push(i, number % n)
        elif what == "ack":
            new = acknowledged + number
            assert flow.acknowledge(new) == (new > acknowledged)
            acknowledged = min(max(acknowledged, new), len(reader.seqs))
        elif what == "pause":
            may_send = False
        else:
            may_send = True
        if may_send and what in ("ack", "resume"):
            reader.take(*flow.take())
        look()
    if not fails:
        for index in range(n):
            push(1000 + index, index, "stop")
            look()
    flow.end()
    reader.take(*flow.take())
    look()
    if window is None or (window > n and most_bytes > 2**16):
        assert flow.is_empty  # the end never waits
    while not flow.is_empty:
        assert flow.acknowledge(acknowledged + 1)
        acknowledged += 1
        reader.take(*flow.take())
        look()
    for index, token_ids in sent.items():
        assert reader.token_ids[index] == reader.logprobs[index] == token_ids
        assert reader.text[index] == "".join(f"{i} " for i in token_ids)
        assert reader.reasoning[index] == "".join(f"{i};" for i in token_ids)
        assert reader.arguments[index] == "".join(f"{i}," for i in token_ids)
    assert reader.ends == ({} if fails else dict.fromkeys(range(n), "stop"))


def test_without_a_window_each_piece_is_a_delta() -> None:
    flow = Flow()
    for i in range(5):
        (delta,) = flow.push(piece(i))
        assert (delta["seq"], delta["text"]) == (i + 1, f"{i} ")
    assert flow.is_empty
    assert flow.take() == []


def test_what_waits_becomes_one_delta() -> None:
    flow = Flow()
    for i in range(5):
        assert flow.push(piece(i), may_send=False) == []
    assert not flow.is_empty
    (delta,) = flow.take()
    assert (delta["seq"], delta["text"], delta["token_ids"]) == (1, "0 1 2 3 4 ", (0, 1, 2, 3, 4))
    assert [one[0] for one in delta["logprobs"]] == [0, 1, 2, 3, 4]


def test_what_waits_goes_with_the_next_that_may() -> None:
    flow = Flow()
    assert flow.push(piece(0), may_send=False) == []
    (delta,) = flow.push(piece(1))
    assert (delta["seq"], delta["token_ids"]) == (1, (0, 1))


def test_the_last_place_of_a_window_is_for_the_end() -> None:
    flow = Flow(window=2)
    assert flow.push(piece(0))
    assert flow.push(piece(1)) == []
    (delta,) = flow.push(piece(2, end="length"))
    assert (delta["seq"], delta["token_ids"], delta["finish_reason"]) == (2, (1, 2), "length")


def test_what_waits_when_it_fails_may_have_the_last_place_too() -> None:
    flow = Flow(window=2)
    flow.push(piece(0))
    flow.push(piece(1))
    assert flow.take() == []
    flow.end()
    assert [delta["seq"] for delta in flow.take()] == [2]


def test_a_window_of_one_is_stop_and_wait() -> None:
    flow = Flow(window=1)
    assert flow.push(piece(0))
    assert flow.push(piece(1)) == []
    assert flow.acknowledge(1)
    assert [delta["seq"] for delta in flow.take()] == [2]


def test_no_logprobs_stay_none() -> None:
    flow = Flow()
    flow.push(Piece("a", (1,), None), may_send=False)
    (delta,) = flow.take()
    assert "logprobs" not in delta


def test_what_is_no_acknowledgement_changes_nothing() -> None:
    flow = Flow(window=2)
    flow.push(piece(0))
    for seq in (None, "1", True, 1.0, 0, -5, [1]):
        assert not flow.acknowledge(seq)
    assert flow.acknowledge(2**64)  # of what was sent, at most
    assert flow.push(piece(1))
    assert flow.push(piece(2)) == []


@pytest.mark.parametrize("window", [None, 3])
def test_what_is_too_large_for_one_message_becomes_several(window: int | None) -> None:
    limits = Limits(max_frame=16384)
    flow, reader = Flow(window=window, most_bytes=limits.max_delta), Reader()
    n = 200
    top = tuple((2**31 - 1 - i, -0.1) for i in range(8))
    for i in range(n):
        logprobs = (TokenLogprob(i, -0.5, top),)
        end: FinishReason | None = "stop" if i == n - 1 else None
        calls = (ToolCallDelta(0, arguments=f"{i},"),)
        large = Piece("\U0001f642", (2**31 - 1,), logprobs, end, 0, ";", calls)
        reader.take(*flow.push(large, may_send=False))
    assert reader.seqs == []
    deltas = flow.take()
    while not flow.is_empty:
        assert flow.acknowledge(deltas[-1]["seq"])
        deltas += flow.take()
    assert 10 < len(deltas) < n / 2
    reader.take(*deltas)
    assert reader.seqs == list(range(1, len(deltas) + 1))
    assert reader.logprobs[0] == list(range(n))
    assert reader.text[0] == "\U0001f642" * n
    assert list(reader.ends) == [0]
    assert all("finish_reason" not in delta for delta in deltas[:-1])
    sizes = [len(msgpack.packb([2, "delta", ["id", delta]])) for delta in deltas]
    assert max(sizes) < limits.max_frame


def test_a_piece_goes_after_all_that_wait_before_it() -> None:
    flow = Flow(window=3, most_bytes=1)
    assert flow.push(piece(0), may_send=False) == []
    assert flow.push(piece(1), may_send=False) == []
    assert [delta["token_ids"] for delta in flow.push(piece(2))] == [(0,), (1,)]
    assert flow.push(piece(3, end="stop")) == []
    assert flow.acknowledge(2)
    assert [delta["token_ids"] for delta in flow.take()] == [(2,), (3,)]
    assert flow.is_empty
