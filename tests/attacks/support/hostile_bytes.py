"""Bytes that no honest peer sends, and what must hold for whoever receives them.

`python tests/attacks/hostile_bytes.py 1000000` sends so many and says how much memory
the process had.
"""

from __future__ import annotations

import random
import resource
import sys
from collections.abc import Callable
from typing import Any

import msgpack

from pybatcher.sidecar.protocol.connection import (
    ClientProtocol,
    Limits,
    RpcNotification,
    RpcRequest,
    RpcResponse,
    ServerProtocol,
)

TIGHT = Limits(max_frame=400, max_depth=6, max_in_flight=4, max_elements=64)
LIMITS = (Limits(), TIGHT)
MAX_MSGID = 2**32 - 1

_WIDE = (b"\xdc", b"\xdd", b"\xde", b"\xdf", b"\xd9", b"\xda", b"\xdb", b"\xc4", b"\xc5", b"\xc6")
_CLAIMS = (0, 1, 2, 31, 63, 64, 65, 255, 400, 65535, 65536, 2**20, 2**20 + 1, 2**31, 2**32 - 1)


def honest_frame(rng: random.Random) -> bytes:
    """A frame of either side, with small msgids, so that they meet."""
    msgid = rng.choice((0, 1, 2, 3, 4, 5, 300, MAX_MSGID))
    params: list[Any] = [
        [rng.randrange(128_000) for _ in range(rng.randrange(8))],
        {
            "seed": rng.randrange(2**63),
            "text": "añ€" * rng.randrange(5),
            7: -1.5,
            "x": [None, True],
        },
    ]
    return msgpack.packb(
        rng.choice(
            (
                [0, msgid, rng.choice(("generate", "hello", b"health")), params],
                [1, msgid, None, params],
                [1, msgid, {"code": "cancelled"}, None],
                [2, "gated_delta_net", [msgid, {"seq": 1, "text": "a", "token_ids": [5]}]],
            )
        )
    )


def _random(rng: random.Random) -> bytes:
    return rng.randbytes(rng.randrange(1, 120))


def _random_in_a_request(rng: random.Random) -> bytes:
    return b"\x94\x00\x05\xa1g" + rng.randbytes(rng.randrange(1, 60)) + honest_frame(rng)


def _mutated(rng: random.Random) -> bytes:
    data = bytearray(b"".join(honest_frame(rng) for _ in range(rng.randrange(1, 5))))
    for _ in range(rng.randrange(1, 6)):
        at, until = sorted(rng.randrange(len(data) + 1) for _ in range(2))
        change = rng.randrange(6)
        if change == 0 and data:
            data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        elif change == 1 and data:
            data[rng.randrange(len(data))] = rng.randrange(256)
        elif change == 2:
            data[at:at] = rng.randbytes(rng.randrange(1, 9))
        elif change == 3:
            del data[at : min(until, at + 9)]
        elif change == 4:
            data[at:at] = data[at:until]
        else:
            del data[at:]
    return bytes(data)


def _claims(rng: random.Random) -> bytes:
    """Headers that claim what does not come, beside and within each other."""
    data = rng.choice((b"", b"\x94\x00\x05\xa1g", b"\x93\x02\xa1a"))
    for _ in range(rng.randrange(1, 30)):
        header, claim = rng.choice(_WIDE), rng.choice(_CLAIMS)
        width = {0xDC: 2, 0xDE: 2, 0xDA: 2, 0xC5: 2, 0xD9: 1, 0xC4: 1}.get(header[0], 4)
        data += header + (claim % 256**width).to_bytes(width, "big")
        data += rng.choice((b"", b"\x01", b"\xa1a", b"\xc0"))
    return data


def _bomb(rng: random.Random) -> bytes:
    level = rng.choice((b"\x91", b"\x81\x01", b"\x81\xa1a", b"\xdc\0\1", b"\x92\x01", b"\x81"))
    depth = rng.choice((3, 4, 5, 6, 7, 30, 31, 32, 33, 34, 100, 1000, 1023, 1024, 1025, 2000))
    begin = rng.choice((b"", b"\x94\x00\x05\xa1g", b"\x93\x02\xa1a", b"\x94\x00\x05\xd9\xffx"))
    return begin + level * depth + rng.choice((b"", b"\x90", b"\x80", b"\x01", b"\xc1"))


def _grammar(rng: random.Random) -> bytes:
    """Well-formed more often than not; odd keys, extensions, timestamps, broken texts."""
    out = bytearray()

    def put(depth: int) -> None:
        choice = rng.randrange(14 if depth < 8 else 9)
        if choice < 3:
            out.extend(rng.choice((b"\x00", b"\x05", b"\xff", b"\xc0", b"\xc2", b"\xc3")))
        elif choice == 3:
            out.extend(b"\xcf" + rng.randbytes(8))
        elif choice == 4:
            out.extend(b"\xcb" + rng.randbytes(8))
        elif choice == 5:
            body = rng.randbytes(rng.randrange(6))
            out.extend(bytes([0xA0 + len(body)]) + body)
        elif choice == 6:
            body = rng.randbytes(rng.randrange(6))
            out.extend(b"\xc4" + bytes([len(body)]) + body)
        elif choice == 7:
            out.extend(b"\xd6\xff" + rng.randbytes(4))
        elif choice == 8:
            out.extend(rng.choice((b"\xd4\x05a", b"\xd4\xffa", b"\xc7\x02\x01ab", b"\xd7\xff" * 5)))
        elif choice < 12:
            size = rng.randrange(4)
            out.extend(bytes([0x90 + size]))
            for _ in range(size):
                put(depth + 1)
        else:
            size = rng.randrange(3)
            out.extend(bytes([0x80 + size]))
            for _ in range(2 * size):
                put(depth + 1)

    for _ in range(rng.randrange(1, 4)):
        size = rng.choice((3, 4, 4, 4))
        out.extend(bytes([0x90 + size, rng.choice((0, 0, 0, 1, 2, 3))]))
        out.extend(rng.choice((b"\x05", b"\xa1a", b"\xcd\x01\x2c", b"\xd0\xff", b"\xc4\x01a")))
        for _ in range(size - 2):
            rng.choice((put, put, lambda _: out.extend(b"\xa1a"), lambda _: out.extend(b"\x90")))(2)
    return bytes(out)


