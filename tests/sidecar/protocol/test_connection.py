"""The server's side of a connection: the table at the head of protocol.py, row by row."""

from __future__ import annotations

from typing import Any

import msgpack
import pytest
from broken_frames import BROKEN_FRAMES, BROKEN_REQUESTS
from hypothesis import given
from hypothesis import strategies as st
from msgpack_values import PARAMS, cut, frames_in

from pybatcher.sidecar.protocol.connection import (
    ClientProtocol,
    Limits,
    RpcNotification,
    RpcRequest,
    RpcResponse,
    ServerProtocol,
)

pack = msgpack.packb


def sent_by(server: ServerProtocol) -> list[Any]:
    frames = frames_in(server.data_to_send())
    assert server.data_to_send() == b""
    return frames


def errors_of(server: ServerProtocol) -> list[tuple[int, str, bool]]:
    """msgid, code and retryable of the errors it has to send; it sends nothing else."""
    errors = []
    for kind, msgid, error, result in sent_by(server):
        assert (kind, result) == (1, None)
        assert isinstance(error["message"], str)
        errors.append((msgid, error["code"], error["retryable"]))
    return errors


def assert_is_over(server: ServerProtocol) -> None:
    """It must close, takes and sends nothing, and answers what was in flight nowhere."""
    assert server.must_close
    assert server.violation
    assert server.receive(pack([0, 4_000_000, "g", []])) == []
    server.notify("delta", [])
    assert server.data_to_send() == b""


# The server, open.


def test_a_request_is_answered_once() -> None:
    server = ServerProtocol()
    assert server.receive(pack([0, 5, "generate", ["hi", {"a": 1}]])) == [
        RpcRequest(5, "generate", ["hi", {"a": 1}])
    ]
    assert server.n_in_flight == 1
    server.respond(5, {"text": "x"})
    assert server.n_in_flight == 0
    assert sent_by(server) == [[1, 5, None, {"text": "x"}]]
    with pytest.raises(RuntimeError, match="no request with msgid 5 is in flight"):
        server.respond(5, None)
    with pytest.raises(RuntimeError, match="5"):
        server.fail(5, {})
    assert sent_by(server) == []


def test_a_request_that_fails_is_answered_once_too() -> None:
    server = ServerProtocol()
    server.receive(pack([0, 0, "generate", []]))
    error = {"code": "cancelled", "message": "gone", "retryable": False}
    server.fail(0, error)
    assert sent_by(server) == [[1, 0, error, None]]
    with pytest.raises(RuntimeError):
        server.fail(0, error)


@pytest.mark.parametrize("msgid", [0, 1, 2**31, 2**32 - 1])
def test_any_uint32_is_a_msgid_and_may_come_again_once_answered(msgid: int) -> None:
    server = ServerProtocol()
    for _ in range(3):
        assert server.receive(pack([0, msgid, "a", []])) == [RpcRequest(msgid, "a", [])]
        server.respond(msgid, True)
    assert sent_by(server) == [[1, msgid, None, True]] * 3


def test_requests_are_answered_in_any_order() -> None:
    server = ServerProtocol()
    server.receive(b"".join(pack([0, i, "a", []]) for i in range(5)))
    for i in (3, 0, 4, 1, 2):
        server.respond(i, i)
    assert [msgid for _, msgid, _, _ in sent_by(server)] == [3, 0, 4, 1, 2]


def test_notifications_come_and_go_between_them() -> None:
    server = ServerProtocol()
    stream = pack([2, "ack", [1, 2]]) + pack([0, 1, "a", []]) + pack([2, "cancel", [1]])
    assert server.receive(stream) == [
        RpcNotification("ack", [1, 2]),
        RpcRequest(1, "a", []),
        RpcNotification("cancel", [1]),
    ]
    server.notify("delta", [1, {"seq": 0}])
    server.respond(1, None)
    server.notify("event", [])
    assert sent_by(server) == [
        [2, "delta", [1, {"seq": 0}]],
        [1, 1, None, None],
        [2, "event", []],
    ]


def test_a_duplicate_is_refused_at_once_and_the_first_goes_on() -> None:
    server = ServerProtocol()
    stream = pack([0, 7, "a", ["first"]]) + pack([0, 7, "a", ["second"]])
    assert server.receive(stream) == [RpcRequest(7, "a", ["first"])]
    assert errors_of(server) == [(7, "duplicate_id", False)]
    assert server.n_in_flight == 1
    server.respond(7, "of the first")
    assert sent_by(server) == [[1, 7, None, "of the first"]]
    assert not server.must_close


