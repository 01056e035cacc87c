"""Real clients against a real server: `make test-clients` installs them and runs these tests.

They need what only registries have, so `make test` does not collect them.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from chain_model import chain_model
from chat_model import chat_model
from client_programs import ANSWER, CLIENTS, Server
from serving_doubles import serving

from pybatcher import Batcher

if CLIENTS is None:
    collect_ignore_glob = ["test_*.py"]

# The tools of clients, by their own names, and those that programs of these tests have.
CALLS = {
    "Bash": '{"command": "echo lantern 7 > of-Bash.txt", "description": "Counts"}',
    "exec_command": '{"cmd": "echo lantern 7 > of-exec_command.txt"}',
    "bash": '{"command": "echo lantern 7 > of-bash.txt"}',
    "count_owls": '{"river": "Ouse", "night": 7}',
}
HTTP = ("--no-socket", "--http", "127.0.0.1:0", "--n-parallel", "8")


@pytest.fixture(scope="session")
def shipped_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The shipped model with tools in its template, and without markers of thoughts.

    It would begin to think by chance, and have no end.
    """
    model = chat_model(tmp_path_factory.mktemp("shipped"))
    for name in ("tokenizer.json", "tokenizer_config.json"):
        text = (model / name).read_text()
        (model / name).write_text(text.replace("think>", "unused>"))
    return model


@pytest.fixture(scope="session")
def shipped(shipped_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server of the shipped model."""
    name = ("--served-model-name", "shipped")
    more = ("--model", str(shipped_model), *name, "--n-ctx", "16384")
    with serving(tmp_path_factory.mktemp("serve"), *HTTP, *more) as running:
        yield Server(running.url, "shipped")


@pytest.fixture(scope="session")
def chained(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server of a model with much room, which makes the calls of CALLS and says ANSWER."""
    model = chain_model(tmp_path_factory.mktemp("chained"), ANSWER, CALLS)
    name = ("--served-model-name", "chained")
    more = ("--model", str(model), *name, "--n-ctx", "98304")
    with serving(tmp_path_factory.mktemp("serve"), *HTTP, *more) as running:
        yield Server(running.url, "chained")


@pytest.fixture
async def batcher(shipped_model: Path) -> AsyncIterator[Batcher]:
    """The shipped model in this process: what a server has to say too."""
    async with Batcher(shipped_model, n_threads=1) as one:
        yield one
