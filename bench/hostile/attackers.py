"""Attacks of hostile clients on a sidecar's socket: their kinds, and a process that runs one.

    python -m bench.attackers SOCKET KIND SECONDS RATE

The process attacks until the time is over and prints the number of acts as JSON. RATE is the most
acts per second. Each kind is a coroutine that repeats one act. The server may close the connection
at any time; the attacker then connects again.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import socket
import sys
import time
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeAlias

import msgpack

__all__ = ["KINDS", "Attack", "attack", "tell_acts"]

_MANY = 1024  # requests that a connection can have in flight
_IDLERS = 32  # idle connections that are held open
_TURN = 0.02  # seconds ahead of the rate without waiting

Reader: TypeAlias = asyncio.StreamReader
Writer: TypeAlias = asyncio.StreamWriter


class Attack:
    """State of one attacker: socket, end time, rate limit, number of acts so far."""

    def __init__(self, socket: Path, seconds: float, rate: float) -> None:
        self.socket = socket
        self.random = random.Random(0)
        self.acts = 0
        self._rate = rate
        self._begin = time.monotonic()
        self._end = self._begin + seconds

    @property
    def is_over(self) -> bool:
        """True once the time has passed."""
        return time.monotonic() >= self._end

    async def act(self) -> bool:
        """Count an act and wait to keep the rate limit. Returns False once the time has passed."""
        self.acts += 1
        ahead = self.acts / self._rate - (time.monotonic() - self._begin)
        left = self._end - time.monotonic()
        await asyncio.sleep(min(ahead, left) if ahead > _TURN else 0)
        return not self.is_over

    async def connect(self) -> tuple[Reader, Writer]:
        """Open a connection, retrying until the server accepts."""
        while True:
            try:
                return await asyncio.open_unix_connection(str(self.socket))
            except OSError:  # the backlog is full
                await asyncio.sleep(0.05)


def _request(msgid: int, method: str, *params: object) -> bytes:
    packed: bytes = msgpack.packb([0, msgid, method, list(params)])
    return packed


def _generate(msgid: int, n_tokens: int = 1, **options: object) -> bytes:
    return _request(msgid, "generate", "x", {"max_tokens": n_tokens, **options})


async def _drop(reader: Reader, writer: Writer) -> None:
    writer.close()
    with suppress(OSError):
        await writer.wait_closed()


async def _each_on_its_own(a: Attack, bytes_of: Callable[[], bytes]) -> None:
    """Repeat: connect, send the bytes, read an answer for at most 0.1 s, close."""
    while not a.is_over:
        reader, writer = await a.connect()
        with suppress(OSError):
            writer.write(bytes_of())
            await writer.drain()
            with suppress(TimeoutError):
                await asyncio.wait_for(reader.read(65536), 0.1)
        await _drop(reader, writer)
        if not await a.act():
            return


async def random_bytes(a: Attack) -> None:
    """Send a kilobyte of random bytes."""
    await _each_on_its_own(a, lambda: a.random.randbytes(1024))


async def huge_headers(a: Attack) -> None:
    """Send headers of a 4 GiB string, binary, array or map, alone or inside a request."""
    longest = b"\xff\xff\xff\xff"
    heads = [kind + longest for kind in (b"\xdb", b"\xc6", b"\xdd", b"\xdf", b"\xc9")]
    begun = b"\x94\x00\x01\xa8generate"
    whole = [*heads, *(begun + head for head in heads), *(begun + b"\x91" + h for h in heads)]
    await _each_on_its_own(a, lambda: a.random.choice(whole) + b"x" * 512)


async def nesting_bombs(a: Attack) -> None:
    """Send arrays and maps nested 100,000 deep."""
    bombs = [
        b"\x91" * 100_000,
        b"\x81\xa1a" * 100_000,
        b"\x94\x00\x01\xa8generate" + b"\x91" * 99_999,
    ]
    await _each_on_its_own(a, lambda: a.random.choice(bombs))


async def tiny_frames(a: Attack) -> None:
    """Send notifications of unknown methods, as many as fit into one socket read."""
    frames = msgpack.packb([2, "x", []]) * 50_000
    await _each_on_its_own(a, lambda: frames)


async def wide_arrays(a: Attack) -> None:
    """Send a frame of a million empty arrays: small to send, large in memory."""
    frame = b"\x94\x00\x01\xa8generate\x91\xdd\x00\x0f\x42\x40" + b"\x90" * 1_000_000
    await _each_on_its_own(a, lambda: frame)


async def single_bytes(a: Attack) -> None:
    """Send valid requests, one byte a write."""
    while not a.is_over:
        reader, writer = await a.connect()
        with suppress(OSError):
            for byte in _request(1, "tokenize", "x" * 100) * 4:
                writer.write(bytes([byte]))
                await writer.drain()
                if not await a.act():
                    break
        await _drop(reader, writer)


async def half_frames(a: Attack) -> None:
    """Open connections that begin a long frame, send a little now and then, and stay open."""
    held = [await a.connect() for _ in range(_IDLERS)]
    begun = b"\x94\x00\x01\xa8generate\x91\xdb\x00\xff\x00\x00"
    for _, writer in held:
        writer.write(begun)
    while await a.act():
        place = a.random.randrange(len(held))
        try:
            held[place][1].write(b"x" * 1000)
            await held[place][1].drain()
        except OSError:
            held[place] = await a.connect()
            held[place][1].write(begun)
    for reader, writer in held:
        await _drop(reader, writer)


async def duplicate_msgids(a: Attack) -> None:
    """Send requests that all have one msgid, among them malformed ones."""
    frames = [
        _generate(7, 4),
        _generate(7),
        _request(7, "nothing"),
        _request(7, "generate", 1, 2, 3),
    ]
    await _talk(a, lambda: a.random.choice(frames))


async def floods(a: Attack) -> None:
    """Send a thousand questions, the most that may be in flight, then more, repeatedly."""
    number = iter(range(1, 2**31))
    await _talk(a, lambda: _request(next(number), "tokenize", "x" * 50))


async def floods_of_calls(a: Attack) -> None:
    """Send more generate requests than may be in flight, and cancel them at once."""
    while not a.is_over:
        reader, writer = await a.connect()
        with suppress(OSError):
            for msgid in range(1, 2 * _MANY):
                writer.write(
                    _generate(msgid, 1, priority=9) + _request(msgid + 2**20, "cancel", msgid)
                )
                if not msgid % 16:
                    await writer.drain()
                if not await a.act():
                    break
        await _drop(reader, writer)


async def heavy_arguments(a: Attack) -> None:
    """Send calls whose arguments other than the prompt are large, also for 64 samples each."""
    number = iter(range(1, 2**31))
    arguments: list[dict[str, object]] = [
        {"namespace": "n" * 4_000_000},
        {"stop": ["ab" * 8000], "n": 64},
        {"stop_token_ids": [5] * 200_000, "n": 64},
        {"grammar": "x" * 1_000_000},
        {"json_schema": json.dumps({"description": "x" * 1_000_000})},
        {"trace_headers": {"traceparent": "x" * 1_000_000}},
    ]
    await _talk(a, lambda: _generate(next(number), **a.random.choice(arguments)))


async def never_read(a: Attack) -> None:
    """Send questions and never read an answer."""
    held: list[tuple[Reader, Writer]] = []
    number = iter(range(1, 2**31))
    for _ in range(_IDLERS):
        reader, writer = await a.connect()
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        held.append((reader, writer))
    while await a.act():
        _, writer = a.random.choice(held)
        with suppress(OSError):
            if not writer.is_closing() and writer.transport.get_write_buffer_size() < 2**16:
                writer.write(_request(next(number), "statistics"))
    for _, writer in held:
        writer.transport.abort()


async def connects(a: Attack) -> None:
    """Open connections and close them at once."""
    while await a.act():
        _, writer = await a.connect()
        writer.transport.abort()


async def hang_ups(a: Attack) -> None:
    """Send SIGHUP while the file of the options is a named pipe that nobody writes to."""
    _, writer = await a.connect()
    peer = writer.get_extra_info("socket").getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
    pid = int.from_bytes(peer[:4], sys.byteorder)
    writer.transport.abort()
    pipe = a.socket.with_name("options.toml")
    os.mkfifo(pipe)
    try:
        while await a.act():
            os.kill(pid, signal.SIGHUP)
    finally:
        pipe.unlink()


async def _talk(a: Attack, frame_of: Callable[[], bytes]) -> None:
    """Send frames and read the answers; connect again when the server closes the connection."""
    while not a.is_over:
        reader, writer = await a.connect()
        reading = asyncio.ensure_future(_read_all(reader))
        with suppress(OSError):
            while not reading.done():
                writer.write(frame_of())
                await writer.drain()
                if not await a.act():
                    break
        reading.cancel()
        await _drop(reader, writer)


async def _read_all(reader: Reader) -> None:
    with suppress(OSError):
        while await reader.read(65536):
            pass


KINDS: dict[str, tuple[Callable[[Attack], Awaitable[None]], float]] = {
    "random bytes": (random_bytes, 200.0),
    "single bytes": (single_bytes, 1000.0),
    "half frames": (half_frames, 500.0),
    "4 GiB headers": (huge_headers, 200.0),
    "nesting bombs": (nesting_bombs, 50.0),
    "tiny frames": (tiny_frames, 2.0),
    "wide arrays": (wide_arrays, 2.0),
    "duplicate msgids": (duplicate_msgids, 500.0),
    "floods": (floods, 2000.0),
    "floods of calls": (floods_of_calls, 200.0),
    "heavy arguments": (heavy_arguments, 10.0),
    "never read": (never_read, 500.0),
    "connects": (connects, 1000.0),
    "hang-ups": (hang_ups, 10.0),
}
"""The coroutine of each kind, and its most acts per second that leave a core to others."""


async def attack(socket: Path, kind: str, seconds: float, rate: float) -> int:
    """Run an attack of this kind; return the number of acts."""
    own = Attack(socket, seconds, rate)
    await KINDS[kind][0](own)
    return own.acts


def tell_acts(attacking: Coroutine[Any, Any, int]) -> None:
    """Attack at the lowest priority, as the whole of a process; print the number of acts."""
    os.nice(19)
    print(json.dumps({"acts": asyncio.run(attacking)}))


if __name__ == "__main__":
    tell_acts(attack(Path(sys.argv[1]), sys.argv[2], float(sys.argv[3]), float(sys.argv[4])))
