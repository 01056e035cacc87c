from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import pytest

from bench.serving.loads import LOADS, add_load_arguments, trace_from
from bench.serving.traces import (
    Lengths,
    Load,
    TraceRequest,
    draw,
    longest,
    prompt_of,
    read_trace,
    write_trace,
)

SHORT = Lengths(8, 0.5, 20)


def test_arrivals_are_a_poisson_process() -> None:
    trace = draw(Load(own_tokens=SHORT, new_tokens=SHORT), 4000, rate=5.0, seed=1)
    gaps = np.diff([request.at for request in trace])
    assert (gaps >= 0).all()
    assert gaps.mean() == pytest.approx(0.2, rel=0.1)
    assert gaps.std() == pytest.approx(0.2, rel=0.1)
    assert trace == draw(Load(own_tokens=SHORT, new_tokens=SHORT), 4000, rate=5.0, seed=1)
    assert trace != draw(Load(own_tokens=SHORT, new_tokens=SHORT), 4000, rate=5.0, seed=2)


def test_lengths_are_lognormal_up_to_the_longest() -> None:
    drawn = Lengths(100, 1.0, 500).draw(np.random.default_rng(0), 10_000)
    assert drawn.min() >= 1
    assert drawn.max() == 500
    assert np.median(drawn) == pytest.approx(100, rel=0.05)
    assert Lengths(100, 1.0, 500).mean == pytest.approx(164.9, abs=0.1)


def test_groups_share_their_beginning_and_some_are_more_popular() -> None:
    load = Load(own_tokens=SHORT, new_tokens=SHORT, groups=4, shared_tokens=50, in_group=0.5)
    trace = draw(load, 1000, rate=1.0, seed=0)
    prompts = [prompt_of(request, i, seed=7) for i, request in enumerate(trace)]
    assert all(len(p) == r.prompt_tokens for p, r in zip(prompts, trace, strict=True))
    by_group: dict[str, list[tuple[int, ...]]] = {}
    for request, prompt in zip(trace, prompts, strict=True):
        by_group.setdefault(request.group, []).append(prompt)
    alone = by_group.pop("")
    assert 400 < len(alone) < 600
    assert len({p[:50] for of_one in by_group.values() for p in of_one}) == 4
    assert all(len({p[:50] for p in of_one}) == 1 for of_one in by_group.values())
    assert len(by_group["group 0"]) > 2 * len(by_group["group 3"])
    assert prompts[3] == prompt_of(trace[3], 3, seed=7)
    assert prompts[3] != prompt_of(trace[3], 3, seed=8)


def test_priorities_tenants_and_outputs_that_stay_below_what_was_asked_for() -> None:
    load = Load(own_tokens=SHORT, new_tokens=SHORT, max_tokens=10, priorities=3, namespaces=2)
    trace = draw(load, 500, rate=1.0, seed=0)
    assert {r.priority for r in trace} == {0, 1, 2}
    assert {r.namespace for r in trace} == {"tenant 0", "tenant 1"}
    assert {r.max_tokens for r in trace} == {10}
    assert max(r.new_tokens for r in trace) == 10
    assert longest(trace) == max(r.prompt_tokens for r in trace) + 10


def test_a_trace_survives_a_file_and_is_put_in_order(tmp_path: Path) -> None:
    trace = draw(LOADS["starved"].load, 20, rate=1.0, seed=0)
    file = tmp_path / "trace.jsonl"
    write_trace(file, reversed(trace))
    assert read_trace(file) == trace
    parser = argparse.ArgumentParser()
    add_load_arguments(parser, requests=5)
    assert trace_from(parser.parse_args(["--trace", str(file)]), rate=1.0) == trace
    assert len(trace_from(parser.parse_args([]), rate=1.0)) == 5


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('{"at": 1}', "line 2: .*prompt_tokens"),
        ('{"at": 1, "prompt_tokens": 3, "new_tokens": 0}', "new_tokens is 0"),
        ('{"at": 1, "prompt_tokens": 3, "new_tokens": 5, "max_tokens": 4}', "max_tokens is 4"),
        ('{"at": 1, "prompt_tokens": 3, "new_tokens": 1, "shared_tokens": 4}', "shared_tokens"),
        ('{"at": 1, "prompt_tokens": 3, "new_tokens": 1, "colour": 4}', "unknown: colour"),
        ("what", "line 2"),
    ],
)
def test_a_malformed_line_is_named(tmp_path: Path, line: str, said: str) -> None:
    file = tmp_path / "trace.jsonl"
    file.write_text('{"at": 0.5, "prompt_tokens": 3, "new_tokens": 2}\n' + line + "\n")
    with pytest.raises(SystemExit, match=said):
        read_trace(file)


def test_an_empty_file_is_no_trace(tmp_path: Path) -> None:
    file = tmp_path / "trace.jsonl"
    file.write_text("\n")
    with pytest.raises(SystemExit, match="has no request"):
        read_trace(file)


def test_a_request_is_an_arrival_of_lengths() -> None:
    with pytest.raises(ValueError, match="at is -1"):
        TraceRequest(at=-1, prompt_tokens=1, new_tokens=1)
