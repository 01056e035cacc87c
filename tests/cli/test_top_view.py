from __future__ import annotations

import io

import pytest
from rich.console import Console
from telemetry_events import request, statistics, step

from pybatcher import Health
from pybatcher.cli.top_view import TopView, sparkline

READY = Health("ready", "requests are served")


def drawn(view: TopView, width: int = 100, height: int = 40) -> list[str]:
    """Return the lines of the frame."""
    console = Console(file=io.StringIO(), width=width, height=height, color_system=None)
    console.print(view.render(width, height))
    return console.file.getvalue().splitlines()


def words(line: str) -> str:
    """Return the text with single spaces."""
    return " ".join(line.split())


def about(label: str, view: TopView, **size: int) -> str:
    """Return the line of the frame with this label."""
    (line,) = [line for line in drawn(view, **size) if line.startswith(label)]
    return line


@pytest.fixture
def view() -> TopView:
    """A view after two seconds of work."""
    view = TopView("tiny")
    view.update(statistics(), READY, 100.0)
    for i in range(4):
        view.take(step(100.5 + i / 2, decode_rows=1 + i, prefill_rows=10, draft_rows=0, queued=i))
    view.take(request(101.0, 7, itl=(0.020, 0.040), prompt_tokens=1234))
    view.take(request(101.5, 8, finish_reason="EngineFailedError", ttft=None, itl=()))
    counts = statistics(
        queued=5,
        queued_tokens=1500,
        running=2,
        completed=11,
        cancelled=3,
        expired=1,
        failed=4,
        rejected=6,
        steps=8,
        prompt_tokens=100,
        cached_tokens=40,
        generated_tokens=2468,
        proposed_tokens=8,
        accepted_tokens=2,
        preemptions=9,
        recomputed_tokens=77,
        restarts=3,
        kv_free_blocks=3,
        kv_cached_blocks=2,
    )
    view.update(counts, READY, 102.0)
    return view


def test_title(view: TopView) -> None:
    assert about("pybatcher top", view) == "pybatcher top  tiny  ready  0:00:02"
    view.update(statistics(), Health("failed", "the engine failed"), 3822.0)
    assert about("pybatcher top", view).endswith("failed: the engine failed  1:02:02")


def test_throughput_is_what_the_counts_have_grown_by(view: TopView) -> None:
    assert about("tokens", view).split("  ")[-1].strip() == (
        "1,234/s generated, 30/s of prompts computed, 20/s taken from the cache"
    )
    assert about("steps", view).endswith("4/s of 2.0 ms, 50% of it in the engine")


def test_rates_cover_the_last_seconds(view: TopView) -> None:
    for now in (103.0, 104.0, 105.0, 106.0):
        view.update(statistics(generated_tokens=2468), READY, now)
    assert " 0/s generated" in about("tokens", view)


def test_rows_by_kind_and_the_queue_over_time(view: TopView) -> None:
    assert about("decode", view).split(" 2.50 rows a step")[0][-3:] == "▃▆█"
    assert about("prefill", view).split(" 10.00 rows a step")[0][-3:] == "███"
    assert about("draft", view).split(" 0.00 rows a step")[0][-3:] == "   "
    assert about("waiting", view).endswith("▆█ 5 (1,500 tokens)")


@pytest.mark.parametrize("width", [80, 100, 200])
def test_kv_is_a_bar(view: TopView, width: int) -> None:
    line = about("KV", view, width=width)
    bars = min(60, width - 31)
    assert line.endswith("50% used 20% cached")
    assert line.count("█") == round(bars * 0.5)
    assert line.count("▒") == round(bars * 0.2)
    assert sum(map(line.count, "█▒░")) == bars


def test_percentiles_of_the_last_minute(view: TopView) -> None:
    assert words(about("TTFT", view)) == "TTFT 10.0 ms 10.0 ms 10.0 ms of 1"
    assert words(about("ITL", view)) == "ITL 20.0 ms 40.0 ms 40.0 ms of 2"
    assert about("total", view).split()[-1] == "2"


