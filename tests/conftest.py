"""After every test: no KV block, sequence or thread of a batcher may be left."""

from __future__ import annotations

import dataclasses
import gc
import os
import signal
import ssl
import threading
import time
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import hypothesis
import pytest

from pybatcher.errors import EngineError
from pybatcher.serving.coordinator import Coordinator

if TYPE_CHECKING:
    from pybatcher.engine import Engine

_HERE = Path(__file__).parent
_PATIENCE = 5.0  # seconds for threads that were told to end

# Timings never decide a test: a busy machine stops for longer than any deadline.
hypothesis.settings.register_profile(
    "untimed", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("untimed")


@pytest.hookimpl(wrapper=True)
def pytest_report_to_serializable() -> Generator[None, Any, Any]:
    """Reports go from process to process as UTF-8, which a log with a lone surrogate is not."""
    return _encodable((yield))


def _encodable(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode(errors="backslashreplace").decode()
    if isinstance(value, dict):
        return {_encodable(key): _encodable(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_encodable(item) for item in value)
    return value


@pytest.fixture(autouse=True, scope="session")
def _device() -> Iterator[None]:
    """With PYBATCHER_TEST_DEVICE=cuda (`make test-emulated`) that is what "auto" means."""
    device = os.environ.get("PYBATCHER_TEST_DEVICE")
    if device is None:
        yield
        return
    from pybatcher.engine import Engine

    load = Engine.from_loaded

    def on_device(model: Any, config: Any, *others: Any, **named: Any) -> Engine:
        if config.device == "auto":
            config = dataclasses.replace(config, device=device)
        return load(model, config, *others, **named)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Engine, "from_loaded", on_device)
        yield


# Folders whose tests run whole programs. The tests of these folders are slow ...
_OF_PROGRAMS = {"attacks", "bench", "cli", "examples", "models", "system", "tools"}
_QUICK = {"models/hub"}  # ... except those in these


def _runs_programs(folder: Path) -> bool:
    if not folder.is_relative_to(_HERE):
        return False
    inside = folder.relative_to(_HERE)
    return bool({*inside.parts[:1]} & _OF_PROGRAMS) and inside.as_posix() not in _QUICK


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests of whole programs as slow, beside those that are marked in their modules."""
    for item in items:
        if _runs_programs(item.path.parent):
            item.add_marker(pytest.mark.slow)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave modules of slow tests unread in `make test`, which would deselect all their tests."""
    if config.option.markexpr != "not slow" or collection_path.suffix != ".py":
        return None
    return _runs_programs(collection_path.parent) or None


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, Any, Any]:
    """Collect no garbage while tests are imported: a third of that time, and little is garbage."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.fixture(autouse=True, scope="module")
def _old_objects_rest() -> None:
    """Collections of garbage leave out what was there before: with torch they take long."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True, scope="session")
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """What tests leave in the user's cache directory goes with them; the hub is out of reach."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("HF_HOME", "HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"):
            patch.delenv(name, raising=False)
        patch.setenv("HF_ENDPOINT", "http://127.0.0.1:1")
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(autouse=True, scope="session")
def _no_authorities() -> Iterator[None]:
    """Clients of HTTP read no certificates of authorities: 30 ms each, and no test uses TLS."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ssl.SSLContext, "load_verify_locations", lambda *_, **__: None)
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
def no_leaks(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """What each batcher of the test says is left at its end, and threads. Nothing may be."""
    leaks: list[str] = []
    run = Coordinator.run

    async def run_and_check(self: Coordinator) -> None:
        try:
            await run(self)
        finally:
            try:
                self.check_idle()
            except EngineError as left:
                leaks.append(str(left))

    monkeypatch.setattr(Coordinator, "run", run_and_check)
    yield leaks
    deadline = time.monotonic() + _PATIENCE
    for thread in threading.enumerate():
        if thread.name.startswith("pybatcher-"):
            thread.join(max(0.0, deadline - time.monotonic()))
            if thread.is_alive():
                leaks.append(f"thread {thread.name}")
    assert not leaks
