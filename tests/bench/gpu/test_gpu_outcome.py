from __future__ import annotations

import pytest

from bench.gpu.outcome import FAILED, NOT_RUN, PASSED, Outcome, exit_status


def test_a_stage_that_checked_nothing_has_not_passed() -> None:
    assert Outcome().verdict == NOT_RUN
    assert Outcome().as_json()["why_not"] == "nothing was checked"
    assert Outcome(why_not="no GPU").as_json()["why_not"] == "no GPU"
    assert Outcome(checks=3, why_not="no GPU").verdict == NOT_RUN
    assert Outcome(checks=3, left_out={"wgmma": "no code"}).verdict == PASSED
    assert "why_not" not in Outcome(checks=3).as_json()


def test_a_failure_is_no_less_one_where_all_else_passed_or_nothing_ran() -> None:
    assert Outcome(checks=3, failures=("one",)).verdict == FAILED
    assert Outcome(failures=("one",), why_not="cut off").verdict == FAILED


@pytest.mark.parametrize(
    ("verdicts", "status"),
    [
        ([PASSED, PASSED], 0),
        ([PASSED, NOT_RUN], 2),
        ([NOT_RUN, FAILED, PASSED], 1),
        ([], 2),
    ],
)
def test_only_what_passed_throughout_ends_with_0(verdicts: list[str], status: int) -> None:
    assert exit_status(verdicts) == status
