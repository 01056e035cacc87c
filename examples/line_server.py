"""A chat server in one process: every connection is a conversation, all share one batch.

    python examples/line_server.py [MODEL]
    nc 127.0.0.1 7070                          from as many terminals as you like

A line in is a question; its answer streams back as it is generated. An empty line ends the
conversation. A client that hangs up in the middle of an answer costs nothing more: the stream ends
with its task, and the engine drops the request. A question that cannot be answered gets a line that
begins with "error:", and the conversation goes on.
"""

from __future__ import annotations

import asyncio
import sys
from contextlib import suppress

import pybatcher

HOST, PORT = "127.0.0.1", 7070
LONGEST_LINE = 64 * 1024  # bytes; asyncio's own default


class LineTooLongError(Exception):
    """A client sent a line of more than LONGEST_LINE bytes."""


async def read_question(reader: asyncio.StreamReader) -> str:
    """The next line; empty at the end. Raises LineTooLongError once the line is skipped."""
    too_long = False
    while True:
        try:
            line = await reader.readuntil(b"\n")
            break
        except asyncio.LimitOverrunError as error:
            await reader.readexactly(error.consumed)
            too_long = True
        except asyncio.IncompleteReadError as error:
            line = error.partial
            break
    if too_long:
        raise LineTooLongError(f"a line may have {LONGEST_LINE} bytes")
    return line.decode(errors="replace").strip()


async def answer(
    batcher: pybatcher.Batcher, messages: list[dict[str, str]], writer: asyncio.StreamWriter
) -> str:
    """Stream the assistant's next turn to the client; return it."""
    text = ""
    async with batcher.stream_chat(messages, max_tokens=128) as pieces:
        async for piece in pieces:
            text += piece.text
            writer.write(piece.text.encode())
            await writer.drain()
    return text


async def converse(
    batcher: pybatcher.Batcher, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> None:
    """Serve one connection until an empty line or its end."""
    messages: list[dict[str, str]] = []
    while True:
        try:
            question = await read_question(reader)
            if not question:
                return
            asked = [*messages, {"role": "user", "content": question}]
            messages = [
                *asked,
                {"role": "assistant", "content": await answer(batcher, asked, writer)},
            ]
            writer.write(b"\n")
        except (pybatcher.PybatcherError, LineTooLongError) as error:
            writer.write(f"error: {error}\n".encode())
        await writer.drain()


async def serve(
    batcher: pybatcher.Batcher, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> None:
    """`converse`, and close the connection."""
    try:
        with suppress(ConnectionError):  # hung up: `async with` has cancelled the answer
            await converse(batcher, reader, writer)
    finally:
        writer.close()


async def main() -> None:
    """Serve until interrupted."""
    connections: set[asyncio.Task[None]] = set()  # a loop holds its tasks weakly
    async with pybatcher.Batcher(*sys.argv[1:2]) as batcher:
        # Not a coroutine function: asyncio of Python 3.11 reports the cancelled task of one.
        def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.create_task(serve(batcher, reader, writer))
            connections.add(task)
            task.add_done_callback(connections.discard)

        server = await asyncio.start_server(connected, HOST, PORT, limit=LONGEST_LINE)
        print("listening on {}:{}".format(*server.sockets[0].getsockname()), flush=True)
        await server.serve_forever()


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):
        asyncio.run(main())
