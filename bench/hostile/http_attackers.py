"""Attacks of hostile clients on the HTTP front: their kinds, and a process that runs one.

    python -m bench.http_attackers HOST:PORT KIND SECONDS RATE

The process attacks until the time is over and prints the number of acts as JSON, as
`bench.attackers` does.
"""

from __future__ import annotations

import asyncio
import json
import resource
import sys
from collections.abc import Awaitable, Callable
from contextlib import suppress
from itertools import count
from pathlib import Path

from typing_extensions import override

from bench.hostile.attackers import Attack, Reader, Writer, tell_acts

__all__ = ["CROWD", "GONE", "HTTP_KINDS", "READERS", "SHORT", "HttpAttack"]

READERS, SHORT = "readers", "short streams"
"""Kinds that are controls, not attacks: honest clients that read long and short streams."""
GONE = "gone"

CROWD = 10_000  # connections
# Tokens of a stream whose client leaves at its first event: the next step has begun.
_GONE_AFTER = 2
_HELD = 64
_STREAMS = 8
_BODY = json.dumps({"prompt": "x", "max_tokens": 1}).encode()
_LONG = {"prompt": "x", "max_tokens": 4000, "ignore_eos": True, "stream": True}
_LONG |= {"n": 4, "logprobs": 5}
_GET = b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n"


class HttpAttack(Attack):
    """An attack over TCP. address: the address of the server."""

    def __init__(self, address: str, seconds: float, rate: float) -> None:
        super().__init__(Path(), seconds, rate)
        self._host, _, port = address.rpartition(":")
        self._port = int(port)

    @override
    async def connect(self) -> tuple[Reader, Writer]:
        while True:
            try:
                return await asyncio.open_connection(self._host, self._port)
            except OSError:  # the backlog is full, or there are no free ports
                await asyncio.sleep(0.05)


def _post(
    *headers: bytes, body: bytes = _BODY, sized: bool = True, path: bytes = b"/v1/completions"
) -> bytes:
    lines = [b"POST %b HTTP/1.1" % path, b"host: localhost", *headers]
    lines += [b"content-length: %d" % len(body)] if sized else []
    return b"\r\n".join(lines) + b"\r\n\r\n" + body


async def _each_on_its_own(a: HttpAttack, bytes_of: Callable[[], bytes]) -> None:
    """Repeat: connect, send the bytes, read an answer for at most 0.1 s, close."""
    while not a.is_over:
        _, writer = pair = await a.connect()
        with suppress(OSError):
            writer.write(bytes_of())
            with suppress(TimeoutError):
                async with asyncio.timeout(0.1):
                    await writer.drain()
                    await pair[0].read(65536)
        writer.transport.abort()
        if not await a.act():
            return


async def _held(a: HttpAttack, begun: bytes, more: bytes) -> None:
    """Hold connections that begin with some bytes and send more of them one by one."""
    held = [await a.connect() for _ in range(_HELD)]
    for _, writer in held:
        writer.write(begun)
    while await a.act():
        place = a.random.randrange(len(held))
        writer = held[place][1]
        if writer.is_closing():
            held[place] = await a.connect()
            held[place][1].write(begun)
        writer.write(more)
    for _, writer in held:
        writer.transport.abort()


async def two_lengths(a: HttpAttack) -> None:
    """Send requests whose lengths contradict each other, with another one in their bodies."""
    chunked = b"transfer-encoding: chunked"
    kinds = [
        _post(chunked, body=b"0\r\n\r\n" + _GET),
        _post(b"content-length: 3"),
        _post(b"transfer-encoding: xchunked", sized=False),
        _post(b"connection: upgrade", b"upgrade: h2c", body=_GET),
        _post(chunked, body=b"-1\r\n" + _GET, sized=False),
        _post(chunked, body=b"ffffffffffffffffff\r\n" + _GET, sized=False),
        _post(b"a: b\r\n c").replace(b"\r\n", b"\n"),
    ]
    await _each_on_its_own(a, lambda: a.random.choice(kinds))


async def slow_heads(a: HttpAttack) -> None:
    """Send heads byte by byte over many connections."""
    await _held(a, b"POST /v1/completions HTTP/1.1\r\na: ", b"b")


async def slow_bodies(a: HttpAttack) -> None:
    """Send bodies byte by byte over many connections."""
    await _held(a, _post(b"content-length: 1000000", body=b"{", sized=False), b" ")