def test_a_connection_has_so_many_requests_in_flight() -> None:
    server = ServerProtocol(Limits(max_in_flight=3))
    events = server.receive(b"".join(pack([0, i, "a", []]) for i in range(5)))
    assert [event.msgid for event in events if isinstance(event, RpcRequest)] == [0, 1, 2]
    for (_, msgid, error, _), expected in zip(sent_by(server), [3, 4], strict=True):
        assert msgid == expected
        assert (error["code"], error["retryable"]) == ("queue_full", True)
        assert error["retry_after_ms"] > 0
    assert server.receive(pack([0, 1, "a", []])) == []
    assert errors_of(server) == [(1, "duplicate_id", False)]
    server.respond(1, None)
    server.data_to_send()
    assert server.receive(pack([0, 3, "a", []])) == [RpcRequest(3, "a", [])]
    assert server.n_in_flight == 3
    assert not server.must_close


def test_the_default_is_1024() -> None:
    server = ServerProtocol()
    assert len(server.receive(b"".join(pack([0, i, "a", []]) for i in range(1030)))) == 1024
    assert errors_of(server) == [(i, "queue_full", True) for i in range(1024, 1030)]


def test_a_method_may_be_binary_that_is_text() -> None:
    server = ServerProtocol()
    stream = pack([0, 1, "café".encode(), []]) + pack([2, b"ack", []])
    assert server.receive(stream) == [RpcRequest(1, "café", []), RpcNotification("ack", [])]


def test_a_text_that_is_not_utf8_costs_no_connection() -> None:
    server = ServerProtocol()
    (event,) = server.receive(b"\x94\x00\x01\xa1a\x91\xa2\xff\xfe")
    assert event == RpcRequest(1, "a", ["\udcff\udcfe"])
    server.fail(1, {"message": f"not UTF-8: {event.params[0]}"})
    assert server.data_to_send().endswith(b"not UTF-8: \xff\xfe\xc0")


def test_a_result_that_a_reader_would_refuse_becomes_an_error() -> None:
    limits = Limits(max_frame=1000, max_depth=4, max_elements=64)
    for result in ("a" * 1000, [1] * 65, dict.fromkeys(range(5), 0), [[[[]]]]):
        server, client = ServerProtocol(limits), ClientProtocol(limits)
        msgid = client.request("tokenize", [""])
        server.receive(client.data_to_send())
        server.respond(msgid, result)
        (response,) = client.receive(server.data_to_send())
        assert isinstance(response, RpcResponse)
        assert response.error["code"] == "too_long"
        assert server.n_in_flight == 0


@pytest.mark.parametrize("result", [object(), 2**64, "\ud800", {1: {2}}])
def test_a_result_that_msgpack_has_not_is_raised_and_can_still_be_failed(result: object) -> None:
    server = ServerProtocol()
    server.receive(pack([0, 1, "a", []]))
    with pytest.raises((TypeError, ValueError, OverflowError)):
        server.respond(1, result)
    assert sent_by(server) == []
    server.fail(1, {"code": "engine_failed"})
    assert sent_by(server) == [[1, 1, {"code": "engine_failed"}, None]]


# The server, and what breaks the protocol.


@pytest.mark.parametrize("frame", BROKEN_REQUESTS, ids=repr)
def test_a_malformed_request_is_answered_and_ends_the_connection(frame: Any) -> None:
    server = ServerProtocol()
    assert server.receive(pack([0, 8, "a", []]) + pack(frame) + pack([0, 10, "a", []])) == [
        RpcRequest(8, "a", [])
    ]
    assert errors_of(server) == [(9, "invalid_request", False)]
    assert_is_over(server)


@pytest.mark.parametrize("frame", [*BROKEN_FRAMES, [1, 9, None, None]], ids=repr)
def test_what_has_no_msgid_to_answer_ends_the_connection(frame: Any) -> None:
    server = ServerProtocol()
    assert server.receive(pack([2, "a", []]) + pack(frame) + pack([2, "b", []])) == [
        RpcNotification("a", [])
    ]
    assert server.data_to_send() == b""
    assert_is_over(server)


@pytest.mark.parametrize(
    ("rest", "reason"),
    [
        (b"\xdb\xff\xff\xff\xff", "max_frame is 16777216"),
        (b"\xdd\xff\xff\xff\xff", "max_elements is 262144"),
        (b"\x91" * 40, "max_depth = 32"),
        (b"\x91" * 40 + b"\xc0", "max_depth = 32"),
        (b"\x91\xc1", "0xc1"),
        (b"\x81\x90\x01", "unhashable"),
    ],
)
def test_a_frame_past_the_limits_is_answered_before_it_is_whole(rest: bytes, reason: str) -> None:
    server = ServerProtocol()
    stream = pack([0, 8, "a", []]) + b"\x94\x00\x09\xa1a" + rest
    assert server.receive(stream) == [RpcRequest(8, "a", [])]
    assert errors_of(server) == [(9, "invalid_request", False)]
    assert reason in str(server.violation)
    assert_is_over(server)


