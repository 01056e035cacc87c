"""A chat server in one process: every connection is a conversation, all share one batch.

    python examples/line_server.py [MODEL]
    nc 127.0.0.1 7070                          from as many terminals as you like

A line in is a question; its answer streams back as it is made. Who hangs up in the middle of an
answer costs nothing more: the stream ends with its task, and the engine drops the request.
"""

from __future__ import annotations

import asyncio
import sys
from contextlib import suppress

import pybatcher

HOST, PORT = "127.0.0.1", 7070


async def converse(
    batcher: pybatcher.Batcher, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> None:
    """One connection, until either side has enough."""
    messages: list[dict[str, str]] = []
    while line := (await reader.readline()).decode(errors="replace").strip():
        messages.append({"role": "user", "content": line})
        answer = ""
        async with batcher.stream_chat(messages, max_tokens=128) as pieces:
            async for piece in pieces:
                answer += piece.text
                writer.write(piece.text.encode())
                await writer.drain()
        messages.append({"role": "assistant", "content": answer})
        writer.write(b"\n")


async def main() -> None:
    """Serve until interrupted."""
    async with pybatcher.Batcher(*sys.argv[1:2]) as batcher:

        async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            try:
                await converse(batcher, reader, writer)
            except pybatcher.PybatcherError as error:
                writer.write(f"error: {error}\n".encode())
            except ConnectionError:
                pass  # hung up: `async with` has cancelled the answer
            finally:
                writer.close()

        server = await asyncio.start_server(connected, HOST, PORT)
        print(f"listening on {HOST}:{PORT}", flush=True)
        await server.serve_forever()


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):
        asyncio.run(main())
