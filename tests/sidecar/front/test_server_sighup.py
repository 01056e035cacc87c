"""`pybatcher serve` after SIGHUP: what its config file says then."""

from __future__ import annotations

import asyncio
import json
import signal
from pathlib import Path

import httpx
import pytest
from serving_doubles import Serving, is_running, serving

from pybatcher import BlockingClient, Client, EngineConfig
from pybatcher.cli.status import ask_status

pytestmark = pytest.mark.slow


async def test_sighup_reads_the_config_file_again(tmp_path: Path) -> None:
    config = tmp_path / "sidecar.toml"
    config.write_text("[engine]\nn_ctx = 2048\n")
    # n_ubatch: a worker's warning of it is a line of the log, too.
    arguments = ("--log-format", "json", "--n-ubatch", "1024")
    with serving(tmp_path, "--config", str(config), *arguments) as running:
        async with Client(running.socket) as client:
            (first,) = (await client.statistics()).worker_pids
            blocks = (await client.statistics()).kv_total_blocks
            config.write_text("[engine]\nn_ctx = 1024\n")
            running.process.send_signal(signal.SIGHUP)
            while (await client.statistics()).worker_pids in ((first,), ()):  # noqa: ASYNC110
                await asyncio.sleep(0.02)
            while is_running(first):  # noqa: ASYNC110
                await asyncio.sleep(0.02)
            while (await client.statistics()).kv_total_blocks != blocks // 2:  # noqa: ASYNC110
                await asyncio.sleep(0.02)  # the front has to notice that the worker has ended
            config.write_text("[engine]\nn_ctx = 'many'\n")
            running.process.send_signal(signal.SIGHUP)
            while "not reloaded" not in running.said():  # noqa: ASYNC110
                await asyncio.sleep(0.02)
            assert (await client.generate("Once", max_tokens=2)).token_ids
        lines = [json.loads(line) for line in running.said().splitlines()]
    assert any(line["event"].startswith("reloaded") for line in lines)
    assert any("n_ubatch" in line["event"] for line in lines)
    assert all({"time", "level", "event"} <= line.keys() for line in lines)


def hang_up(running: Serving, until: str) -> None:
    """Send SIGHUP and wait until the log says so."""
    running.process.send_signal(signal.SIGHUP)
    running.logged(f"({until})")


def test_sighup_takes_back_what_the_file_says_no_more(tmp_path: Path) -> None:
    config, keys, pages = tmp_path / "sidecar.toml", tmp_path / "keys", ("https://a", "https://b")
    keys.touch(mode=0o600)
    keys.write_text("one\n")
    config.write_text("n_ctx = 2048\nmax_frame = 100_000\nallow_origins = ['https://a']\n")
    with serving(tmp_path, "--http", "127.0.0.1:0", "--config", str(config)) as running:

        def seen() -> list[int]:
            """Return `n_ctx`, and how the server answers pages of two origins."""
            hello = asyncio.run(ask_status(str(running.socket))).hello or {}
            url = running.url + "/v1/models"
            answers = [httpx.get(url, headers={"origin": page}) for page in pages]
            return [hello["limits"]["n_ctx"], *(answer.status_code for answer in answers)]

        assert seen() == [2048, 200, 403]
        config.write_text("[serve]\nallow_origins = ['https://b']\ndrain_timeout = 5\n")
        hang_up(running, until="reloaded: ")
        assert seen() == [EngineConfig().n_ctx, 403, 200]
        assert "warning max_frame changed; start again to apply it" in running.said()
        assert running.said().count("start again") == 1
        with BlockingClient(running.socket) as client:
            client.reload(n_ctx=1024)
        config.write_text("allow_origins = ['*']\napi_key_file = 'keys'")
        hang_up(running, until="reloaded: (?:.|\n)*reloaded: (?:.|\n)*reloaded: ")
        assert seen() == [EngineConfig().n_ctx, 401, 401]