def _flood(rng: random.Random) -> bytes:
    return b"".join(msgpack.packb([0, rng.randrange(12), "g", []]) for _ in range(20))


def _honest(rng: random.Random) -> bytes:
    return b"".join(honest_frame(rng) for _ in range(rng.randrange(1, 6)))


KINDS: tuple[Callable[[random.Random], bytes], ...] = (
    _random,
    _random_in_a_request,
    _mutated,
    _claims,
    _bomb,
    _grammar,
    _flood,
    _honest,
)


def cut(data: bytes, rng: random.Random) -> list[bytes]:
    """Whole, byte by byte, or in some pieces."""
    way = rng.randrange(3)
    if way == 0:
        return [data]
    if way == 1 and len(data) < 300:
        return [data[i : i + 1] for i in range(len(data))]
    cuts = sorted(rng.randrange(len(data) + 1) for _ in range(rng.randrange(1, 4)))
    return [data[a:b] for a, b in zip([0, *cuts], [*cuts, len(data)], strict=True)]


Outcome = tuple[list[Any], bool, list[tuple[int, str]]]
"""Events, whether it must close, and the msgids and codes of what it refused."""


def serve(pieces: list[bytes], limits: Limits) -> Outcome:
    """What a server makes of these pieces.

    Checks that each event is sound, that nothing comes after a violation, and that what
    is sent is one well-formed Response for each request that is no event.
    """
    server = ServerProtocol(limits)
    events: list[Any] = []
    for piece in pieces:
        was_over = server.must_close
        new = server.receive(piece)
        assert not (was_over and new)
        events += new
    requests = [event for event in events if type(event) is RpcRequest]
    for event in events:
        assert type(event) is RpcRequest or type(event) is RpcNotification
        assert type(event.method) is str
        assert type(event.params) is list
    msgids = {event.msgid for event in requests}
    assert all(type(msgid) is int and 0 <= msgid <= MAX_MSGID for msgid in msgids)
    assert server.n_in_flight == len(msgids) == len(requests) <= limits.max_in_flight
    assert (server.violation is not None) == server.must_close
    refusals = _refusals(server.data_to_send())
    for msgid in msgids:
        server.respond(msgid, None)
    assert server.n_in_flight == 0
    assert (server.data_to_send() == b"") == (server.must_close or not msgids)
    return events, server.must_close, refusals


def _refusals(sent: bytes) -> list[tuple[int, str]]:
    unpacker = msgpack.Unpacker(read_size=1024)
    unpacker.feed(sent)
    refusals = []
    for kind, msgid, error, result in unpacker:
        assert kind == 1
        assert 0 <= msgid <= MAX_MSGID
        assert error["code"] in ("invalid_request", "duplicate_id", "queue_full")
        assert error["retryable"] == ("retry_after_ms" in error)
        assert type(error["message"]) is str
        assert result is None
        refusals.append((msgid, error["code"]))
    assert unpacker.tell() == len(sent)
    return refusals


def ask(pieces: list[bytes], limits: Limits) -> Outcome:
    """The same for a client that has asked for five things."""
    client = ClientProtocol(limits)
    in_flight = {client.request("g", []) for _ in range(5)}
    client.data_to_send()
    events: list[Any] = []
    for piece in pieces:
        events += client.receive(piece)
    for event in events:
        if type(event) is RpcResponse:
            in_flight.remove(event.msgid)
        else:
            assert type(event) is RpcNotification
    assert client.n_in_flight == len(in_flight)
    assert client.data_to_send() == b""
    return events, client.must_close, []


def check(data: bytes, rng: random.Random) -> bool:
    """Give `data` to both sides, whole and cut: it must make no difference. A violation?"""
    limits = rng.choice(LIMITS)
    pieces = cut(data, rng)
    is_over = False
    for side in (serve, ask):
        cut_up = repr(side(pieces, limits))  # by repr: NaN is not itself
        whole = side([data], limits)
        assert cut_up == repr(whole)
        is_over |= whole[1]
    return is_over


def bombard(n_inputs: int, seed: int) -> int:
    """So many inputs of all kinds. How many of them broke the protocol."""
    rng = random.Random(seed)
    return sum(check(rng.choice(KINDS)(rng), rng) for _ in range(n_inputs))


def main() -> None:
    """Say what came of as many inputs as the command line says, and the memory it took."""
    n_inputs, seed = int(sys.argv[1]), int((sys.argv[2:] or ["0"])[0])
    bombard(1000, seed)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    n_violations = bombard(n_inputs, seed)
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print(f"{n_inputs} inputs, {n_violations} violations, RSS at most {before} -> {after} KiB")


if __name__ == "__main__":
    main()
