from __future__ import annotations

import sys
import time
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bench.common.progress import bar
from bench.gpu import gpu_check, stages
from bench.gpu.outcome import FAILED, NOT_RUN, PASSED, Outcome
from bench.gpu.process import Finished
from bench.gpu.run import EMULATED, Run, unpack_wheel
from bench.gpu.speed import speed

JUNIT = """<testsuites><testsuite>
<testcase classname="a" name="test_one" />
<testcase classname="a" name="test_two"><failure message="AssertionError: 1 != 2">...</failure></testcase>
<testcase classname="a" name="test_three"><skipped message="no torch" /></testcase>
<testcase classname="a" name="test_four"><error message="fixture failed" /></testcase>
</testsuite></testsuites>"""  # noqa: E501


def finished(status: int | None, output: str = "", errors: str = "") -> Finished:
    return Finished(status, output, errors, 1.0)


def make_run(folder: Path, device: str) -> Run:
    now = time.monotonic()
    with bar(1) as progress:
        return Run(device, True, folder, None, now, now + 600.0, progress)


def write_program(file: Path, code: str) -> None:
    file.write_text(f"#!{sys.executable}\nimport sys\n{code}\n")
    file.chmod(0o755)


# kernel_bits of a GPU whose bits are those of the emulator's model of its tensor cores.
KERNEL_BITS = """
on_gpu = sys.argv[1] == "cuda"
model = CAPABILITY_MODEL if on_gpu else sys.argv[2].removeprefix("mma=")
print('{"device": "x", "capability": [CAPABILITY, 0], "mma": "%s"}' % model)
print('{"case": "gemm", "group": "gemm", "mma": true, "hash": "%s"}' % model)
print('{"case": "norm", "group": "norm", "mma": false, "hash": "aa"}')
print('{"cases": 2, "not_launched": []}')
"""


def bits_of_gpu(folder: Path, capability: int, model: str, more: str = "") -> Outcome:
    code = KERNEL_BITS.replace("CAPABILITY_MODEL", repr(model))
    write_program(folder / "kernel_bits", code.replace("CAPABILITY", str(capability)) + more)
    return stages.bits(make_run(folder, "cuda"))


def test_bits_of_a_gpu_are_compared_by_the_model_of_its_architecture(tmp_path: Path) -> None:
    for capability, model in ((8, "ampere"), (9, "hopper")):
        outcome = bits_of_gpu(tmp_path, capability, model)
        assert (outcome.verdict, outcome.failures) == (PASSED, ())
        assert outcome.figures["mma_model"] == model
        assert outcome.figures["same_as_emulator"] == 2
    assert bits_of_gpu(tmp_path, 8, "hopper").verdict == FAILED
    outcome = bits_of_gpu(tmp_path, 10, "blackwell")
    assert outcome.verdict == PASSED
    assert outcome.figures["same_as_emulator"] == 1  # that without mma


def test_a_gpu_that_cannot_be_used_or_a_program_that_crashes(tmp_path: Path) -> None:
    write_program(tmp_path / "kernel_bits", 'print(\'{"not_run": "no driver"}\'); sys.exit(3)')
    outcome = stages.bits(make_run(tmp_path, "cuda"))
    assert (outcome.verdict, outcome.why_not) == (NOT_RUN, "no driver")
    write_program(tmp_path / "kernel_bits", "sys.exit('no memory')")
    outcome = stages.bits(make_run(tmp_path, "cuda"))
    assert (outcome.verdict, outcome.failures) == (
        FAILED,
        ("kernel_bits ended with 1: no memory",),
    )
    outcome = bits_of_gpu(tmp_path, 9, "hopper", "\nif on_gpu: sys.exit('lost')")
    assert outcome.verdict == FAILED
    assert "lost" in outcome.failures[0]


def test_sanitizers_are_run_over_kernels_and_an_engine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = tmp_path / "log"
    code = f"open({str(log)!r}, 'a').write(' '.join(sys.argv[1:]) + '\\n')\n"
    write_program(tmp_path / "compute-sanitizer", code + "print('ERROR SUMMARY: 0 errors')")
    write_program(tmp_path / "kernel_bits", "")
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.setattr(Run, "facts", lambda self: {"has_kernels": True, "driver_problem": ""})
    outcome = stages.sanitizers(make_run(tmp_path, "cuda"))
    assert (outcome.verdict, outcome.checks) == (PASSED, 4)
    commands = log.read_text().splitlines()
    assert [line.split()[1] for line in commands] == ["memcheck", "racecheck"] * 2
    assert all("kernel_bits cuda small" in line for line in commands[:2])
    assert all("-m bench.gpu.walk" in line for line in commands[2:])
    write_program(tmp_path / "compute-sanitizer", "print('ERROR SUMMARY: 1 error')")
    outcome = stages.sanitizers(make_run(tmp_path, "cuda"))
    assert (outcome.verdict, len(outcome.failures)) == (FAILED, 4)


@pytest.mark.parametrize(
    ("facts", "why_not"),
    [
        ({"problem": "pybatcher ended with 1"}, "pybatcher ended with 1"),
        ({"has_kernels": False, "driver_problem": ""}, "no CUDA kernels"),
        ({"has_kernels": True, "driver_problem": "there is no driver"}, "there is no driver"),
    ],
)
def test_without_a_gpu_neither_tests_nor_sanitizers_are_run(
    facts: dict[str, Any], why_not: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_program(tmp_path / "compute-sanitizer", "sys.exit('it was run')")
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.setattr(Run, "facts", lambda self: facts)
    for stage in (stages.tests, stages.sanitizers):
        outcome = stage(make_run(tmp_path, "cuda"))
        assert outcome.verdict == NOT_RUN
        assert why_not in outcome.why_not


def test_the_package_of_a_wheel_comes_first(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "x.whl", "w") as wheel:
        wheel.writestr("pybatcher/__init__.py", "PLACE = 'the wheel'")
    folder = unpack_wheel(tmp_path / "x.whl", tmp_path / "package")
    run = replace(make_run(tmp_path, "cuda"), package=folder)
    done = run.python("-c", "import pybatcher; print(pybatcher.PLACE)")
    assert (done.status, done.output) == (0, "the wheel\n")


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
