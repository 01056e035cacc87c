"""The rooms: imports run one way between folders, in Python and in C++, and no room is crowded.

The lists below are the whole order: a room may import those before it, and itself. A line holds
rooms that may not import each other.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from itertools import chain, takewhile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "pybatcher"
BENCH = ROOT / "bench"
NATIVE = ROOT / "csrc"
MOST_LINES = 600
MOST_ENTRIES = 24

PACKAGE_ORDER = [
    ["errors"],
    ["params", "models", "machine"],
    ["images"],
    ["scheduling", "loading", "text"],
    ["engine", "calls"],
    ["metrics", "access_log"],
    ["serving"],
    ["batcher"],
    ["web"],
    ["http"],
    ["sidecar", "testing"],
    ["ray"],
    ["__init__"],
    ["cli"],
    ["__main__"],
]
LOADING_ORDER = [
    ["checkpoints"],
    ["tokenizers", "convert"],
    ["parts"],
    ["families"],
    ["safetensors", "gguf"],
    ["loader", "torch_module"],
    ["__init__"],
    ["weights_cache"],
]
SIDECAR_ORDER = [["protocol"], ["session"], ["replay"], ["front", "client"], ["worker"]]
OUTPUT_ORDER = [["tools", "formats"], ["read"], ["grammar"], ["__init__"]]
HTTP_ORDER = [
    ["base"],
    ["openai", "anthropic", "middleware", "watch", "page"],
    ["server"],
    ["application"],
]
# The rooms of the package that have rooms of their own, each with its order. `__init__` is in an
# order if it imports the rooms only to export their names.
ROOM_ORDERS = {
    "http": HTTP_ORDER,
    "loading": LOADING_ORDER,
    "sidecar": SIDECAR_ORDER,
    "text/output": OUTPUT_ORDER,
}
BENCH_ORDER = [
    ["common"],
    ["convert", "native"],
    ["engines"],
    ["report"],
    ["engine"],
    ["structured"],
    ["serving"],
    ["http", "hostile", "simulation"],
    ["gpu"],
]
NATIVE_ORDER = [
    ["base"],
    ["os"],
    ["formats"],
    ["config"],
    ["kv", "sampling"],
    ["ops"],
    ["model"],
    ["cpu", "cuda"],
    ["engine"],
    ["bindings"],
]
CPU_KERNELS_ORDER = [
    ["cpu/dispatch"],
    ["cpu/kernels/vec"],
    ["cpu/kernels"],
    ["cpu/kernels/gemm", "cpu/kernels/attention"],
    ["cpu/kernels/amx", "cpu/kernels/neon"],
    ["cpu/targets"],
]
# The host's side includes no kernel: it knows a target by its table, cpu/dispatch/kernels.h.
CPU_HOST_ORDER = [["cpu/dispatch"], ["cpu/weights", "cpu/attention"], ["cpu"]]
CUDA_ORDER = [
    ["cuda/device_code"],
    ["cuda/driver"],
    ["cuda/weights", "cuda/rows"],
    ["cuda/gemm", "cuda/attention", "cuda/recurrent", "cuda/sampling"],
    ["cuda/experts"],
    ["cuda/image"],
    ["cuda/backend"],
]
BACKEND_ORDERS = [CPU_KERNELS_ORDER, CPU_HOST_ORDER, CUDA_ORDER]
NATIVE_SUFFIXES = {".h", ".cc", ".in", ".cu", ".cuh"}
SUFFIXES = NATIVE_SUFFIXES | {".py", ".js", ".css", ".html", ".svg"}

# Folders that are lists and no rooms: one file per model family, one folder per room of tests.
LISTS = {"pybatcher/loading/families", "tests/loading/families", "tests"}
# Rooms that are still to be divided.
LARGE_ROOMS = {"tests/native/cuda", "tests/native/cuda_on_cpu", "tests/native/support"}

# Rooms without time, threads and input or output: what they need of those comes as an argument.
PURE_ROOMS = ["scheduling", "sidecar/protocol", "text/output"]
IMPURE = {"asyncio", "threading", "time", "random", "socket", "multiprocessing", "concurrent"}


def python_files() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


def native_files() -> list[Path]:
    return sorted(p for p in NATIVE.rglob("*") if p.suffix in NATIVE_SUFFIXES)


def none_of(paths: list[Path], found: Callable[[Path], Iterable[str]]) -> None:
    """Fail with all that is found in the files."""
    assert paths
    wrong = [text for path in paths for text in found(path)]
    assert not wrong, "\n".join(wrong)


def rank(order: list[list[str]], room: str) -> int:
    for i, rooms in enumerate(order):
        if room in rooms:
            return i
    raise AssertionError(f"{room!r} is in no line of the order: add it where it belongs")


@cache
def imports(path: Path) -> tuple[str, ...]:
    """Dotted names of all that a file imports, those below pybatcher as `pybatcher.x.y`."""
    return tuple(_imports(path))


def _imports(path: Path) -> Iterator[str]:
    package = ("pybatcher", *path.relative_to(PACKAGE).parent.parts)
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else ()
            base = ".".join((*above, *filter(None, [node.module])))
            yield from (f"{base}.{alias.name}" for alias in node.names)


def room_of(path: Path, folder: Path) -> str:
    """The entry of `folder` that a file below it belongs to."""
    return path.relative_to(folder).parts[0].removesuffix(".py")


def imported_rooms(path: Path, folder: Path) -> Iterator[tuple[str, str]]:
    """(room, dotted name) of each import of a file that is answered below `folder`."""
    prefix = ("pybatcher", *folder.relative_to(PACKAGE).parts)
    for name in imports(path):
        names = tuple(name.split("."))
        if names[: len(prefix)] != prefix:
            continue
        below = names[len(prefix)] if len(names) > len(prefix) else ""
        entry = folder / below
        is_room = below and (entry.is_dir() or entry.with_suffix(".py").exists())
        yield (below if is_room else "__init__"), name


def bench_imports_of_later_rooms(path: Path) -> Iterator[str]:
    """`bench.x` finds x.py in any room: a relative import would import it under a second name."""
    own = room_of(path, BENCH)
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.level:
            yield f"{path.relative_to(ROOT)}:{node.lineno} has a relative import"
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom):
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        for name in names:
            top, _, rest = name.partition(".")
            room = rest.partition(".")[0]
            if top == "bench" and room != own and rank(BENCH_ORDER, room) >= rank(BENCH_ORDER, own):
                yield f"{path.relative_to(ROOT)} imports {name}"


def imports_of_later_rooms(path: Path, folder: Path, order: list[list[str]]) -> Iterator[str]:
    own = room_of(path, folder)
    for room, name in imported_rooms(path, folder):
        if room == own or name.startswith("pybatcher._core"):
            continue
        if rank(order, room) >= rank(order, own):
            yield f"{path.relative_to(ROOT)} imports {name}"


def test_python_imports_run_one_way() -> None:
    none_of(python_files(), lambda path: imports_of_later_rooms(path, PACKAGE, PACKAGE_ORDER))


@pytest.mark.parametrize("room", ROOM_ORDERS)
def test_the_rooms_inside_a_room_import_one_way(room: str) -> None:
    folder, order = PACKAGE / room, ROOM_ORDERS[room]
    own = {entry for entries in order for entry in entries}
    found = {path.name.removesuffix(".py") for path in folder.iterdir() if path.name[0] != "_"}
    assert found == own - {"__init__"}, "name each entry of the room in its order"
    none_of(
        [path for path in sorted(folder.rglob("*.py")) if room_of(path, folder) in own],
        lambda path: imports_of_later_rooms(path, folder, order),
    )


def test_the_rooms_of_bench_import_one_way() -> None:
    files = sorted(BENCH.glob("*/**/*.py"))
    none_of(files, bench_imports_of_later_rooms)


def test_a_command_of_bench_is_found_by_its_name_alone() -> None:
    rooms = [entry for entries in BENCH_ORDER for entry in entries]
    files = [path for room in rooms for path in (BENCH / room).glob("[!_]*.py")]
    commands = [path.stem for path in files if '"__main__"' in path.read_text()]
    assert sorted({*commands}) == sorted(commands)
    documented = re.findall(r"-m bench\.(\w+)", (ROOT / "docs" / "benchmarks.md").read_text())
    packages = [path.parent.name for path in BENCH.glob("*/__main__.py")]
    assert len(documented) > 40
    assert not {*documented} - {*commands, *packages, "gpu"}


def test_only_the_engine_and_the_list_of_formats_import_the_extension() -> None:
    importers = {
        str(path.relative_to(PACKAGE))
        for path in python_files()
        if any(name.startswith("pybatcher._core") for name in imports(path))
    }
    assert importers == {"engine.py", "loading/checkpoints/blocks.py"}


@pytest.mark.parametrize("room", PURE_ROOMS)
def test_the_pure_rooms_know_no_clock_thread_or_loop(room: str) -> None:
    for path in sorted((PACKAGE / room).rglob("*.py")):
        used = {name.split(".")[0] for name in imports(path)}
        assert not used & IMPURE, f"{path.relative_to(ROOT)} imports {used & IMPURE}"


VALUES = ["errors/__init__", "errors/checks", "params/config", "params/sampling_params"]


@pytest.mark.parametrize("name", [*VALUES, "params/structured_output"])
def test_values_need_the_standard_library_only(name: str) -> None:
    used = {imported.split(".")[0] for imported in imports(PACKAGE / f"{name}.py")}
    asked_of_types = (
        {"pydantic"} if name == "params/structured_output" else set()
    )  # where a type is given
    assert used <= sys.stdlib_module_names | {"pybatcher"} | asked_of_types
    assert not used & IMPURE


def quoted_includes(path: Path) -> list[str]:
    return re.findall(r'^\s*#\s*include\s+"([^"]+)"', path.read_text(), re.MULTILINE)


def includes_of_later_rooms(path: Path) -> Iterator[str]:
    name = path.relative_to(NATIVE).as_posix()
    own = name.partition("/")[0]
    for included in quoted_includes(path):
        if "/" in included:
            room = included.partition("/")[0]
            if room != own and rank(NATIVE_ORDER, room) >= rank(NATIVE_ORDER, own):
                yield f"csrc/{name} includes {included}"


def includes_of_later_rooms_of_a_backend(path: Path) -> Iterator[str]:
    """Yield the includes of a backend's own rooms that no order of its room allows."""
    name = path.relative_to(NATIVE).as_posix()
    own = name.rpartition("/")[0]
    backend = own.partition("/")[0]
    orders = [order for order in BACKEND_ORDERS if any(own in rooms for rooms in order)]
    if not orders:
        yield f"csrc/{own} is in no order of rooms: add it where it belongs"
    for included in quoted_includes(path):
        room = included.rpartition("/")[0]
        if room == own or room.partition("/")[0] != backend:
            continue
        if not any(is_earlier(order, room, own) for order in orders):
            yield f"csrc/{name} includes {included}"


