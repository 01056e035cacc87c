"""After every test: no KV block, sequence or thread of a batcher may be left."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pybatcher.serving.coordinator import Coordinator

if TYPE_CHECKING:
    from pybatcher.engine import Engine

_PATIENCE = 5.0  # seconds for threads that were told to end


@pytest.fixture(autouse=True, scope="session")
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """What tests leave in the user's cache directory goes with them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(autouse=True, scope="session")
def _interruptible() -> None:
    """A shell lets what it starts in the background ignore Ctrl-C, and its children too."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="module")
def one_thread() -> Iterator[None]:
    """Two torch threads that wait for each other crawl when the cores are shared."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small random model of 200 positions."""
    from pybatcher.testing.checkpoints import make_checkpoint

    return make_checkpoint(tmp_path_factory.mktemp("model"), "llama", max_position_embeddings=200)


@pytest.fixture
def engine(checkpoint: Path) -> Iterator[Engine]:
    """It, loaded; looked into when the test is over."""
    from engine_helpers import OPTIONS

    from pybatcher.engine import Engine

    engine = Engine.load(checkpoint, n_threads=1, **OPTIONS)
    yield engine
    engine.check_integrity()
    engine.close()


@pytest.fixture(autouse=True)
def no_leaks(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Look into each engine when its batcher has let go of everything, before it is closed."""
    leaks: list[str] = []
    end_all = Coordinator._end_all

    def end_all_and_look(self: Coordinator) -> None:
        end_all(self)
        if self._executor.is_busy or self._supervisor.failure is not None:
            return  # then nothing can be freed: the engine is closed as it is
        engine = self._engine
        engine.check_integrity()
        free, cached = engine.kv_free_blocks, engine.kv_cached_blocks
        if free + cached != engine.kv_total_blocks:
            leaks.append(f"{free} free + {cached} cached of {engine.kv_total_blocks} KV blocks")
        if open_ends := self._outputs._open:
            leaks.append(f"{len(open_ends)} requests without an end")

    monkeypatch.setattr(Coordinator, "_end_all", end_all_and_look)
    yield
    deadline = time.monotonic() + _PATIENCE
    for thread in threading.enumerate():
        if thread.name.startswith("pybatcher-"):
            thread.join(max(0.0, deadline - time.monotonic()))
            if thread.is_alive():
                leaks.append(f"thread {thread.name}")
    assert not leaks
