from __future__ import annotations

import io

import pytest
from rich.console import Console
from rich.text import Text

from pybatcher.calls.completion import Piece
from pybatcher.cli.demo_view import DemoView, Transcript


def transcripts(*answers: str) -> list[Transcript]:
    """Return an empty transcript per text."""
    return [Transcript(f"question {i}") for i in range(len(answers))]


async def shown(answers: list[str], *, terminal: bool, width: int = 100, height: int = 40) -> str:
    file = io.StringIO()
    console = Console(
        file=file, force_terminal=terminal, width=width, height=height, color_system=None
    )
    callers = transcripts(*answers)
    async with DemoView(console).watching(callers):
        for caller, answer in zip(callers, answers, strict=True):
            caller.add(Piece(answer[:3], (1,), None))
            caller.add(Piece(answer[3:], (2, 3), None, "stop"))
    return file.getvalue()


async def test_without_a_terminal_there_are_lines_and_no_escape_codes() -> None:
    text = await shown(["first answer", "a line that is long " * 20], terminal=False)
    assert text.startswith("caller 1: question 0\n    first answer\n\ncaller 2: question 1\n")
    assert "a line that is long " * 19 in text
    assert "\x1b" not in text


async def test_a_terminal_has_a_panel_for_each_caller() -> None:
    text = await shown(["one", "two", "three"], terminal=True)
    last_frame = text[text.rindex("caller 1") :]
    for part in ("caller 2", "caller 3", "question 0", "one", "two", "three", "3 tokens"):
        assert part in last_frame


@pytest.mark.parametrize(("width", "height"), [(80, 24), (131, 30), (200, 60)])
async def test_a_long_answer_shows_its_end_in_a_terminal_of_any_size(
    width: int, height: int
) -> None:
    answer = " ".join(f"w{i}" for i in range(500))
    text = await shown([answer] * 8, terminal=True, width=width, height=height)
    last_frame = text[text.rindex("caller 1") :]
    assert last_frame.count("w499") == 8
    assert "w0 " not in last_frame


async def test_a_terminal_that_is_too_small_shows_what_fits() -> None:
    assert await shown(["an answer"] * 8, terminal=True, width=12, height=3)


async def test_text_of_a_model_is_no_markup() -> None:
    for terminal in (False, True):
        assert "[red]bold[/red] [/]" in await shown(["[red]bold[/red] [/]"], terminal=terminal)


async def test_painting_stops_when_a_caller_fails() -> None:
    console = Console(file=io.StringIO(), force_terminal=True)
    with pytest.raises(RuntimeError, match="caller failed"):
        async with DemoView(console).watching(transcripts("")):
            raise RuntimeError("caller failed")


async def test_an_answer_does_not_control_the_terminal() -> None:
    text = await shown(["\x1b]52;c;ZXZpbA==\x07 and \x9b2J"], terminal=True)
    assert "\\x1b]52;c;ZXZpbA==\\x07 and \\x9b2J" in text
    assert "\x1b]52" not in text
    assert not {"\x07", "\x9b"} & {*text}


@pytest.mark.parametrize("terminal", [True, False])
def test_values_do_not_control_the_terminal(terminal: bool) -> None:
    file = io.StringIO()
    console = Console(file=file, force_terminal=terminal, color_system=None)
    DemoView(console).show_lines([Text("\x1b]0;title", style="bold")])
    assert file.getvalue() == ("\\x1b]0;title\n" if terminal else "\x1b]0;title\n")
