"""`pybatcher top --socket`: the view of a running sidecar."""

from __future__ import annotations

import threading
from pathlib import Path

from command_line import Run
from serving_doubles import Serving

from pybatcher import BlockingClient


def test_it_makes_no_load_of_its_own(run: Run, sidecar: Serving) -> None:
    with BlockingClient(sidecar.socket) as client:
        before = client.statistics()
        outcome = run("top", "--socket", str(sidecar.socket), "--seconds", "1.2")
        after = client.statistics()
    assert (outcome.status, outcome.stderr) == (0, "")
    for line in outcome.stdout.splitlines():
        for part in ("ready", "  0 tok/s", "0 running 0 waiting", "KV", "TTFT 0.0/0.0/0.0"):
            assert part in line
    assert (after.submitted, after.steps) == (before.submitted, before.steps)


def test_it_shows_what_others_ask(run: Run, sidecar: Serving) -> None:
    watched = threading.Event()

    def ask() -> None:
        with BlockingClient(sidecar.socket) as client:
            while not watched.is_set():
                client.generate("Once upon a time", max_tokens=8)

    asking = threading.Thread(target=ask)
    asking.start()
    try:
        outcome = run("top", "--socket", str(sidecar.socket), "--seconds", "2.2")
    finally:
        watched.set()
        asking.join()
    assert outcome.status == 0
    last = outcome.stdout.splitlines()[-1]
    for nothing in (" 0 tok/s", " 0 steps/s", "rows 0.00 decode", "TTFT 0.0/", "ITL 0.0/0.0/0.0"):
        assert nothing not in last


def test_without_a_socket_there_is_a_load(run: Run, tmp_path: Path) -> None:
    outcome = run("top", "--seconds", "1.2", "--demo-load", "2", "--max-tokens", "4")
    assert outcome.status == 0
    assert " 0 steps/s" not in outcome.stdout.splitlines()[-1]
