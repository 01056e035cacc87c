from __future__ import annotations

import asyncio
import importlib.util
import re
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import ModuleType

import pytest

from pybatcher import Batcher

QUESTION = "What is 2 plus 3?"
PATIENCE = 60.0  # seconds for what takes one or two

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@pytest.fixture
def line_server(examples: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location("line_server", examples / "line_server.py")
    assert spec is not None
    assert spec.loader is not None
    line_server = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(line_server)
    return line_server


@asynccontextmanager
async def conversation(
    line_server: ModuleType, batcher: Batcher, folder: Path
) -> AsyncIterator[Streams]:
    """One connection to it; what its side raises is raised here."""
    served: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            served.set_result(await line_server.converse(batcher, reader, writer))
        except Exception as error:
            served.set_exception(error)
        writer.close()

    path = folder / "lines.sock"
    async with await asyncio.start_unix_server(connected, path, limit=line_server.LONGEST_LINE):
        reader, writer = await asyncio.open_unix_connection(path)
        yield reader, writer
        await served
        assert await reader.read() == b""
        writer.close()


async def test_a_connection_is_a_conversation(line_server: ModuleType, tmp_path: Path) -> None:
    async with Batcher() as batcher:
        expected = await batcher.chat([{"role": "user", "content": QUESTION}], max_tokens=128)
        async with conversation(line_server, batcher, tmp_path) as (reader, writer):
            writer.write(f"{QUESTION}\n".encode())
            assert (await reader.readline()).decode() == f"{expected.text}\n"
            writer.write(b"\n")


@pytest.mark.parametrize("length", [70_000, 1_000_000])
@pytest.mark.parametrize("end", [b"\n", b""])
async def test_a_line_that_is_too_long_is_told_so_and_the_conversation_goes_on(
    line_server: ModuleType, tmp_path: Path, length: int, end: bytes
) -> None:
    async with (
        Batcher() as batcher,
        conversation(line_server, batcher, tmp_path) as (reader, writer),
    ):
        writer.write(b"x" * length + end)
        if not end:
            writer.write_eof()
            assert await reader.readline() == b"error: a line may have 65536 bytes\n"
            return
        assert await reader.readline() == b"error: a line may have 65536 bytes\n"
        writer.write(f"{QUESTION}\n".encode())
        assert not (await reader.readline()).startswith(b"error")
        writer.write(b"\n")


async def test_a_question_that_does_not_fit_is_told_so_and_the_conversation_goes_on(
    line_server: ModuleType, tmp_path: Path
) -> None:
    async with (
        Batcher() as batcher,
        conversation(line_server, batcher, tmp_path) as (reader, writer),
    ):
        expected = await batcher.chat([{"role": "user", "content": QUESTION}], max_tokens=128)
        writer.write(b"fox " * 5000 + b"\n")
        assert re.match(rb"error: .*\d+ tokens", await reader.readline())
        writer.write(f"{QUESTION}\n".encode())
        assert (await reader.readline()).decode() == f"{expected.text}\n"
        writer.write(b"\n")


async def test_it_ends_at_ctrl_c_with_a_conversation_open(examples: Path, tmp_path: Path) -> None:
    program = (examples / "line_server.py").read_text()
    (tmp_path / "line_server.py").write_text(program.replace("7070", "0"))
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-W", "error", tmp_path / "line_server.py"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout is not None
    try:
        async with asyncio.timeout(PATIENCE):
            said = (await process.stdout.readline()).decode()
            port = int(said.rpartition(":")[2])
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(f"{QUESTION}\n".encode())
            assert await reader.readline()
            process.send_signal(signal.SIGINT)
            _, errors = await process.communicate()
            writer.close()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert (process.returncode, errors.decode()) == (0, "")
