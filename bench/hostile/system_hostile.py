"""Attacks that need a server of their own: lack of memory or descriptors, and hostile files.

    .venv/bin/python -m bench.system_hostile

Each attack starts `pybatcher serve` with the shipped model or an edited copy of it, and acts beside
streams of honest clients:

- lack of memory: the server is in a memory cgroup with little to spare, and calls take more. Needs
  a writable memory cgroup; without one, the attack is skipped and the reason is printed.
- lack of descriptors: `ulimit -n 64`, a flood of connections, and the worker is killed.
- a renamed file: the worker is killed while the file of the weights has another name for a second.
- templates: chats whose templates take time or memory without end (tests/text/test_sandbox.py).
- tokenizers: reloads of a tokenizer.json that makes texts grow (tests/loading/tokenizers/
  test_growth.py).

It exits with 1 and a description if the server ended, a stream was wrong or failed, or an attacking
call did not end as it should. Results, with the longest gap between tokens of honest streams and
the memory of front and worker, go to bench/results/system-hostile.json.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib.util
import json
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

from bench.common.machine import describe_run
from bench.common.progress import bar
from bench.common.results import write_result
from bench.engines.engine_list import ROOT
from bench.hostile.socket_hostile import Victim
from bench.serving.process_watch import rss_mib
from bench.serving.sidecar_process import Sidecar, open_sidecar
from pybatcher import Client, PybatcherError
from pybatcher.machine.cgroups import memory_cgroups
from pybatcher.models import tiny_path

__all__ = ["KINDS", "Scene", "new_cgroup", "run_kind"]

_SPARE = 12 * 2**20  # bytes of memory that a server may take more, in its cgroup
_SETTLE = 3.0  # seconds of honest streams after an attack
_MOST_FILES = 64
_HELD = 200  # connections
_GUILTY = 4  # calls at a time that take more memory than there is


@dataclass
class Scene:
    """One attack: the server, honest streams, and what was found.

    ends: the ends of the attacking calls. wrong: what should not have happened.
    """

    sidecar: Sidecar
    model: Path
    client: Client
    ends: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)

    def kill_worker(self) -> None:
        """Send SIGKILL to the serving worker."""
        for pid in self.sidecar.worker_pids[:1]:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    async def expect_error(self, name: str, call: Awaitable[Any], *kinds: str) -> None:
        """Await a call that has to fail, with an error of these names if any are given."""
        try:
            await call
            end = "an answer"
        except PybatcherError as error:
            end = type(error).__name__
        self.ends.append(f"{name}: {end}")
        if end == "an answer" if not kinds else end not in kinds:
            self.wrong.append(f"{name} ended with {end}")


async def lack_of_memory(scene: Scene) -> None:
    """Ask for more than the memory of the cgroup allows, several calls at a time."""

    async def ask() -> None:
        with suppress(PybatcherError):
            await scene.client.detokenize([250] * 2**17)
            scene.ends.append("an answer")
            return
        scene.ends.append("an error")

    await asyncio.gather(*(ask() for _ in range(_GUILTY)))


async def lack_of_descriptors(scene: Scene) -> None:
    """Hold more connections than the server has descriptors, and kill its worker meanwhile."""
    held: list[asyncio.StreamWriter] = []
    for _ in range(_HELD):
        with suppress(OSError):
            _, writer = await asyncio.open_unix_connection(str(scene.sidecar.socket))
            held.append(writer)
    scene.kill_worker()
    await asyncio.sleep(4.0)
    for writer in held:
        writer.transport.abort()


async def a_renamed_file(scene: Scene) -> None:
    """Kill the worker while the file of the weights has another name."""
    (weights,) = scene.model.glob("*.safetensors")
    await asyncio.sleep(0.5)  # the honest streams have begun
    weights.rename(scene.model / "elsewhere")
    try:
        scene.kill_worker()
        await asyncio.sleep(1.0)
    finally:
        (scene.model / "elsewhere").rename(weights)


async def templates(scene: Scene) -> None:
    """Chat with each hostile template, two at a time."""
    names = iter(_templates())

    async def ask() -> None:
        for name in names:
            messages = [{"role": "user", "content": name}]
            chat = scene.client.chat(messages, max_tokens=1, timeout=30.0)
            await scene.expect_error(name, chat, "ModelFormatError")

    await asyncio.gather(ask(), ask())


async def tokenizers(scene: Scene) -> None:
    """Reload the model with each tokenizer that makes texts grow."""
    path = scene.model / "tokenizer.json"
    whole = path.read_text()
    for name, (part, settings, _) in _growing().items():
        path.write_text(json.dumps({**json.loads(whole), part: settings}))
        await scene.expect_error(name, scene.client.reload())
    path.write_text(whole)
    await scene.client.reload()


KINDS: dict[str, Callable[[Scene], Awaitable[None]]] = {
    "lack of memory": lack_of_memory,
    "lack of descriptors": lack_of_descriptors,
    "a renamed file": a_renamed_file,
    "templates": templates,
    "tokenizers": tokenizers,
}
"""The coroutine of each kind."""


def _of_tests(file: str) -> ModuleType:
    """Return a module of the tests, whose inputs are used here too."""
    spec = importlib.util.spec_from_file_location(Path(file).stem, ROOT / "tests" / file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _templates() -> dict[str, str]:
    tests = _of_tests("text/test_sandbox.py")
    return {**tests.ENDLESS, **tests.GIGABYTES}


def _growing() -> dict[str, tuple[str, Any, str]]:
    growing: dict[str, tuple[str, Any, str]] = _of_tests(
        "loading/tokenizers/test_growth.py"
    ).GROWING
    return growing


def _copied_model(kind: str, folder: Path) -> Path:
    """Copy the shipped model, with a chat template that runs the template that a message names."""
    model = folder / "model"
    shutil.copytree(tiny_path(), model)
    if kind == "templates":
        source = "{% set r = range(99999) %}"
        for name, own in _templates().items():
            source += f"{{% if messages[0].content == {name!r} %}}{own}{{% endif %}}"
        (model / "chat_template.jinja").write_text(source)
    return model


@contextmanager
def new_cgroup() -> Iterator[Path | str]:
    """Make a memory cgroup below that of this process, and remove it; a reason if that fails."""
    for folder, _, is_v2 in memory_cgroups():
        group = folder / f"pybatcher-hostile-{os.getpid()}"
        try:
            group.mkdir()
        except OSError as error:
            yield f"the memory cgroup {folder} is not writable: {error}"
            return
        try:
            if (group / _limit_of(is_v2=is_v2)).exists():
                yield group
            else:
                yield f"the memory cgroup {group} has no {_limit_of(is_v2=is_v2)}"
        finally:
            with suppress(OSError):
                group.rmdir()
        return
    yield "this process is in no memory cgroup"


def _limit_of(*, is_v2: bool) -> str:
    return "memory.max" if is_v2 else "memory.limit_in_bytes"


def _limit(group: Path) -> None:
    """Limit the memory of a cgroup to what it takes now, and a little more."""
    is_v2 = (group / "memory.current").exists()
    used = int((group / ("memory.current" if is_v2 else "memory.usage_in_bytes")).read_text())
    (group / _limit_of(is_v2=is_v2)).write_text(str(used + _SPARE))


async def run_kind(kind: str, tokens: int) -> dict[str, Any]:
    """Run one attack beside honest streams; return its row of the result."""
    with tempfile.TemporaryDirectory(prefix="pybatcher-hostile-") as name, new_cgroup() as group:
        before: Sequence[str] = ()
        if kind == "lack of memory":
            if isinstance(group, str):
                return {"kind": kind, "skipped": group, "wrong": []}
            before = ("sh", "-c", f'echo $$ > {group}/cgroup.procs; exec "$@"', "sh")
        elif kind == "lack of descriptors":
            before = ("sh", "-c", f'ulimit -n {_MOST_FILES}; exec "$@"', "sh")
        model = _copied_model(kind, Path(name))
        options: dict[str, Any] = {
            "model": model,
            "n_threads": 1,
            "max_draft_tokens": 0,
            "log_level": "error",
        }
        with open_sidecar(before=before, **options) as sidecar:
            await sidecar.ready()
            async with Client(sidecar.socket) as client:
                scene = Scene(sidecar, model, client)
                row = await _attacked(scene, kind, group, tokens)
            if sidecar.is_alive:
                sidecar.close()
            return row


async def _attacked(scene: Scene, kind: str, group: Path | str, tokens: int) -> dict[str, Any]:
    victim = Victim(scene.client, 2, tokens)
    undisturbed = await victim.stream(2.0)
    rss, first = [_rss(scene.sidecar)], scene.sidecar.worker_pids[:1]
    if kind == "lack of memory":
        assert isinstance(group, Path)
        _limit(group)
    attacking = asyncio.ensure_future(KINDS[kind](scene))
    gaps = []
    try:
        while True:
            is_last = attacking.done()
            gaps += list(await victim.stream(_SETTLE))
            if is_last:
                break
        await attacking
    except PybatcherError as error:
        scene.wrong.append(f"a stream ended with {type(error).__name__}: {error}")
    finally:
        attacking.cancel()
    is_same = False
    if not scene.sidecar.is_alive:
        scene.wrong.append("the server ended")
    else:
        rss.append(_rss(scene.sidecar))
        is_same = scene.sidecar.worker_pids[:1] == first
    return {
        "kind": kind,
        "undisturbed_gap_s": float(undisturbed.max(initial=0.0)),
        "gap_s": float(max(gaps, default=0.0)),
        "rss_mib": rss,
        "is_same_worker": is_same,
        "ends": scene.ends,
        "wrong": [*dict.fromkeys(scene.wrong + victim.wrong)],
    }


def _rss(sidecar: Sidecar) -> list[float]:
    """Return the resident memory of the front and the worker, in MiB."""
    return [rss_mib(pid) for pid in (sidecar.pid, *sidecar.worker_pids[:1])]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS), metavar="KIND")
    parser.add_argument("--tokens", type=int, default=400, help="of an honest stream")
    parser.add_argument("--name", default="system-hostile", help="of the result")
    a = parser.parse_args()
    rows = []
    with bar(len(a.kinds)) as shown:
        for kind in a.kinds:
            shown.now(kind)
            row = asyncio.run(run_kind(kind, a.tokens))
            rows.append(row)
            shown.say(_line_of(row))
            shown.advance()
    print(f"wrote {write_result(a.name, {'run': describe_run(), 'rows': rows})}")
    if wrong := [f"{row['kind']}: {one}" for row in rows for one in row["wrong"]]:
        sys.exit("not clean:\n  " + "\n  ".join(wrong))


def _line_of(row: dict[str, Any]) -> str:
    """Return a row of the result in words."""
    if "skipped" in row:
        return f"{row['kind']:>20}: skipped: {row['skipped']}"
    gaps = [row[name] * 1e3 for name in ("undisturbed_gap_s", "gap_s")]
    memory = " -> ".join("+".join(f"{one:.0f}" for one in pair) for pair in row["rss_mib"])
    return (
        f"{row['kind']:>20}: {len(row['ends'])} calls; longest gap {gaps[0]:.0f} -> "
        f"{gaps[1]:.0f} ms; front+worker {memory} MiB"
    )


if __name__ == "__main__":
    main()
