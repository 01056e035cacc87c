"""What commands say on a terminal when they cannot go on: one line, and an exit status."""

from __future__ import annotations

import io
import sys
import warnings

import pytest

from pybatcher import ConfigError
from pybatcher.cli.console import remark, report_error, report_errors, write, write_foreign


class Streams:
    """A stdout and a stderr that know ASCII only; `out` and `err` have the bytes."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.out, self.err = io.BytesIO(), io.BytesIO()
        self._texts = [
            io.TextIOWrapper(raw, "ascii", write_through=True) for raw in (self.out, self.err)
        ]
        patch.setattr(sys, "stdout", self._texts[0])
        patch.setattr(sys, "stderr", self._texts[1])


@pytest.mark.parametrize(
    ("raised", "line"),
    [
        (ConfigError("n_ctx is 0;\n it must be more"), b"error: n_ctx is 0; it must be more\n"),
        (MemoryError(), b"error: not enough memory"),
        (OSError(28, "No space left on device"), b"error: [Errno 28] No space left on device\n"),
    ],
)
def test_an_error_is_one_line_and_status_2(
    raised: Exception, line: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    streams = Streams(monkeypatch)
    with pytest.raises(SystemExit) as exit_, report_errors():
        raise raised
    assert exit_.value.code == 2
    said = streams.err.getvalue()
    assert said.startswith(line)
    assert said.count(b"\n") == 1


def test_a_defect_of_ours_keeps_its_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    streams = Streams(monkeypatch)
    with pytest.raises(ZeroDivisionError), report_errors():
        raise ZeroDivisionError
    assert streams.err.getvalue() == b""


def test_warnings_are_lines_and_characters_that_cannot_be_shown_are_replaced(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    streams = Streams(monkeypatch)
    with warnings.catch_warnings(), report_errors():
        warnings.simplefilter("always")
        warnings.warn("slow é", stacklevel=1)
        write("é")
        report_error("é")
    assert streams.out.getvalue() == b"?"
    assert streams.err.getvalue() == b"warning: slow ?\nerror: ?\n"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


ESCAPES = "a\x1b]52;c;ZXZpbA==\x07b\x1b[2J\x9b31m\x08\x7f\x00\r\vc\td\r\né"
SHOWN = (
    "a\\x1b]52;c;ZXZpbA==\\x07b\\x1b[2J\\x9b31m\\x08\\x7f\\x00\\x0d\\x0bc\td\né"  # harmless text
)


@pytest.mark.parametrize("kind", [Terminal, io.StringIO])
def test_text_of_others_is_visible_on_a_terminal_and_unchanged_in_a_pipe(
    kind: type[io.StringIO], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", "dumb")
    monkeypatch.setenv("NO_COLOR", "1")
    out, err = kind(), kind()
    monkeypatch.setattr(sys, "stdout", out)
    monkeypatch.setattr(sys, "stderr", err)
    write_foreign(ESCAPES)
    remark("\x1b[31mthought\x1b]0;title\x07")
    report_error("\x1b[2Jbad")
    if kind is Terminal:
        assert out.getvalue() == SHOWN
        assert "\\x1b[31mthought\\x1b]0;title\\x07error: \\x1b[2Jbad" in err.getvalue()
        assert not {"\x1b", "\x07"} & {*err.getvalue()}
    else:
        assert out.getvalue() == ESCAPES
        assert "\x1b]0;title" in err.getvalue()
