"""`pybatcher top` end to end."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys

import pytest

from pybatcher import EngineFailedError
from pybatcher.batcher import Batcher
from pybatcher.cli import main
from pybatcher.cli.random_load import RandomLoad
from pybatcher.cli.top import _run
from pybatcher.testing import FakeEngine, fake_batcher

COMMAND = [sys.executable, "-W", "error", "-m", "pybatcher", "top"]


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    """Run the command; return its exit status."""
    monkeypatch.setattr(sys, "argv", ["pybatcher", "top", *arguments])
    with pytest.raises(SystemExit) as raised:
        main()
    return int(raised.value.code or 0)


def test_without_a_terminal_it_is_a_line_a_second(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    before = signal.getsignal(signal.SIGTERM)
    assert run(monkeypatch, "--seconds", "1.2", "--demo-load", "3", "--n-parallel", "2") == 0
    output = capsys.readouterr()
    assert output.err == ""
    assert "\x1b" not in output.out
    lines = output.out.splitlines()
    assert lines
    for line in lines:
        for part in ("ready", "tok/s", "decode", "waiting", "KV", "TTFT", "ITL", "0 failed"):
            assert part in line
    assert signal.getsignal(signal.SIGTERM) == before


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--demo-load", "0"], "demo_load is 0; it must be from 1 to 10000"),
        (["--demo-load", "10001"], "demo_load is 10001"),
        (["--seconds", "0"], "seconds is 0.0; it must be above 0"),
        (["--seconds", "nan"], "seconds is nan"),
        (["--seconds", "inf"], "seconds is inf"),
        (["--max-tokens", "0"], "max_tokens is 0"),
        (["--n-parallel", "0"], "n_parallel is 0"),
        (["--model", "/no/such/model"], "/no/such/model"),
        (["localhost:8000"], "url is 'localhost:8000'"),
        (["http://127.0.0.1:1", "--n-ctx", "8"], "--n-ctx goes with a batcher of this process"),
        (["http://127.0.0.1:1", "--socket", "x"], "--socket goes with a batcher"),
        (["http://127.0.0.1:1", "--demo-load", "2"], "--demo-load goes with a batcher"),
        (["http://127.0.0.1:1"], "there is no live feed at http://127.0.0.1:1: "),
        (["--api-key-file", "x"], "--api-key-file goes with the URL of a server"),
    ],
)
def test_a_bad_value_is_one_line_and_status_2(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    complaint: str,
) -> None:
    assert run(monkeypatch, *arguments) == 2
    output = capsys.readouterr()
    assert output.out == ""
    assert output.err.startswith("error: ")
    assert output.err.count("\n") == 1
    assert complaint in output.err


@pytest.mark.parametrize("how", ["Ctrl-C", "SIGTERM"])
def test_on_a_terminal_it_ends_when_it_is_told_and_leaves_the_last_picture(how: str) -> None:
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        COMMAND,
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        preexec_fn=_take_terminal,
        env=os.environ | {"TERM": "xterm", "COLUMNS": "100", "LINES": "30"},
    ) as process:
        os.close(theirs)
        seen = _read_until(ours, b"TPOT")
        assert b"pybatcher top" in seen
        if how == "Ctrl-C":
            os.write(ours, b"\x03")
        else:
            process.send_signal(signal.SIGTERM)
        rest = _read_to_the_end(ours)
        assert process.wait(timeout=60) == 0
    os.close(ours)
    other_screen, own_screen, hidden, shown = (
        b"\x1b[?1049h",
        b"\x1b[?1049l",
        b"\x1b[?25l",
        b"\x1b[?25h",
    )
    output = seen + rest
    assert output.count(other_screen) == output.count(own_screen) == 1
    # The bar that shows a long loading hides the cursor too.
    assert output.count(hidden) == output.count(shown) > 0
    assert output.rindex(hidden) < output.rindex(shown)
    left = output[output.index(own_screen) :].decode()
    for part in ("pybatcher top", "tiny", "decode", "KV", "TTFT", "requests", "TPOT"):
        assert part in left
    assert "Traceback" not in output.decode()


async def test_a_batcher_that_fails_ends_it(capsys: pytest.CaptureFixture[str]) -> None:
    def fail(plan: object) -> None:
        raise OSError("the weights are gone")

    batcher = fake_batcher(FakeEngine(before_step=fail))
    with pytest.raises(EngineFailedError, match="the weights are gone"):
        await _run(batcher, RandomLoad(batcher, 2, 9), 60.0)
    assert "failed" in capsys.readouterr().out
    assert _is_closed(batcher)


def _is_closed(batcher: Batcher) -> bool:
    return batcher.health().status == "closed"


def _take_terminal() -> None:
    """In the child: start a session whose controlling terminal, with its Ctrl-C, is stdin."""
    os.setsid()
    os.close(os.open(os.ttyname(0), os.O_RDWR))


def _read_until(terminal: int, end: bytes) -> bytes:
    seen = b""
    while end not in seen:
        seen += os.read(terminal, 1024)
    return seen


def _read_to_the_end(terminal: int) -> bytes:
    """Read until the other side has closed the terminal, which raises an error here."""
    seen = b""
    try:
        while piece := os.read(terminal, 65536):
            seen += piece
    except OSError:
        pass
    return seen
