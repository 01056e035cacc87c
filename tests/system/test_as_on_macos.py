"""A sidecar with nothing of Python's that macOS lacks (tests/sidecar/support/as_on_macos)."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from as_on_macos import FOLDER
from serving_doubles import PATIENCE, is_running, serving

from pybatcher import BlockingClient

PROMPT = "Once upon a time"
# Tried in a process of its own first, as it counts far; what is said is short.
COUNTS_FAR = "( ?[a-z]+){3,40000}"


@pytest.mark.slow
def test_workers_are_replaced_and_others_are_told_who_serves(tmp_path: Path) -> None:
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join([FOLDER, *sys.path])}
    command = [
        sys.executable,
        "-c",
        "import sys; print(sys.platform, hasattr(__import__('os'), 'waitid'))",
    ]
    assert subprocess.check_output(command, env=environ, text=True) == "darwin False\n"
    with serving(tmp_path, env=environ) as running, BlockingClient(running.socket) as client:
        first = running.worker_pid
        whole = client.generate(PROMPT, max_tokens=200, ignore_eos=True)
        pieces = []
        with client.stream(PROMPT, max_tokens=200, ignore_eos=True) as stream:
            for piece in stream:
                pieces.append(piece)
                if len(pieces) == 3:
                    os.kill(first, signal.SIGKILL)
        assert [token for piece in pieces for token in piece.token_ids] == list(whole.token_ids)
        assert running.logged(r"(was killed by SIGKILL \(by somebody)")
        assert not is_running(first)

        held = client.generate(PROMPT, max_tokens=6, regex=COUNTS_FAR)
        assert held.text.replace(" ", "").isalpha()

        command = [sys.executable, "-m", "pybatcher", "serve", "--socket", str(running.socket)]
        second = subprocess.run(
            command, env=environ, capture_output=True, text=True, timeout=PATIENCE, check=False
        )
        assert second.returncode != 0
        assert f"is in use by process {running.process.pid}" in second.stderr
