from __future__ import annotations

import io
import sys
from types import SimpleNamespace

import pytest

import pybatcher.cli.loading_bar
from pybatcher.cli.loading_bar import loading_bar
from pybatcher.testing import FakeClock


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def open_terminal(monkeypatch: pytest.MonkeyPatch, show_after: float) -> Terminal:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(pybatcher.cli.loading_bar, "SHOW_AFTER", show_after)
    return terminal


def test_no_bar_without_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    with loading_bar() as progress:
        assert progress is None


def test_a_quick_load_shows_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = open_terminal(monkeypatch, show_after=1000.0)
    with loading_bar() as progress:
        assert progress is not None
        for done in range(1, 11):
            progress(done * 1000, 10_000)
    assert terminal.getvalue() == ""


def test_a_slow_load_shows_a_bar_that_goes_away(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = open_terminal(monkeypatch, show_after=0.0)
    with loading_bar() as progress:
        assert progress is not None
        progress(5_000_000, 10_000_000)
        progress(10_000_000, 10_000_000)
    shown = terminal.getvalue()
    assert "loading the model" in shown
    assert shown.endswith("\x1b[2K")  # the line is cleared


def test_a_download_and_a_load_have_a_bar_each(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = open_terminal(monkeypatch, show_after=0.0)
    with loading_bar("fetching") as progress:
        assert progress is not None
        progress(1, 2)
        progress(2, 2)
        shown = terminal.getvalue().count("fetching")
        progress(1, 3)
        assert terminal.getvalue().count("fetching") > shown > 0
        progress(3, 3)
    assert terminal.getvalue().endswith("\x1b[2K")


def test_a_load_that_fails_takes_the_bar_along(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = open_terminal(monkeypatch, show_after=0.0)

    def load() -> None:
        with loading_bar() as progress:
            assert progress is not None
            progress(1, 2)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        load()
    assert terminal.getvalue().endswith("\x1b[2K")


def test_what_comes_before_the_first_weights_does_not_count(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    terminal = open_terminal(monkeypatch, show_after=0.3)
    clock = FakeClock()
    monkeypatch.setattr(pybatcher.cli.loading_bar, "time", SimpleNamespace(monotonic=clock))
    with loading_bar() as progress:
        assert progress is not None
        clock.advance(99.0)
        progress(1, 10)
        assert terminal.getvalue() == ""
        clock.advance(0.5)
        progress(2, 10)
        assert "loading the model" in terminal.getvalue()
