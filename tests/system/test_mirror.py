"""Tests mirror the package: `pybatcher/<room>/x.py` is tested by `tests/<room>/test_x.py`.

Where it is not, the table below says which file tests it, for people: that the file is there is
all that can be checked. Modules that do nothing are no part of this: `__init__`, `__main__`, and
those that only declare values, without a function or a method.
"""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGE, TESTS = ROOT / "pybatcher", ROOT / "tests"

ELSEWHERE = {
    # What all types of tokenizers of a GGUF share.
    "loading/tokenizers/gguf_vocabulary.py": "loading/tokenizers/test_gguf_tokenizer.py",
    # Methods that only forward.
    "calls/composed/composed_calls.py": "calls/composed/test_map_results.py",
    "calls/threads/composed_calls.py": "calls/threads/test_result_streams.py",
    # Plain values, and a protocol.
    "scheduling/plan.py": "scheduling/scenarios/test_forms.py",
    # What commands print, run as a user runs them.
    "cli/chat.py": "cli/test_cli.py",
    "cli/generate.py": "cli/test_cli.py",
    "cli/serve.py": "sidecar/front/test_server.py",
    # Plain values.
    "loading/checkpoints/model_config.py": "loading/families/test_gemma4.py",
    "loading/checkpoints/moe.py": "loading/families/test_gemma4_moe.py",
    "loading/checkpoints/vision_config.py": "engine/test_config_fields.py",
    # Plain values with an accessor or two, and parts that several families share.
    "loading/parts/family.py": "loading/families/test_llama.py",
    "loading/parts/gguf_contents.py": "loading/parts/test_gguf_llama.py",
    "loading/parts/llama_like.py": "loading/families/test_llama.py",
    "loading/parts/pixtral.py": "loading/families/test_mistral.py",
    "loading/parts/siglip.py": "loading/families/vision/test_idefics3.py",
    "loading/parts/qwen_vision.py": "loading/families/vision/test_qwen3_vl.py",
    "loading/parts/vision.py": "loading/families/vision/test_qwen3_vl.py",
    "loading/parts/qwen_windows.py": "loading/families/test_llama.py",
    # Families that differ little from Llama, tested beside it.
    "loading/families/qwen2.py": "loading/families/test_llama.py",
    "loading/families/qwen3.py": "loading/families/test_llama.py",
    # A part of what metadata describe.
    "loading/parts/gguf_rope.py": "loading/parts/test_gguf_llama.py",
    # Handlers and what they share, asked by OpenAI's own client.
    "http/openai/tokenizer_routes.py": "http/openai/test_openai_routes.py",
    # What only Ray calls.
    "ray/handle_replicas.py": "suites/ray/test_replicas.py",
    "ray/served.py": "suites/ray/test_replicas.py",
    # Plain values, an interface, and what is both ends of it.
    "ray/replicas.py": "ray/test_routed_output.py",
    "ray/replicated_batcher.py": "ray/test_routed_service.py",
    # A room of tests of its own.
    "engine.py": "engine/test_engine.py",
    # Processes and connections, tested from their other end.
    "sidecar/client/client_service.py": "sidecar/client/test_client.py",
    "sidecar/front/front.py": "sidecar/front/test_server.py",
    "sidecar/front/listener.py": "sidecar/front/test_server.py",
    "sidecar/front/socket_listener.py": "sidecar/front/test_server.py",
    "sidecar/front/otlp_traces.py": "calls/test_tracing.py",
    "sidecar/front/http_listener.py": "http/server/test_serve_http.py",
    "sidecar/worker.py": "sidecar/front/test_worker_supervisor.py",
}


@cache
def modules() -> list[str]:
    return sorted(
        path.relative_to(PACKAGE).as_posix()
        for path in PACKAGE.rglob("*.py")
        if not path.name.startswith("__") and has_functions(path)
    )


def has_functions(path: Path) -> bool:
    nodes = ast.walk(ast.parse(path.read_text()))
    return any(isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) for node in nodes)


def own_test(module: str) -> Path:
    path = TESTS / module
    return path.with_name(f"test_{path.name}")


def test_each_module_has_its_test() -> None:
    assert modules()
    tests = [own_test(module) for module in modules() if module not in ELSEWHERE]
    missing = [str(test.relative_to(ROOT)) for test in tests if not test.exists()]
    assert not missing, f"write {missing}"


@pytest.mark.parametrize(("module", "tested_by"), ELSEWHERE.items())
def test_the_table_is_true(module: str, tested_by: str) -> None:
    assert (PACKAGE / module).exists(), "it is gone: take it out of the table"
    assert not own_test(module).exists(), "it has its own test: take it out of the table"
    assert (TESTS / tested_by).exists()


def test_tests_lie_in_rooms_of_the_package_or_of_their_own() -> None:
    rooms = {path.parent.relative_to(TESTS).as_posix() for path in TESTS.rglob("test_*.py")}
    beside = {
        *("attacks", "clients", "docs", "emulated", "engine", "examples", "lm_eval"),
        *("models", "page", "real", "suites", "suites/llama_cpp", "suites/ray", "system"),
        *("calls/kinds", "scheduling/scenarios", "serving/batchers", "system/models"),
        *("templates", "tools", "vocabularies"),
    }
    assert beside <= rooms
    mirrored = {room: PACKAGE if not room.startswith("bench/") else ROOT for room in rooms - beside}
    assert [room for room, folder in mirrored.items() if not (folder / room).is_dir()] == []


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