def is_earlier(order: list[list[str]], room: str, than: str) -> bool:
    earlier = chain(*takewhile(lambda rooms: than not in rooms, order))
    return room in earlier


def test_native_includes_run_one_way() -> None:
    none_of(native_files(), includes_of_later_rooms)


@pytest.mark.parametrize("backend", ["cpu", "cuda"])
def test_the_rooms_of_a_backend_include_one_way(backend: str) -> None:
    paths = [path for path in native_files() if path.is_relative_to(NATIVE / backend)]
    none_of(paths, includes_of_later_rooms_of_a_backend)


def entries_of(room: Path) -> list[str]:
    """Return the names of a room's source files, and of its folders that contain source files."""
    files = [path for path in room.iterdir() if path.suffix in SUFFIXES]
    folders = [path for path in room.iterdir() if path.is_dir() and path.name != "__pycache__"]
    with_source = [path for path in folders if any(p.suffix in SUFFIXES for p in path.rglob("*.*"))]
    return sorted(path.name for path in files + with_source)


@pytest.mark.parametrize("tree", ["pybatcher", "csrc", "bench", "tools", "tests"])
def test_a_room_is_seen_at_a_glance(tree: str) -> None:
    folders = [ROOT / tree, *(path for path in (ROOT / tree).rglob("*") if path.is_dir())]
    counts = {path.relative_to(ROOT).as_posix(): len(entries_of(path)) for path in folders}
    assert counts[tree]
    crowded = {room: n for room, n in counts.items() if n > MOST_ENTRIES}
    assert {room: n for room, n in crowded.items() if room not in LISTS | LARGE_ROOMS} == {}


@pytest.mark.parametrize("room", sorted(LARGE_ROOMS))
def test_the_table_of_large_rooms_is_true(room: str) -> None:
    assert len(entries_of(ROOT / room)) > MOST_ENTRIES, "the room is small: remove its line"


def test_no_source_file_is_long() -> None:
    """Hold the half that a test can decide of "one concept per file, at most 600 lines"."""

    def too_many(path: Path) -> Iterator[str]:
        n_lines = len(path.read_text().splitlines())
        if n_lines > MOST_LINES:
            yield f"{path.relative_to(ROOT)} has {n_lines} lines"

    other = [path for tree in (BENCH, ROOT / "tools") for path in tree.rglob("*.py")]
    none_of(python_files() + native_files() + other, too_many)