def test_advice_while_requests_wait_and_steps_have_room(view: TopView) -> None:
    assert not any(line.startswith("advice") for line in drawn(view)), "it has to wait for seconds"
    waiting = statistics(queued=3, running=8, max_running=8, max_rows=512)
    for now in (103.0, 106.1):
        view.update(waiting, READY, now)
    assert about("advice", view).endswith(
        "3 wait while steps have 0 of 512 rows: all 8 places are taken; raise n_parallel"
    )
    assert view.line().endswith("raise n_parallel")
    assert len(drawn(view)) <= 40
    view.update(statistics(running=8, max_running=8, max_rows=512), READY, 106.2)
    assert "n_parallel" not in view.line()


def test_totals(view: TopView) -> None:
    assert about("requests", view).endswith(
        "2 run, 11 completed, 3 cancelled, 1 expired, 4 failed, 6 rejected"
    )
    assert about("besides", view).endswith(
        "9 preemptions, 77 tokens recomputed, 25% of drafts accepted, 3 restarts"
    )


def test_recent_requests_as_many_as_there_is_room_for(view: TopView) -> None:
    head, latest, before = drawn(view)[-3:]
    assert words(head) == "request ended prompt cached tokens queued TTFT TPOT total"
    assert words(latest) == "8 EngineFailedError 10 4 2 1.0 ms 30.0 ms"
    assert words(before) == "7 length 1,234 4 2 1.0 ms 10.0 ms 30.0 ms 30.0 ms"
    for i in range(100):
        view.take(request(102.0, 1000 + i))
    for height in (21, 22, 24, 50):
        lines = drawn(view, height=height)
        assert len(lines) == (height if height > 21 else 19)
    assert "1099" in drawn(view, height=22)[-1]


def test_a_small_terminal_gets_what_fits(view: TopView) -> None:
    lines = drawn(view, width=40, height=5)
    assert len(lines) == 19, "none is wrapped; the terminal shows the first"
    assert all(len(line) <= 40 for line in lines)


def test_a_view_that_has_seen_nothing_yet() -> None:
    view = TopView("tiny")
    view.update(statistics(), READY, 5.0)
    assert " 0/s generated" in about("tokens", view)
    assert about("TTFT", view).split()[-1] == "0"
    assert view.line().startswith("0:00:00  ready  0 tok/s")


def test_the_line(view: TopView) -> None:
    assert view.line().split("  ") == [
        "0:00:02",
        "ready",
        "1,234 tok/s",
        "4 steps/s",
        "rows 2.50 decode 10.00 prefill 0.00 draft",
        "2 running 5 waiting",
        "KV 50%",
        "TTFT 10.0/10.0/10.0 ms",
        "ITL 20.0/40.0/40.0 ms",
        "19 ended 4 failed",
    ]


def test_names_are_no_markup() -> None:
    view = TopView("[red]model[/red] [/]")
    view.update(statistics(), READY, 5.0)
    view.take(request(5.0, finish_reason="[/]"))
    assert "[red]model[/red] [/]" in about("pybatcher top", view)
    assert "[/]" in drawn(view)[-1]


@pytest.mark.parametrize(
    ("values", "bars"),
    [
        ([], ""),
        ([0.0, 0.0], "  "),
        ([1.0, 8.0, 4.0, 0.0, 0.001], "▂█▅ ▁"),
        ([3.0], "█"),
    ],
)
def test_sparkline(values: list[float], bars: str) -> None:
    assert sparkline(values) == bars


@pytest.mark.parametrize(
    ("reason", "colour"),
    [("length", 32), ("scored", 32), ("embedded", 32), ("cancelled", 33), ("QueueFullError", 31)],
)
def test_good_ends_are_green(view: TopView, reason: str, colour: int) -> None:
    view.take(request(101.9, 9, finish_reason=reason, ttft=None, itl=()))
    console = Console(
        file=io.StringIO(), width=100, height=40, color_system="standard", force_terminal=True
    )
    console.print(view.render(100, 40))
    assert f"\x1b[{colour}m{reason}" in console.file.getvalue()


def test_text_of_the_server_does_not_control_the_terminal() -> None:
    view = TopView("tiny\x1b]0;evil\x07")
    view.update(statistics(), Health("failed", "\x1b[2Jgone"), 100.0)
    view.take(request(101.0, 7, finish_reason="\x9bstop"))
    text = "\n".join(drawn(view))
    for shown in ("tiny\\x1b]0;evil\\x07", "\\x1b[2Jgone", "\\x9bstop"):
        assert shown in text
    assert not {"\x1b", "\x07", "\x9b"} & {*text}
