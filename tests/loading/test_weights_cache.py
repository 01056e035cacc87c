"""Packed weights on disk are reused, are validated, and never make a start fail."""

from __future__ import annotations

import os
import stat
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

import pybatcher.loading.weights_cache
from pybatcher import ConfigError, EngineConfig, ModelFormatError
from pybatcher.engine import Engine
from pybatcher.loading import from_torch, open_model
from pybatcher.loading.weights_cache import cache_for, default_directory, list_cached
from pybatcher.params.config import CachePlace
from pybatcher.testing.checkpoints import make_checkpoint, make_module

FOUND = ("mapped", "copied")
PROMPT = list(range(3, 60))


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("model"), "llama", tokenizer=False)


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "a" / "cache"


def load(checkpoint: Path, place: CachePlace) -> tuple[str, NDArray[np.float32]]:
    """Load a model; return the state of the cache, and the logits of a prompt."""
    engine = Engine.load(checkpoint, n_ctx=256, weights_cache=place)
    state = str(engine.description()["weights_cache"])
    logits = engine.prefill_chunk(engine.seq_new(), PROMPT, logits=True)
    engine.close()
    return state, logits


def test_the_second_start_finds_what_the_first_one_packed(
    checkpoint: Path, directory: Path
) -> None:
    state, expected = load(checkpoint, "off")
    assert state == "off"
    state, first = load(checkpoint, directory)
    assert state == "written"
    state, second = load(checkpoint, str(directory))
    assert state in FOUND
    np.testing.assert_array_equal(first, expected)
    np.testing.assert_array_equal(second, expected)


def test_it_is_this_users_alone(checkpoint: Path, directory: Path) -> None:
    load(checkpoint, directory)
    (cached,) = directory.iterdir()
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700
    assert stat.S_IMODE(cached.stat().st_mode) == 0o600


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_what_belongs_to_another_user_is_not_read(checkpoint: Path, directory: Path) -> None:
    _, expected = load(checkpoint, directory)
    (cached,) = directory.iterdir()
    os.chown(cached, 1, 1)
    with pytest.warns(UserWarning, match="belongs to another user"):
        state, logits = load(checkpoint, directory)
    assert state == "written"
    np.testing.assert_array_equal(logits, expected)
    assert load(checkpoint, directory)[0] in FOUND