def test_after_a_violation_what_was_in_flight_ends_unsent() -> None:
    server = ServerProtocol()
    server.receive(pack([0, 1, "a", []]) + pack([0, 2, "a", []]))
    server.notify("delta", [1, {}])
    server.receive(b"\x94\x00\x01\xa1a\xc1")
    (delta, answer) = sent_by(server)
    assert delta == [2, "delta", [1, {}]]
    assert answer[:2] == [1, 1]
    server.respond(1, "late")
    server.fail(2, {})
    assert server.n_in_flight == 0
    with pytest.raises(RuntimeError):
        server.respond(1, "late")
    assert_is_over(server)


# The whole table, against a model of it.

_MSGIDS = st.integers(0, 5)
_STEPS = (
    st.tuples(st.just("request"), _MSGIDS)
    | st.tuples(st.just("respond"), _MSGIDS)
    | st.tuples(st.just("fail"), _MSGIDS)
    | st.tuples(st.sampled_from(["notify", "notification", "take"]), _MSGIDS)
    | st.tuples(st.sampled_from(["response", "broken request", "broken frame"]), _MSGIDS)
)


@given(st.lists(_STEPS, max_size=40))
def test_whatever_happens_in_whatever_order(steps: list[tuple[str, int]]) -> None:
    server = ServerProtocol(Limits(max_in_flight=3))
    in_flight: set[int] = set()
    is_over = False
    to_send: list[Any] = []  # (msgid, what) of each Response, or the method of a Notification

    for step, msgid in steps:
        event: RpcRequest | RpcNotification | None = None
        received = {
            "request": [0, msgid, "a", []],
            "notification": [2, "b", []],
            "response": [1, msgid, None, None],
            "broken request": [0, msgid, "a"],
            "broken frame": [0],
        }.get(step)
        if step == "request" and not is_over:
            if msgid in in_flight:
                to_send.append((msgid, "duplicate_id"))
            elif len(in_flight) == 3:
                to_send.append((msgid, "queue_full"))
            else:
                in_flight.add(msgid)
                event = RpcRequest(msgid, "a", [])
        elif step == "notification" and not is_over:
            event = RpcNotification("b", [])
        elif received is not None and not is_over:
            is_over = True
            if step == "broken request":
                to_send.append((msgid, "invalid_request"))
        if received is not None:
            assert server.receive(pack(received)) == ([] if event is None else [event])
        elif step == "notify":
            server.notify("c", [])
            if not is_over:
                to_send.append("c")
        elif step == "take":
            assert _in_short(sent_by(server)) == to_send
            to_send = []
        elif msgid not in in_flight:
            with pytest.raises(RuntimeError):
                server.respond(msgid, "result")
            with pytest.raises(RuntimeError):
                server.fail(msgid, {"code": "failed"})
        else:
            in_flight.remove(msgid)
            if step == "respond":
                server.respond(msgid, "result")
            else:
                server.fail(msgid, {"code": "failed"})
            if not is_over:
                to_send.append((msgid, "result" if step == "respond" else "failed"))
        assert server.must_close == is_over
        assert server.n_in_flight == len(in_flight)
    assert _in_short(sent_by(server)) == to_send


def _in_short(frames: list[Any]) -> list[Any]:
    return [
        frame[1] if frame[0] == 2 else (frame[1], frame[2]["code"] if frame[2] else frame[3])
        for frame in frames
    ]


# With a client.

_METHODS = st.text(max_size=10)


@pytest.mark.slow
@given(st.lists(st.tuples(st.booleans(), _METHODS, PARAMS), max_size=8), st.data())
def test_what_one_side_sends_the_other_receives_however_it_is_cut(
    said: list[tuple[bool, str, list[Any]]], data: Any
) -> None:
    client, server = ClientProtocol(), ServerProtocol()
    expected: list[Any] = []
    for is_request, method, params in said:
        if is_request:
            expected.append(RpcRequest(client.request(method, params), method, params))
        else:
            client.notify(method, params)
            expected.append(RpcNotification(method, params))
    pieces = cut(client.data_to_send(), data.draw)
    assert [event for piece in pieces for event in server.receive(piece)] == expected

    answers: list[Any] = []
    for event in expected:
        if isinstance(event, RpcRequest):
            server.respond(event.msgid, event.params)
            answers.append(RpcResponse(event.msgid, None, event.params))
        else:
            server.notify(event.method, event.params)
            answers.append(event)
    pieces = cut(server.data_to_send(), data.draw)
    assert [event for piece in pieces for event in client.receive(piece)] == answers
    assert client.n_in_flight == server.n_in_flight == 0
    assert not client.must_close
    assert not server.must_close
