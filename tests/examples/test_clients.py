"""Clients in other languages over libraries that nobody here wrote, run as their heads say.

Each prints a stream, two answers that were asked for at once, and a stream that it cancels. All
must be what a batcher in this process gives.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import time
from pathlib import Path

import pytest
from serving_doubles import Serving

from pybatcher import BlockingBatcher, BlockingClient

PROMPT = "One stormy night, a small robot"
PATIENCE = 120.0  # seconds for what takes some
OLDEST_NODE = 18  # that @msgpack/msgpack runs on
NOT_TO_BE_HAD = re.compile(  # the network's fault or the registry's, and not the lock file's
    r"error code (E[45]\d\d|ENOTFOUND|EAI_AGAIN|ECONN\w+|E\w+UNREACH|E\w*TIMEDOUT|ERR_SOCK\w+)"
)

Command = list[str]


@pytest.fixture(scope="session")
def node(examples: Path, tmp_path_factory: pytest.TempPathFactory) -> Command:
    """In a folder of its own, with the library that the lock file names."""
    node, npm = shutil.which("node"), shutil.which("npm")
    if node is None or npm is None:
        pytest.skip("node and npm are not both installed")
    version = _run([node, "--version"]).stdout.strip()
    if int(version.removeprefix("v").partition(".")[0]) < OLDEST_NODE:
        pytest.skip(f"node {version} is installed; the library wants {OLDEST_NODE}")
    folder = tmp_path_factory.mktemp("node")
    for name in ("package.json", "package-lock.json", "client.mjs"):
        shutil.copy(examples / "sidecar" / "node" / name, folder)
    # What npm has in its cache it does not fetch again: so once it was there, it needs no network.
    options = ["--prefer-offline", "--no-audit", "--no-fund"]
    options += ["--fetch-retries=0", "--fetch-timeout=30000"]
    outcome = _run([npm, "ci", *options], cwd=folder)
    if found := NOT_TO_BE_HAD.search(outcome.stderr):
        pytest.skip(f"@msgpack/msgpack cannot be had, npm says {found[1]}")
    assert outcome.returncode == 0, outcome.stderr
    return [node, str(folder / "client.mjs")]


@pytest.fixture(scope="session")
def ruby(examples: Path) -> Command:
    """With warnings."""
    ruby = shutil.which("ruby")
    if ruby is None:
        pytest.skip("ruby is not installed")
    if _run([ruby, "-rmsgpack", "-e", ""]).returncode != 0:
        pytest.skip("ruby has no msgpack; apt-get install ruby-msgpack")
    return [ruby, "-w", str(examples / "sidecar" / "ruby" / "client.rb")]


@pytest.fixture(scope="module")
def expected() -> str:
    """What they are to print before the last line."""
    with BlockingBatcher() as batcher:
        greedy = batcher.generate(PROMPT, max_tokens=24).text
        drawn = batcher.generate(PROMPT, max_tokens=24, temperature=0.8, seed=7).text
    assert greedy != drawn
    return "\n".join(
        [
            "== a stream",
            greedy,
            "length, 24 tokens",
            "== two at once",
            greedy,
            drawn,
            "== a stream that is cancelled",
            "cancelled: the request was cancelled",
            "",
        ]
    )


@pytest.mark.parametrize("language", ["node", "ruby"])
def test_a_client_streams_asks_at_once_and_cancels(
    language: str, request: pytest.FixtureRequest, sidecar: Serving, expected: str
) -> None:
    command: Command = request.getfixturevalue(language)
    with BlockingClient(sidecar.socket) as client:
        before = client.statistics()
        outcome = _run([*command, str(sidecar.socket), PROMPT])
        assert (outcome.returncode, outcome.stderr) == (0, "")
        assert outcome.stdout == expected + f"== tiny has completed {before.completed + 3}\n"
        while client.statistics().cancelled < before.cancelled + 1:
            time.sleep(0.01)


@pytest.mark.parametrize("language", ["node", "ruby"])
def test_a_client_says_what_is_wrong(
    language: str, request: pytest.FixtureRequest, sidecar: Serving
) -> None:
    command: Command = request.getfixturevalue(language)
    outcome = _run([*command, str(sidecar.socket), "fox " * 5000])
    assert outcome.returncode == 1
    assert "too_long: " in outcome.stderr.splitlines()[0]


@pytest.mark.parametrize("language", ["node", "ruby"])
def test_a_client_looks_where_it_is_told_to(
    language: str,
    request: pytest.FixtureRequest,
    sidecar: Serving,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    command: Command = request.getfixturevalue(language)
    monkeypatch.setenv("PYBATCHER_SOCKET", str(sidecar.socket))
    assert _run(command).returncode == 0
    monkeypatch.setenv("PYBATCHER_SOCKET", str(tmp_path / "none.sock"))
    outcome = _run(command)
    assert outcome.returncode == 1
    assert "none.sock" in outcome.stderr
    assert "start `pybatcher serve`" in outcome.stderr
    assert len(outcome.stderr.splitlines()) == 1


def _run(command: Command, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, cwd=cwd, capture_output=True, text=True, timeout=PATIENCE, check=False
    )
