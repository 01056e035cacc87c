"""Tests mirror the package: `pybatcher/<room>/x.py` is tested by `tests/<room>/test_x.py`.

Where it is not, the table below says which file tests it, for people: that the file is there is
all that can be checked. Modules without statements of their own
(`__init__`, `__main__`) are no part of this.
"""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGE, TESTS = ROOT / "pybatcher", ROOT / "tests"

ELSEWHERE = {
    # The calls of a batcher, tested through one.
    "batcher.py": "serving/test_batcher.py",
    "calls/call.py": "sidecar/protocol/test_wire_calls.py",
    "calls/generating_calls.py": "calls/test_any_batcher.py",
    "calls/inquiry.py": "calls/test_scoring_calls.py",
    "calls/prefix_calls.py": "serving/test_prefixes.py",
    "calls/prefix_info.py": "serving/test_prefixes.py",
    "calls/statistics.py": "sidecar/protocol/test_wire_statistics.py",
    "serving/engine_executor.py": "serving/test_batcher_hang.py",
    "serving/inquiry_delivery.py": "serving/test_output_processor.py",
    "serving/prefix_names.py": "serving/test_prefixes.py",
    "serving/request_record.py": "calls/test_telemetry.py",
    "serving/runtime.py": "system/test_resume_with_engine.py",
    "serving/service.py": "serving/test_batcher.py",
    "threads/blocking_calls.py": "threads/test_blocking.py",
    "threads/blocking_stream.py": "threads/test_blocking.py",
    # What commands print, run as a user runs them.
    "cli/chat.py": "cli/test_cli.py",
    "cli/generate.py": "cli/test_cli.py",
    "cli/info.py": "cli/test_cli.py",
    "cli/serve.py": "sidecar/front/test_server.py",
    # A room of tests of its own.
    "engine.py": "engine/test_engine.py",
    # Values that one loader makes, and limits that it checks.
    "loading/limits.py": "loading/test_llama_config.py",
    "loading/loaded_model.py": "loading/test_loader.py",
    "loading/model_config.py": "loading/test_gguf_config.py",
    # Parts of the scheduler, tested through its steps.
    "scheduling/admission.py": "scheduling/test_seeds_of_admission.py",
    "scheduling/batch_builder.py": "scheduling/test_seeds_of_admission.py",
    "scheduling/budget.py": "scheduling/test_seeds_of_admission.py",
    "scheduling/counters.py": "scheduling/test_scheduler.py",
    "scheduling/events.py": "scheduling/test_scheduler.py",
    "scheduling/kv_allocator.py": "testing/test_fake_engine.py",
    "scheduling/plan.py": "scheduling/test_scheduler.py",
    "scheduling/poison.py": "scheduling/test_recovery.py",
    "scheduling/preemption.py": "scheduling/test_seeds_of_admission.py",
    "scheduling/prefix.py": "serving/test_prefixes.py",
    "scheduling/request.py": "scheduling/test_scheduler.py",
    "scheduling/request_table.py": "scheduling/test_scheduler.py",
    "scheduling/statistics.py": "scheduling/test_scheduler.py",
    # Processes and connections, tested from their other end.
    "sidecar/client/client_service.py": "sidecar/client/test_client.py",
    "sidecar/front/front.py": "sidecar/front/test_server.py",
    "sidecar/protocol/codecs.py": "sidecar/protocol/test_wire_calls.py",
    "sidecar/worker.py": "sidecar/front/test_worker_supervisor.py",
}


def modules() -> list[str]:
    return sorted(
        path.relative_to(PACKAGE).as_posix()
        for path in PACKAGE.rglob("*.py")
        if not path.name.startswith("__")
    )


def own_test(module: str) -> Path:
    path = TESTS / module
    return path.with_name(f"test_{path.name}")


@pytest.mark.parametrize("module", modules())
def test_each_module_has_its_test(module: str) -> None:
    if module not in ELSEWHERE:
        assert own_test(module).exists(), f"write {own_test(module).relative_to(ROOT)}"


@pytest.mark.parametrize(("module", "tested_by"), ELSEWHERE.items())
def test_the_table_is_true(module: str, tested_by: str) -> None:
    assert (PACKAGE / module).exists(), "it is gone: take it out of the table"
    assert not own_test(module).exists(), "it has its own test: take it out of the table"
    assert (TESTS / tested_by).exists()


@pytest.mark.parametrize("path", sorted(TESTS.rglob("test_*.py")), ids=lambda path: path.name)
def test_tests_lie_in_rooms_of_the_package_or_of_their_own(path: Path) -> None:
    room = path.parent.relative_to(TESTS).as_posix()
    beside = {"attacks", "bench", "examples", "system", "tools", "engine", "models"}
    assert room in beside or (PACKAGE / room).is_dir(), f"{room} is no room"


def test_no_test_is_there_twice() -> None:
    """Of two functions of one name in a file, the first would never run."""
    for path in TESTS.rglob("test_*.py"):
        names = [
            node.name
            for node in ast.parse(path.read_text()).body
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        ]
        twice = {name for name in names if names.count(name) > 1}
        assert not twice, f"{path.relative_to(ROOT)} has {twice} twice"