def test_another_checkpoint_in_the_same_place_is_packed_anew(
    tmp_path: Path, directory: Path
) -> None:
    old = make_checkpoint(tmp_path / "model", "qwen2", tokenizer=False, seed=1)
    weights = old / "model.safetensors"
    before = weights.stat()
    _, first = load(old, directory)
    make_checkpoint(tmp_path / "model", "qwen2", tokenizer=False, seed=2)
    os.utime(weights, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert (weights.stat().st_size, weights.stat().st_mtime_ns) == (
        before.st_size,
        before.st_mtime_ns,
    )
    state, second = load(old, directory)
    assert state == "written"
    assert (first != second).any()


def test_a_damaged_file_is_replaced_with_a_warning(checkpoint: Path, directory: Path) -> None:
    _, expected = load(checkpoint, directory)
    (cached,) = directory.iterdir()
    data = bytearray(cached.read_bytes())
    for damaged in (data[:5000], data[:100], b"", data[:6000] + b"\xff" * (len(data) - 6000)):
        cached.write_bytes(damaged)
        with pytest.warns(UserWarning, match="not taken from the cache"):
            state, logits = load(checkpoint, directory)
        assert state == "written"
        np.testing.assert_array_equal(logits, expected)
        assert load(checkpoint, directory)[0] in FOUND


def test_a_directory_that_cannot_be_is_warned_of(checkpoint: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.warns(UserWarning, match="cannot be used"):
        assert load(checkpoint, tmp_path / "file" / "cache")[0] == "off"


def test_only_models_that_take_long_are_cached_unasked(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert load(checkpoint, "auto")[0] == "off"
    assert load(checkpoint, None)[0] == "off"
    assert not any(tmp_path.iterdir())
    monkeypatch.setattr(pybatcher.loading.weights_cache, "MIN_CACHED_BYTES", 1000)
    assert load(checkpoint, False)[0] == "off"
    assert load(checkpoint, "auto")[0] == "written"
    assert load(checkpoint, None)[0] in FOUND
    assert len(list_cached(tmp_path / "pybatcher")) == 1


def test_the_default_directory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/somebody")
    for given, expected in [
        ("/var/cache", "/var/cache/pybatcher"),
        ("relative", "/home/somebody/.cache/pybatcher"),
        ("", "/home/somebody/.cache/pybatcher"),
    ]:
        monkeypatch.setenv("XDG_CACHE_HOME", given)
        assert default_directory() == Path(expected)


def test_a_module_in_memory_is_not_cached(directory: Path) -> None:
    assert cache_for(from_torch(make_module("llama")), directory) is None
    assert not directory.exists()


def test_unused_and_abandoned_files_are_removed(checkpoint: Path, directory: Path) -> None:
    load(checkpoint, directory)
    (cached,) = directory.iterdir()
    old_name = cached.name[:-10] + "abc.packed"
    ages = {
        old_name: 31,
        cached.name + ".12-34.tmp": 2,
        cached.name + ".12-35.tmp": 0,
        "notes.packed": 99,
        "other-0123456789abcdef.tmp": 99,
    }
    for name, days in ages.items():
        (directory / name).write_text("x")
        then = time.time() - days * 86400
        os.utime(directory / name, (then, then))
    load(checkpoint, directory)
    left = {path.name for path in directory.iterdir()}
    assert left == {cached.name, *ages} - {old_name, cached.name + ".12-34.tmp"}


def test_use_keeps_a_file(checkpoint: Path, directory: Path) -> None:
    load(checkpoint, directory)
    (cached,) = directory.iterdir()
    then = time.time() - 29 * 86400
    os.utime(cached, (then, then))
    assert load(checkpoint, directory)[0] in FOUND
    (listed,) = list_cached(directory)
    assert listed.last_used > time.time() - 3600
    assert listed.bytes == cached.stat().st_size


@pytest.mark.parametrize("place", ["", True, 7, "a\0b", ("off",)])
def test_a_place_that_cannot_be_is_refused(place: CachePlace) -> None:
    with pytest.raises(ConfigError, match=r"weights_cache is .* 'auto', 'off' or"):
        EngineConfig(weights_cache=place)


@pytest.mark.parametrize("name", ["a b; c", "模型", "x" * 200])
def test_a_models_name_need_not_be_one_of_a_file(tmp_path: Path, name: str) -> None:
    path = make_checkpoint(tmp_path / name, "llama", tokenizer=False)
    assert load(path, tmp_path / "cache")[0] == "written"
    assert load(path, tmp_path / "cache")[0] in FOUND
    assert len(list_cached(tmp_path / "cache")) == 1


# -- progress -----------------------------------------------------------------------------------


def test_progress_goes_up_to_all_bytes(checkpoint: Path, directory: Path) -> None:
    total = sum(tensor.array.nbytes for tensor in open_model(checkpoint).tensors.values())
    for _ in range(2):  # packed, then found
        told: list[tuple[int, int]] = []
        engine = Engine.load(
            checkpoint,
            n_ctx=64,
            weights_cache=directory,
            progress=lambda done, of: told.append((done, of)),  # noqa: B023 - called at once
        )
        engine.close()
        assert told == sorted(set(told))
        assert told[-1] == (total, total)
        assert len(told) > 10


def test_what_progress_raises_ends_the_load(checkpoint: Path, directory: Path) -> None:
    def interrupt(done: int, total: int) -> None:
        if done > total / 2:
            raise KeyboardInterrupt

    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            Engine.load(checkpoint, n_ctx=64, weights_cache=directory, progress=interrupt)
        assert not list(directory.iterdir())
    assert load(checkpoint, directory)[0] == "written"
    with pytest.raises(KeyboardInterrupt):
        Engine.load(checkpoint, n_ctx=64, weights_cache=directory, progress=interrupt)
    assert load(checkpoint, directory)[0] in FOUND


@pytest.mark.parametrize("place", ["off", "cache"])
@pytest.mark.parametrize("size", [0, 4096, 50_000])
def test_a_checkpoint_that_is_truncated_while_it_is_loaded_is_refused(
    tmp_path: Path, place: str, size: int
) -> None:
    """And no signal ends the process, and nothing of it stays in the cache."""
    model = make_checkpoint(tmp_path / "model", "llama", tokenizer=False)
    cache = "off" if place == "off" else tmp_path / "cache"

    def truncate(done: int, total: int) -> None:
        os.truncate(model / "model.safetensors", size)

    with pytest.raises(ModelFormatError, match=f"was changed .*to {size} bytes"):
        Engine.load(model, n_ctx=256, weights_cache=cache, progress=truncate)
    if place != "off":
        assert list_cached(tmp_path / "cache") == []
    with pytest.raises(ModelFormatError):
        Engine.load(model, n_ctx=256, weights_cache=cache)


@pytest.mark.slow
def test_a_folder_that_is_replaced_at_any_time_gives_one_of_its_versions(
    tmp_path: Path, directory: Path
) -> None:
    for name, seed in (("model", 1), ("other", 2)):
        make_checkpoint(tmp_path / name, "llama", tokenizer=False, seed=seed)
    expected = [load(tmp_path / name, "off")[1] for name in ("model", "other")]
    ended = threading.Event()

    def swap() -> None:
        while not ended.is_set():
            for old, new in (("model", "spare"), ("other", "model"), ("spare", "other")):
                (tmp_path / old).rename(tmp_path / new)

    swapping = threading.Thread(target=swap)
    swapping.start()
    n_loaded = 0
    try:
        while n_loaded < 20:
            try:
                _, logits = load(tmp_path / "model", directory)
            except ModelFormatError:  # there was no folder of this name at that moment
                continue
            n_loaded += 1
            assert any(np.array_equal(logits, version) for version in expected)
    finally:
        ended.set()
        swapping.join()
    # The matrices that were cached meanwhile are of the right version.
    found = [load(tmp_path / name, directory)[1] for name in ("model", "other")]
    same = [[np.array_equal(one, version) for version in expected] for one in found]
    assert same in ([[True, False], [False, True]], [[False, True], [True, False]])
