from __future__ import annotations

import asyncio
import importlib.util
from pathlib import Path

from pybatcher import Batcher


async def test_a_connection_is_a_conversation(examples: Path, tmp_path: Path) -> None:
    spec = importlib.util.spec_from_file_location("line_server", examples / "line_server.py")
    assert spec is not None
    assert spec.loader is not None
    line_server = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(line_server)
    question = "What is 2 plus 3?"
    async with Batcher() as batcher:
        expected = await batcher.chat([{"role": "user", "content": question}], max_tokens=128)

        async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await line_server.converse(batcher, reader, writer)
            writer.close()

        async with await asyncio.start_unix_server(connected, tmp_path / "lines.sock"):
            reader, writer = await asyncio.open_unix_connection(tmp_path / "lines.sock")
            writer.write(f"{question}\n".encode())
            assert (await reader.readline()).decode() == f"{expected.text}\n"
            writer.write(b"\n")
            assert await reader.read() == b""
            writer.close()
