"""Terminal output of `pybatcher demo`: panels that fill while callers stream, then a table.

Where stdout is not a terminal, plain lines with the same content.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress

from rich import box
from rich.console import Console, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from ..calls.completion import Piece
from ..calls.rolling_window import percentile
from .console import visible
from .figures import Figures

__all__ = ["DemoView", "Transcript"]

FRAMES_PER_SECOND = 20
WIDE = 132  # columns from which four panels fit beside each other
PANEL_FRAME = 4  # columns of a panel's border and padding
LEAST_LINES, MOST_LINES = 3, 12  # lines of text in a panel


class Transcript:
    """One caller's question, and the part of the answer that has come."""

    def __init__(self, question: str) -> None:
        self.question = question
        self.answer = ""
        self.tokens = 0
        self.ended = False

    def add(self, piece: Piece) -> None:
        """Append a piece to the answer."""
        self.answer += piece.text
        self.tokens += len(piece.token_ids)
        self.ended = piece.finish_reason is not None


class DemoView:
    """Draws the demo on a terminal; writes plain lines if the console is no terminal."""

    def __init__(self, console: Console) -> None:
        self._console = console

    @asynccontextmanager
    async def watching(self, transcripts: Sequence[Transcript]) -> AsyncIterator[None]:
        """Draw the transcripts while they grow; without a terminal, print them at the end."""
        if not self._console.is_terminal:
            yield
            for i, transcript in enumerate(transcripts, 1):
                lines = f"caller {i}: {transcript.question}\n    {transcript.answer.strip()}\n"
                self._console.print(Text(lines), soft_wrap=True)
            return
        with Live(console=self._console, auto_refresh=False) as live:
            painter = asyncio.create_task(self._paint(live, transcripts))
            try:
                yield
            finally:
                painter.cancel()
                with suppress(asyncio.CancelledError):
                    await painter
                live.update(self._panels(transcripts), refresh=True)

    async def _paint(self, live: Live, transcripts: Sequence[Transcript]) -> None:
        while True:
            live.update(self._panels(transcripts), refresh=True)
            await asyncio.sleep(1 / FRAMES_PER_SECOND)

    def _panels(self, transcripts: Sequence[Transcript]) -> RenderableType:
        columns = 4 if self._console.width >= WIDE else 2
        rows = -(-len(transcripts) // columns)
        # minus two lines of border and one of question
        height = (self._console.height - 1) // rows - 3
        height = min(max(height, LEAST_LINES), MOST_LINES)
        width = self._console.width // columns - PANEL_FRAME
        grid = Table.grid(expand=True)
        for _ in range(columns):
            grid.add_column(ratio=1)
        panels = [
            self._panel(i, transcript, width, height) for i, transcript in enumerate(transcripts, 1)
        ]
        for begin in range(0, len(panels), columns):
            grid.add_row(*panels[begin : begin + columns])
        return grid

    def _panel(self, number: int, transcript: Transcript, width: int, height: int) -> Panel:
        """Return a panel with the question and the last lines of the answer."""
        question = Text(transcript.question, style="dim")
        question.truncate(width, overflow="ellipsis")
        lines = Text(visible(transcript.answer.strip())).wrap(self._console, width)[-height:]
        body = Text("\n").join([question, *lines])
        return Panel(
            body,
            height=height + 3,
            title=f"caller {number}",
            title_align="left",
            subtitle=f"{transcript.tokens} tokens",
            subtitle_align="right",
            border_style="green" if transcript.ended else "cyan",
        )

    def show_figures(self, together: Figures, in_turn: Figures) -> None:
        """Print the table of both runs, and the speed-up."""
        table = Table("", "eight at once", "one after another", box=box.SIMPLE_HEAD)
        for column in table.columns[1:]:
            column.justify = "right"
        figures: dict[str, Callable[[Figures], str]] = {
            "TTFT, median": lambda run: _milliseconds(percentile(run.ttft, 50)),
            "TTFT, longest": lambda run: _milliseconds(max(run.ttft)),
            "ITL, median": lambda run: _milliseconds(percentile(run.itl, 50)),
            "ITL, p95": lambda run: _milliseconds(percentile(run.itl, 95)),
            "tokens a second": lambda run: f"{run.tokens_per_second:,.0f}",
            "forward passes": lambda run: f"{run.forward_passes:,}",
            "time": lambda run: _milliseconds(run.seconds),
        }
        for name, figure in figures.items():
            table.add_row(name, figure(together), figure(in_turn))
        self._console.print("The same callers again, measured and not drawn:")
        self._console.print(table)
        self._console.print(
            f"{together.tokens} tokens in {together.forward_passes} forward passes instead of "
            f"{in_turn.forward_passes}, {in_turn.seconds / together.seconds:.1f} times as fast."
        )

    def show_verdict(self, equal: bool) -> None:
        """Print whether all texts were equal under every schedule."""
        if equal:
            line = Text("All texts were equal, bit for bit, however they were asked.", "green")
        else:
            line = Text("Texts DIFFERED with the schedule: this is a bug, please report it.", "red")
        self._console.print(line)

    def show_lines(self, lines: Sequence[Text]) -> None:
        """Print lines; on a terminal as `visible`."""
        for line in lines:
            text = visible(line.plain) if self._console.is_terminal else line.plain
            self._console.print(Text(text, style=line.style), soft_wrap=True)


def _milliseconds(seconds: float) -> str:
    return f"{1000 * seconds:,.1f} ms"