async def short_bodies(a: HttpAttack) -> None:
    """Send a megabyte of a body with a content-length of sixteen, and disconnect."""
    await _each_on_its_own(a, lambda: _post(b"content-length: 16000000", body=b" " * 2**20,
                                            sized=False))  # fmt: skip


async def deep_bodies(a: HttpAttack) -> None:
    """Send JSON that is 100,000 deep, and JSON of a million tiny values."""
    bodies = [b'{"a":' * 100_000, b"[" * 100_000, b'{"a":[' + b"[]," * 1_000_000 + b"1]}"]
    await _each_on_its_own(a, lambda: _post(body=a.random.choice(bodies)))


async def odd_numbers(a: HttpAttack) -> None:
    """Send invalid numbers, and numbers that are too large."""
    numbers = [b"NaN", b"1e999", b"-1", b"9" * 4000, b"9" * 100_000, b"0.1e-400"]
    names = [b"max_tokens", b"temperature", b"seed", b"n", b"top_p", b"logprobs"]

    def made() -> bytes:
        return b'{"prompt": "x", "%b": %b}' % (a.random.choice(names), a.random.choice(numbers))

    await _each_on_its_own(a, lambda: _post(body=made()))


async def huge_heads(a: HttpAttack) -> None:
    """Send a header of a megabyte, and 10,000 headers."""
    many = b"\r\n".join(b"a%d: b" % i for i in range(10_000))
    kinds = [_post(b"a: " + b"b" * 2**20), _post(many)]
    await _each_on_its_own(a, lambda: a.random.choice(kinds))


async def pipelines(a: HttpAttack) -> None:
    """Send hundreds of requests at once, and read one answer."""
    await _each_on_its_own(a, lambda: _GET * 300)


async def bad_pipelines(a: HttpAttack) -> None:
    """Send requests that cannot be read behind good ones and behind streams under way."""
    short = _post(body=json.dumps({**_LONG, "max_tokens": 8}).encode())
    bad = [
        b"GET / HTTP/9.9\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01",
        b"GET /health HTTP/1.1\r\nhost: a\r\nhost: b\r\n\r\n",
        _post(b"transfer-encoding: chunked", body=b"zz\r\n", sized=False),
    ]
    await _each_on_its_own(
        a, lambda: a.random.choice([_GET * 20, short, short * 4]) + a.random.choice(bad) + _GET
    )


async def foreign_pages(a: HttpAttack) -> None:
    """Ask for everything that a GET tells under a foreign host's name, and as a foreign page."""
    paths = [b"/live", b"/metrics", b"/tokenizer_info", b"/v1/models", b"/"]
    heads = [b"host: evil.example", b"host: localhost\r\nsec-fetch-site: cross-site"]

    def made() -> bytes:
        path, head = a.random.choice(paths), a.random.choice(heads)
        return b"GET %b HTTP/1.1\r\n%b\r\n\r\n" % (path, head)

    await _each_on_its_own(a, made)


async def _long_streams(a: HttpAttack, *, are_read: bool) -> None:
    """Hold eight long streams, and read everything or nothing."""
    held: list[Writer] = []
    readers = set()
    while await a.act():
        if len(held) < _STREAMS:
            reader, writer = await a.connect()
            if are_read:
                readers.add(asyncio.create_task(_read_all(reader)))
            else:
                writer.transport.pause_reading()  # type: ignore[attr-defined]
            writer.write(_post(b"connection: close", body=json.dumps(_LONG).encode()))
            held.append(writer)
        held = [writer for writer in held if not writer.is_closing()]
    for writer in held:
        writer.transport.abort()
    await asyncio.gather(*readers)


async def _read_all(reader: Reader) -> None:
    with suppress(OSError):
        while await reader.read(2**16):
            pass


async def readers(a: HttpAttack) -> None:
    """Ask for long streams and read them, as a control with as many honest clients."""
    await _long_streams(a, are_read=True)


async def stopped_readers(a: HttpAttack) -> None:
    """Ask for long streams and read nothing of them."""
    await _long_streams(a, are_read=False)


async def short_streams(a: HttpAttack) -> None:
    """Ask for streams that end where the streams of disconnected clients are ended."""
    body = json.dumps({**_LONG, "max_tokens": _GONE_AFTER}).encode()
    while not a.is_over:
        reader, writer = await a.connect()
        with suppress(OSError):
            writer.write(_post(b"connection: close", body=body))
            await reader.read()
        writer.transport.abort()
        if not await a.act():
            return


