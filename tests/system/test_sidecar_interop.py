"""A client that nobody here wrote generates, streams and cancels."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from batcher_helpers import PATIENCE, until
from session_helpers import ServiceOf

from pybatcher.sidecar.session.session import ServerSession
from pybatcher.testing import FakeEngine, fake_batcher

CLIENT = Path(__file__).parent / "support" / "pynvim_client.py"


def run_client(path: Path) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, CLIENT, path], capture_output=True, text=True, timeout=PATIENCE
    )
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout))


async def test_pynvim_is_served(tmp_path: Path) -> None:
    path, ended = tmp_path / "s", []
    async with fake_batcher(FakeEngine(step_delay=0.001)) as batcher:
        expected = await batcher.generate("Once", max_tokens=8, ignore_eos=True)
        server = await asyncio.get_running_loop().create_unix_server(
            lambda: ServerSession(ServiceOf(batcher), on_end=ended.append), path
        )
        got = await asyncio.to_thread(run_client, path)
        await until(lambda: len(ended) == 1)
        server.close()
        assert got["hello"]["model"] == "fake"
        assert got["generate"]["text"] == expected.text
        assert tuple(got["generate"]["token_ids"]) == expected.token_ids

        deltas = [delta for _, delta in got["stream"]["deltas"]]
        assert [id for id, _ in got["stream"]["deltas"]] == ["s"] * len(deltas)
        assert [delta["seq"] for delta in deltas] == list(range(1, 9))
        assert "".join(delta["text"] for delta in deltas) == expected.text
        assert got["stream"]["result"]["text"] == expected.text

        assert got["cancel"]["cancelled"] is True
        assert got["cancel"]["error"]["code"] == "cancelled"
        assert got["cancel"]["again"] is False
        assert got["cancel"]["deltas_after"] == 0
        assert batcher.statistics().cancelled == 1

        assert got["refused"]["code"] == "invalid_request"
        assert got["refused"]["message"].startswith("max_tokens is 0")
        assert got["health"]["ok"] is True
        assert tuple(got["bytes"]) == await batcher.tokenize("Once")
