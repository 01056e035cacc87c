"""The layers: imports run one way, in Python and in C++, and no source file is long.

errors config params <- scheduling loading text (not of each other) <- engine <- batcher
                                                          <- metrics, testing, sidecar <- cli
base <- kv ops <- cpu cuda model <- engine <- bindings
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "pybatcher"
NATIVE = ROOT / "csrc"
MOST_LINES = 400

# What each part may import besides itself. A part is a folder, or a group of files.
VALUES = {"errors", "config", "params"}
SHELL = {
    "any_batcher",
    "arguments",
    "batcher",
    "blocking",
    "blocking_calls",
    "blocking_stream",
    "call",
    "completion",
    "coordinator",
    "deliveries",
    "delivery",
    "engine_room",
    "engine_thread",
    "generating_calls",
    "inquiry",
    "inquiry_delivery",
    "loop_thread",
    "mailbox",
    "output_text",
    "prefix_calls",
    "prefix_info",
    "prefix_names",
    "prompts",
    "remote_calls",
    "request_tale",
    "runtime",
    "samples",
    "scoring_calls",
    "service",
    "statistics",
    "stream",
    "supervision",
    "system_prompt",
    "telemetry",
    "threadsafe",
}
PARTS = {**dict.fromkeys(VALUES, "values"), **dict.fromkeys(SHELL, "batcher")}
MAY_IMPORT = {
    "values": set(),
    "scheduling": {"values"},
    "models": set(),
    "cuda": set(),
    "loading": {"values", "models"},
    "text": {"values"},
    "weights_cache": {"values", "loading"},
    "engine": {"values", "scheduling", "loading", "weights_cache", "cuda", "_core"},
    "batcher": {"values", "scheduling", "loading", "text", "engine"},
    "metrics": {"values", "batcher"},
    "testing": {"values", "scheduling", "loading", "text", "engine", "batcher"},
    "sidecar": {"values", "scheduling", "loading", "text", "engine", "batcher"},
    "__init__": {"values", "engine", "batcher", "sidecar"},
    "cli": {
        "values",
        "models",
        "loading",
        "text",
        "weights_cache",
        "cuda",
        "engine",
        "batcher",
        "sidecar",
        "__init__",
    },
    "__main__": {"cli"},
}

MAY_INCLUDE = {
    "base": set(),
    "kv": {"base"},
    "ops": {"base"},
    "model": {"base", "ops", "kv"},
    "cpu": {"base", "ops", "model"},
    "cuda": {"base", "ops", "model"},
    "engine": {"base", "kv", "ops", "model", "cpu", "cuda"},
    "bindings": {"base", "kv", "ops", "model", "cpu", "cuda", "engine"},
}

# Plain values that every layer may name, wherever the file lies; it knows nothing but base.
VALUE_HEADERS = {"model/config.h"}

PURE_FILES = [
    "telemetry.py",
    "sidecar/flow.py",
    "sidecar/frame_head.py",
    "sidecar/frames.py",
    "sidecar/journal.py",
    "sidecar/limits.py",
    "sidecar/protocol.py",
    "sidecar/sidecar_statistics.py",
    "sidecar/suspicion.py",
    "sidecar/watchdog.py",
    "sidecar/wire.py",
    "sidecar/wire_calls.py",
    "sidecar/wire_errors.py",
    "sidecar/wire_fields.py",
    "sidecar/wire_questions.py",
    "sidecar/wire_results.py",
    "sidecar/wire_statistics.py",
    "sidecar/worker_spec.py",
]
PURE = {"asyncio", "threading", "time", "random", "socket", "multiprocessing", "concurrent"}


def python_files() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


def native_files() -> list[Path]:
    return sorted(p for p in NATIVE.rglob("*") if p.suffix in {".h", ".cc", ".inc", ".cu"})


def part_of(module: str) -> str:
    """The part that a module of the package belongs to, by its first name below pybatcher."""
    return PARTS.get(module, module)


def imports(path: Path) -> Iterator[str]:
    """Dotted names of all that a file imports, those below pybatcher as `pybatcher.x.y`."""
    package = ("pybatcher", *path.relative_to(PACKAGE).parent.parts)
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else ()
            base = ".".join((*above, *filter(None, [node.module])))
            yield from (f"{base}.{alias.name}" for alias in node.names)


def own_part(path: Path) -> str:
    return part_of(path.relative_to(PACKAGE).parts[0].removesuffix(".py"))


@pytest.mark.parametrize("path", python_files(), ids=lambda p: str(p.relative_to(PACKAGE)))
def test_python_imports_run_one_way(path: Path) -> None:
    part = own_part(path)
    allowed = MAY_IMPORT[part] | {part}
    for name in imports(path):
        names = name.split(".")
        if names[0] != "pybatcher":
            continue
        below = names[1] if len(names) > 1 else ""
        path_below = PACKAGE / below
        is_module = path_below.is_dir() or path_below.with_suffix(".py").exists()
        imported = part_of(below) if is_module or below == "_core" else "__init__"
        assert imported in allowed, f"{path.relative_to(ROOT)} imports {name}"


def test_only_the_engine_imports_the_extension() -> None:
    importers = {
        str(path.relative_to(PACKAGE))
        for path in python_files()
        if any("_core" in name.split(".") for name in imports(path))
    }
    assert importers <= {"engine.py"}


@pytest.mark.parametrize("folder", ["scheduling"])
def test_the_pure_parts_know_no_clock_thread_or_loop(folder: str) -> None:
    for path in sorted((PACKAGE / folder).rglob("*.py")):
        used = {name.split(".")[0] for name in imports(path)}
        assert not used & PURE, f"{path.relative_to(ROOT)} imports {used & PURE}"


@pytest.mark.parametrize("name", PURE_FILES)
def test_nor_do_these_files(name: str) -> None:
    used = {imported.split(".")[0] for imported in imports(PACKAGE / name)}
    assert not used & PURE


def test_values_need_the_standard_library_only() -> None:
    for name in sorted(VALUES):
        for imported in imports(PACKAGE / f"{name}.py"):
            top = imported.split(".")[0]
            assert top in {
                "__future__",
                "collections",
                "dataclasses",
                "math",
                "pathlib",
                "typing",
            } | {
                "pybatcher",
                "warnings",
            }


@pytest.mark.parametrize("path", native_files(), ids=lambda p: str(p.relative_to(NATIVE)))
def test_native_includes_run_one_way(path: Path) -> None:
    name = path.relative_to(NATIVE).as_posix()
    folder = name.partition("/")[0]
    allowed = MAY_INCLUDE["ops"] if name in VALUE_HEADERS else MAY_INCLUDE[folder] | {folder}
    for included in re.findall(r'^\s*#\s*include\s+"([^"]+)"', path.read_text(), re.MULTILINE):
        if "/" in included and included not in VALUE_HEADERS:
            assert included.partition("/")[0] in allowed, f"csrc/{name} includes {included}"


@pytest.mark.parametrize(
    "path", python_files() + native_files(), ids=lambda p: str(p.relative_to(ROOT))
)
def test_no_source_file_is_long(path: Path) -> None:
    n_lines = len(path.read_text().splitlines())
    assert n_lines <= MOST_LINES, f"{path.relative_to(ROOT)} has {n_lines} lines"