async def gone(a: HttpAttack) -> None:
    """Ask for long streams, and disconnect at the first event."""
    await _each_on_its_own(a, lambda: _post(body=json.dumps(_LONG).encode()))


async def gone_with_keys(a: HttpAttack) -> None:
    """Ask for long streams with idempotency keys, and disconnect. Eight of them may continue."""
    number = count()
    body = json.dumps(_LONG).encode()
    await _each_on_its_own(a, lambda: _post(b"idempotency-key: %d" % next(number), body=body))


async def arguments_times_n(a: HttpAttack) -> None:
    """Ask for 64 samples, each of which needs the same long stop text, bias, choices or schema."""
    wide = {"properties": {f"property {i}": {"type": "string"} for i in range(4000)}}
    arguments: list[dict[str, object]] = [
        {"stop": ["ab" * 8000]},
        {"stop_token_ids": [5] * 16_000},
        {"logit_bias": {str(i): 1 for i in range(2000)}},
        {"guided_choice": [f"one of the choices, {i}" for i in range(10_000)]},
        {"guided_json": {"type": "object", **wide}},
    ]
    bodies = [json.dumps({"prompt": "x", "n": 64, "max_tokens": 4, **one}) for one in arguments]
    await _each_on_its_own(a, lambda: _post(body=a.random.choice(bodies).encode()))


async def long_lists(a: HttpAttack) -> None:
    """Embed two thousand texts, and ask for the text of two hundred thousand tokens."""
    texts = json.dumps({"input": ["x y z"] * 2000}).encode()
    tokens = json.dumps({"tokens": [7] * 200_000}).encode()
    whole = [_post(path=b"/v1/embeddings", body=texts), _post(path=b"/detokenize", body=tokens)]
    await _each_on_its_own(a, lambda: a.random.choice(whole))


async def kept_answers(a: HttpAttack) -> None:
    """Have long answers kept, each under an idempotency key of its own."""
    number = count()
    body = json.dumps({"prompt": "x", "max_tokens": 300, "logprobs": 5}).encode()
    while not a.is_over:
        reader, writer = await a.connect()
        with suppress(OSError):
            key = b"idempotency-key: kept-%d" % next(number)
            writer.write(_post(b"connection: close", key, body=body))
            await reader.read()
        writer.transport.abort()
        if not await a.act():
            return


async def crowds(a: HttpAttack) -> None:
    """Open 10,000 connections and hold them: idle ones, half heads, and some that had an answer."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
    held: list[Writer] = []
    while await a.act():
        if len(held) < min(CROWD, limit - 100):
            _, writer = await a.connect()
            writer.write((b"", _GET[:-4], _GET)[len(held) % 3])
            held.append(writer)
    for writer in held:
        writer.transport.abort()


async def connects(a: HttpAttack) -> None:
    """Open connections and close them at once."""
    while await a.act():
        _, writer = await a.connect()
        writer.transport.abort()


HTTP_KINDS: dict[str, tuple[Callable[[HttpAttack], Awaitable[None]], float]] = {
    "two lengths": (two_lengths, 200.0),
    "slow heads": (slow_heads, 1000.0),
    "slow bodies": (slow_bodies, 1000.0),
    "short bodies": (short_bodies, 20.0),
    "deep bodies": (deep_bodies, 10.0),
    "odd numbers": (odd_numbers, 100.0),
    "huge heads": (huge_heads, 20.0),
    "pipelines": (pipelines, 2.0),
    "bad pipelines": (bad_pipelines, 20.0),
    "foreign pages": (foreign_pages, 100.0),
    READERS: (readers, 10.0),
    "stopped readers": (stopped_readers, 10.0),
    SHORT: (short_streams, 10.0),
    GONE: (gone, 10.0),
    "gone with keys": (gone_with_keys, 10.0),
    "arguments times n": (arguments_times_n, 2.0),
    "long lists": (long_lists, 2.0),
    "kept answers": (kept_answers, 20.0),
    "crowds": (crowds, 1000.0),
    "connects": (connects, 500.0),
}
"""The coroutine of each kind, and its most acts per second."""


async def attack(address: str, kind: str, seconds: float, rate: float) -> int:
    """Run an attack of this kind; return the number of acts."""
    own = HttpAttack(address, seconds, rate)
    await HTTP_KINDS[kind][0](own)
    return own.acts


if __name__ == "__main__":
    tell_acts(attack(sys.argv[1], sys.argv[2], float(sys.argv[3]), float(sys.argv[4])))
