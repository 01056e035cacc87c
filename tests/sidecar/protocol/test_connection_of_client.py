"""The client's side of a connection: the table at the head of protocol.py, row by row."""

from __future__ import annotations

from typing import Any

import msgpack
import pytest
from broken_frames import BROKEN_FRAMES, BROKEN_REQUESTS
from msgpack_values import frames_in

from pybatcher.errors import InvalidRequestError, ProtocolError
from pybatcher.sidecar.protocol.connection import (
    ClientProtocol,
    Limits,
    RpcNotification,
    RpcResponse,
)

pack = msgpack.packb


def test_a_request_and_its_response() -> None:
    client = ClientProtocol()
    msgid = client.request("generate", ["hi", {}])
    client.notify("ack", [1, 2])
    assert frames_in(client.data_to_send()) == [
        [0, msgid, "generate", ["hi", {}]],
        [2, "ack", [1, 2]],
    ]
    assert client.n_in_flight == 1
    stream = pack([2, "delta", [msgid, {}]]) + pack([1, msgid, None, {"text": "x"}])
    assert client.receive(stream) == [
        RpcNotification("delta", [msgid, {}]),
        RpcResponse(msgid, None, {"text": "x"}),
    ]
    assert client.n_in_flight == 0
    assert not client.must_close


def test_msgids_begin_at_one_wrap_and_skip_those_in_flight() -> None:
    client = ClientProtocol()
    assert [client.request("a", []) for _ in range(3)] == [1, 2, 3]
    client.receive(pack([1, 2, None, None]))
    client._last_msgid = 2**32 - 2
    assert [client.request("a", []) for _ in range(3)] == [2**32 - 1, 2, 4]


@pytest.mark.parametrize("frame", [*BROKEN_FRAMES, *BROKEN_REQUESTS], ids=repr)
def test_a_malformed_frame_of_the_server_ends_the_connection(frame: Any) -> None:
    client = ClientProtocol()
    client.request("a", [])
    client.data_to_send()
    stream = pack([2, "a", []]) + pack(frame) + pack([1, 1, None, None])
    assert client.receive(stream) == [RpcNotification("a", [])]
    assert client.must_close
    assert client.data_to_send() == b""


@pytest.mark.parametrize(
    ("frame", "violation"),
    [
        ([1, 2, None, None], "a Response to msgid 2, which is not in flight"),
        ([0, 1, "a", []], "a Request, which only a client sends"),
    ],
)
def test_what_nobody_asked_for_ends_the_connection(frame: Any, violation: str) -> None:
    client = ClientProtocol()
    client.request("a", [])
    assert client.receive(pack(frame)) == []
    assert client.must_close
    assert client.violation == violation
    assert client.receive(pack([1, 1, None, None])) == []
    client.data_to_send()
    client.notify("cancel", [1])
    assert client.data_to_send() == b""
    with pytest.raises(ProtocolError, match=violation):
        client.request("a", [])


def test_a_second_response_is_one_too_many() -> None:
    client = ClientProtocol()
    msgid = client.request("a", [])
    assert len(client.receive(pack([1, msgid, None, 1]) * 2)) == 1
    assert client.must_close


@pytest.mark.parametrize(
    ("params", "why"),
    [
        (["a" * 1001], "max_frame is 1000"),
        ([[[[]]]], "max_depth = 4"),
        ([[1] * 65], "max_elements is 64|exceeds max"),
        (["\ud800"], "surrogates"),
        ([object()], "can not serialize"),
        ([2**64], "out of range"),
    ],
)
def test_what_the_server_would_refuse_is_not_sent(params: list[Any], why: str) -> None:
    client = ClientProtocol(Limits(max_frame=1000, max_depth=4, max_elements=64))
    with pytest.raises(InvalidRequestError, match=why):
        client.request("generate", params)
    assert client.n_in_flight == 0
    assert client.data_to_send() == b""
    assert client.request("generate", []) == 1
