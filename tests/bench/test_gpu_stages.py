from __future__ import annotations

from pathlib import Path

import pytest

from bench import gpu_check
from bench.gpu import stages
from bench.gpu.outcome import FAILED, NOT_RUN, PASSED, Outcome
from bench.gpu.process import Finished
from bench.gpu.run import EMULATED, Run
from bench.gpu.speed import speed
from bench.progress import bar

JUNIT = """<testsuites><testsuite>
<testcase classname="a" name="test_one" />
<testcase classname="a" name="test_two"><failure message="AssertionError: 1 != 2">...</failure></testcase>
<testcase classname="a" name="test_three"><skipped message="no torch" /></testcase>
<testcase classname="a" name="test_four"><error message="fixture failed" /></testcase>
</testsuite></testsuites>"""  # noqa: E501


def finished(status: int | None, output: str = "", errors: str = "") -> Finished:
    return Finished(status, output, errors, 1.0)


def make_run(folder: Path, device: str) -> Run:
    with bar(1) as progress:
        return Run(device, True, folder, None, 0.0, 1e12, progress)


def test_a_report_of_pytest_is_read() -> None:
    outcome = stages.read_junit(JUNIT, {"other": "left out"})
    assert outcome.verdict == FAILED
    assert outcome.failures == (
        "test_two: AssertionError: 1 != 2",
        "test_four: fixture failed",
    )
    assert outcome.left_out == {"other": "left out", "test_three": "no torch"}
    assert outcome.checks == 1


def test_a_report_without_a_test_that_ran_is_no_pass() -> None:
    assert stages.read_junit("<testsuites/>", {}).verdict == NOT_RUN
    skipped = '<testsuite><testcase name="a"><skipped message="no" /></testcase></testsuite>'
    assert stages.read_junit(skipped, {}).verdict == NOT_RUN
    passed = '<testsuite><testcase name="a"></testcase></testsuite>'
    assert stages.read_junit(passed, {}).verdict == PASSED


@pytest.mark.parametrize(
    ("done", "problem"),
    [
        (finished(0, "========= ERROR SUMMARY: 0 errors\n"), ""),
        (finished(0, "========= RACECHECK SUMMARY: 0 hazards displayed (0 errors)\n"), ""),
        (finished(0, "========= ERROR SUMMARY: 2 errors\n"), "2 errors"),
        (finished(99, "========= RACECHECK SUMMARY: 1 hazard displayed (1 error)\n"), "1 errors"),
        (finished(1, "========= ERROR SUMMARY: 0 errors\n", "Traceback"), "ended with 1"),
        (finished(0, "{}"), "no summary"),
        (finished(None, "========= ERROR SUMMARY: 0 errors\n"), "no summary"),
    ],
)
def test_what_a_sanitizer_found(done: Finished, problem: str) -> None:
    found = stages.read_sanitizer(done)
    assert found.startswith(problem)
    assert bool(found) == bool(problem)


def test_stages_without_their_programs_are_not_run(tmp_path: Path) -> None:
    for device in ("cuda", EMULATED):
        for stage in (stages.bits, speed):
            outcome = stage(make_run(tmp_path, device))
            assert outcome.verdict == NOT_RUN
            assert "make gpu-kit" in outcome.why_not
    assert stages.sanitizers(make_run(tmp_path, EMULATED)).verdict == NOT_RUN


def test_what_a_stage_raises_is_its_failure(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def broken(_: Run) -> Outcome:
        raise OSError("no space")

    monkeypatch.setitem(gpu_check.STAGES, "a", ("bits", broken))
    outcome = gpu_check.run_stage("a", make_run(tmp_path, EMULATED))
    assert (outcome.verdict, outcome.failures) == (FAILED, ("OSError: no space",))


def test_letters_of_stages() -> None:
    assert gpu_check.stages_of("all") == ["a", "b", "c", "d"]
    assert gpu_check.stages_of("d,a") == ["d", "a"]
    with pytest.raises(SystemExit, match="e is not one of"):
        gpu_check.stages_of("a,e")


def test_a_result_of_the_emulator_never_has_the_name_of_a_gpu() -> None:
    facts = {"devices": [["NVIDIA H200", [9, 0], 1]]}
    assert gpu_check.name_of("cuda", facts) == "nvidia-h200"
    assert gpu_check.name_of(EMULATED, facts) == "emulated"
    assert gpu_check.name_of("cuda", {}) == "no-gpu"
