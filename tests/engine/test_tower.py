"""The calls of the vision tower: what they refuse, and how the work is divided and ended."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import asdict
from random import Random
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from pybatcher import _core
from pybatcher.engine import Engine
from pybatcher.errors import EngineError, InvalidRequestError, ModelFormatError, PybatcherError
from pybatcher.loading import LoadedModel, from_torch
from pybatcher.params.config import EngineConfig
from tests.support.engine_helpers import TARGETS
from tests.support.odd_values import odd_value
from tests.support.vision_models import CASES, TowerTile

CONFIG = EngineConfig(dtype="f32", n_ctx=64, n_parallel=2, n_ubatch=16, n_threads=2)
FIELDS = ("patches", "coordinates", "table_index", "table_weight", "windows")


@pytest.fixture(scope="module")
def module() -> Any:
    return CASES["qwen3_vl"].make()


@pytest.fixture(scope="module")
def loaded(module: Any) -> LoadedModel:
    return from_torch(module)


@pytest.fixture(scope="module")
def tiles(module: Any) -> list[TowerTile]:
    return CASES["qwen3_vl"].tiles(module, [(6, 8), (4, 4), (8, 10)])


@pytest.fixture
def engine(loaded: LoadedModel) -> Iterator[Engine]:
    made = Engine.from_loaded(loaded, CONFIG)
    yield made
    made.close()


def run(engine: Engine, tiles: list[TowerTile], step: int = 10**6) -> list[NDArray[np.float32]]:
    engine.tower_begin(tiles)
    while not engine.tower_run(step):
        pass
    taken = engine.tower_take()
    assert not any(isinstance(rows, str) for rows in taken)
    return taken  # type: ignore[return-value]


def with_part(tile: TowerTile, name: str, value: object) -> Any:
    return tuple(value if field == name else part for field, part in zip(FIELDS, tile, strict=True))


def test_facts(engine: Engine) -> None:
    assert engine.takes_images
    assert engine.image_columns == 96  # 32 of the text model, and 2 of deepstack
    assert engine.tower_rows == 64 * 4  # as many patches as n_ctx tokens can have
    assert engine.tower_layers == 3
    of_patch = 4 * 48 * 48 + 2 * 48 * 80
    of_token = 4 * (2 * 32 * 64 + 2 * 32 * 32 + 3 * 32 * 48)
    assert engine.tower_row_cost == pytest.approx(of_patch / of_token)


def test_parts_of_the_work_give_the_same_bits(engine: Engine, tiles: list[TowerTile]) -> None:
    expected = run(engine, tiles)
    for step in (1, 7, 40):
        for rows, other in zip(run(engine, tiles, step), expected, strict=True):
            assert np.array_equal(rows, other)


def test_a_call_computes_no_more_than_it_is_asked_for(
    engine: Engine, tiles: list[TowerTile]
) -> None:
    """144 patches in 3 layers are 9 chunks of 16 in each half of a layer."""
    engine.tower_begin(tiles)
    calls = 1
    while not engine.tower_run(16):  # two halves of a chunk
        calls += 1
    assert calls == 27
    engine.tower_drop()


def test_text_is_computed_between_two_parts(engine: Engine, tiles: list[TowerTile]) -> None:
    expected = run(engine, tiles)
    tokens = list(range(40))
    seq_id = engine.seq_new()
    first = engine.prefill_chunk(seq_id, tokens, logits=True)
    engine.seq_remove(seq_id)
    engine.tower_begin(tiles)
    while not engine.tower_run(1):
        seq_id = engine.seq_new("other")
        assert np.array_equal(engine.prefill_chunk(seq_id, tokens, logits=True), first)
        engine.seq_remove(seq_id)
    for rows, other in zip(engine.tower_take(), expected, strict=True):
        assert np.array_equal(rows, other)


@pytest.mark.parametrize("target", TARGETS)
def test_targets_agree(
    loaded: LoadedModel,
    tiles: list[TowerTile],
    target: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PYBATCHER_CPU_TARGET", "scalar")
    expected = np.concatenate(run(Engine.from_loaded(loaded, CONFIG), tiles))
    monkeypatch.setenv("PYBATCHER_CPU_TARGET", target)
    found = np.concatenate(run(Engine.from_loaded(loaded, CONFIG), tiles))
    assert np.abs(found - expected).max() <= 1e-4 * np.abs(expected).max()


def test_a_tile_that_is_not_finite_harms_no_other(engine: Engine, tiles: list[TowerTile]) -> None:
    expected = run(engine, tiles)
    bad = tiles[1][0].copy()
    bad[3, 5] = np.nan
    engine.tower_begin([tiles[0], with_part(tiles[1], "patches", bad), tiles[2]])
    assert engine.tower_run(10**6)
    first, failure, last = engine.tower_take()
    assert isinstance(failure, str)
    assert "not all finite" in failure
    assert np.array_equal(first, expected[0])
    assert np.array_equal(last, expected[2])
    for rows, other in zip(run(engine, tiles[::-1]), expected[::-1], strict=True):
        assert np.array_equal(rows, other)


def test_work_is_begun_run_and_taken_in_order(engine: Engine, tiles: list[TowerTile]) -> None:
    for early in (lambda: engine.tower_run(1), engine.tower_take):
        with pytest.raises(InvalidRequestError, match="no tiles are in progress"):
            early()
    engine.tower_begin(tiles)
    with pytest.raises(InvalidRequestError, match="tiles are in progress"):
        engine.tower_begin(tiles)
    engine.tower_run(1)
    with pytest.raises(InvalidRequestError, match="not complete"):
        engine.tower_take()
    engine.tower_drop()
    engine.tower_drop()
    with pytest.raises(InvalidRequestError, match="no tiles are in progress"):
        engine.tower_run(1)
    engine.tower_begin(tiles)
    engine.restart()
    run(engine, tiles)


def test_arrays_are_copied(engine: Engine, tiles: list[TowerTile]) -> None:
    expected = run(engine, tiles)
    given = [tuple(part.copy() for part in tile) for tile in tiles]
    engine.tower_begin(given)  # type: ignore[arg-type]
    for tile in given:
        for part in tile:
            part[...] = 0
    assert engine.tower_run(10**6)
    for rows, other in zip(engine.tower_take(), expected, strict=True):
        assert np.array_equal(rows, other)


def test_arrays_may_be_strided(engine: Engine, tiles: list[TowerTile]) -> None:
    strided = [tuple(np.repeat(part, 2, axis=0)[::2] for part in tile) for tile in tiles]
    for rows, other in zip(run(engine, strided), run(engine, tiles), strict=True):  # type: ignore[arg-type]
        assert np.array_equal(rows, other)


def bad_parts(tile: TowerTile) -> Iterator[tuple[str, object, str]]:
    patches, coordinates, index, weight, _ = tile
    n = len(patches)
    yield "patches", patches.astype(np.float64), "patches is an array of float64 and 2 dimensions"
    yield "patches", patches[0], "patches is an array of float32 and 1 dimensions"
    yield "patches", patches.tolist(), "patches is "
    yield "patches", patches[:, :-1], r"patches has \d+ numbers; it must have 96 for each of 16"
    yield "patches", patches[:-1], "coordinates has 16 rows; it must have one for each of the 15"
    yield "coordinates", coordinates[:, :1], "coordinates has 1 columns; it must have 2"
    yield "coordinates", coordinates.astype(np.int64), "coordinates is an array of int64"
    yield "coordinates", coordinates - 1, "coordinates holds -1; the numbers must be 0 to 255"
    yield "coordinates", coordinates + 256, "coordinates holds 256"
    yield "table_index", index[:, :1], "table_weight has 4 columns; it must have 1"
    yield "table_index", index - 1000, r"table_index holds -\d+; the numbers must be 0 to 35"
    yield "table_index", index + 36, r"table_index holds \d+"
    yield "table_weight", weight[:-1], f"table_weight has {n - 1} rows"
    yield "windows", np.array([n], np.int32), "windows has 1 lengths; there must be none"
    yield "windows", np.zeros((0, 2), np.int32), "windows is an array of int32 and 2 dimensions"


def test_parts_of_tiles_are_refused_by_name(engine: Engine, tiles: list[TowerTile]) -> None:
    for name, value, message in bad_parts(tiles[1]):
        with pytest.raises(InvalidRequestError, match=rf"tiles\[1\]: {message}"):
            engine.tower_begin([tiles[0], with_part(tiles[1], name, value)])
    for tile, message in (
        (tuple(part[:6] for part in tiles[0]), "patches has 6 rows; there must be a multiple of 4"),
        (tuple(part[:0] for part in tiles[0]), "patches has 0 rows"),
        (tiles[0][:4], r"is a tuple; it must be a tuple: \(patches, coordinates"),
        (list(tiles[0]), "it must be a tuple"),
    ):
        with pytest.raises(InvalidRequestError, match=message):
            engine.tower_begin([tile])  # type: ignore[list-item]
    with pytest.raises(InvalidRequestError, match="tiles is empty"):
        engine.tower_begin([])
    with pytest.raises(InvalidRequestError, match=r"tiles is .*; it must be a list or a tuple"):
        engine.tower_begin(iter(tiles))  # type: ignore[arg-type]
    with pytest.raises(InvalidRequestError, match="tiles have 320 patches; up to 256 fit"):
        engine.tower_begin([tiles[2]] * 4)
    run(engine, tiles)


def test_odd_values_are_refused(engine: Engine, tiles: list[TowerTile]) -> None:
    """Nothing but the package's own errors, or those of the value itself, and nothing is begun."""
    random = Random(0)
    for _ in range(60):
        value = odd_value(random)
        for call in (
            lambda value=value: engine.tower_begin(value),
            lambda value=value: engine.tower_begin([value]),
            *(
                lambda value=value, name=name: engine.tower_begin(
                    [with_part(tiles[0], name, value)]
                )
                for name in FIELDS
            ),
            lambda value=value: engine.tower_run(value),
        ):
            with pytest.raises(Exception):  # noqa: B017, PT011
                call()
    run(engine, tiles)


def test_calls_of_other_threads_wait(engine: Engine, tiles: list[TowerTile]) -> None:
    """Each thread begins when the tower is free; all get the same rows."""
    expected = run(engine, tiles[:1])[0]
    turn, found = threading.Lock(), []

    def ask() -> None:
        with turn:
            found.append(run(engine, tiles[:1], 1)[0])

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(np.array_equal(rows, expected) for rows in found)


def test_a_model_without_a_tower_refuses(tiles: list[TowerTile]) -> None:
    engine = Engine.load(dtype="f32", n_ctx=64, n_parallel=1)
    assert not engine.takes_images
    assert (engine.image_columns, engine.tower_rows) == (0, 0)
    assert (engine.tower_layers, engine.tower_row_cost) == (0, 0.0)
    calls: tuple[Callable[[], object], ...] = (
        lambda: engine.tower_begin(tiles),
        lambda: engine.tower_run(1),
        engine.tower_take,
        engine.tower_drop,
    )
    for call in calls:
        with pytest.raises(InvalidRequestError, match="the model has no vision tower"):
            call()
    engine.close()
    with pytest.raises(EngineError, match="closed"):
        engine.tower_begin(tiles)


def test_the_tower_counts_in_the_memory(loaded: LoadedModel) -> None:
    text = {name: part for name, part in loaded.tensors.items() if not name.startswith("tower.")}
    whole = Engine.planned(loaded, CONFIG)
    made = Engine.from_loaded(loaded, CONFIG)
    assert made.description()["weight_bytes"] <= 1.1 * whole["weight_bytes"]
    assert whole["weight_bytes"] <= 1.1 * made.description()["weight_bytes"]
    made.close()
    arguments: dict[str, Any] = {
        "config": asdict(loaded.config),
        "tensors": {name: (part.array, part.dtype) for name, part in text.items()},
        "dtype": "f32",
        "kv_dtype": "f32",
        "device": "cpu",
        "n_ctx": 64,
        "n_parallel": 2,
        "n_ubatch": 16,
        "block_size": 32,
    }
    alone = _core.Engine.plan(**arguments)
    assert whole["weight_bytes"] > 2 * alone["weight_bytes"]
    assert loaded.vision is not None
    of_row = loaded.vision.layers.hidden_size * 4 + loaded.vision.patch_size
    assert whole["buffer_bytes"] - alone["buffer_bytes"] >= 256 * of_row * 4


def change(fields: dict[str, Any], path: str, value: object) -> dict[str, Any]:
    head, _, rest = path.partition(".")
    if rest and isinstance(fields[head], tuple | list):
        changed: object = [change(part, rest, value) for part in fields[head]]
    else:
        changed = change(fields[head], rest, value) if rest else value
    return {**fields, head: changed}


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("layers.causal", True, r"config\.vision\.layers\.causal is true"),
        ("layers.n_heads", 0, r"config\.vision\.layers\.n_heads is 0"),
        ("layers.pre_norm", False, r"config\.vision\.layers\.pre_norm is false"),
        ("layers.position", "learned", r"config\.vision\.layers\."),
        ("layers.sliding_windows", (4, 4, 4), r"config\.vision\.layers\.sliding_windows is 4"),
        ("patch_size", "4", r"config\.vision\.patch_size is of type str"),
        ("patch_size", 0, r"config\.vision\.patch_size is 0"),
        ("projector.pool", "max", r"config\.vision\.pool is 'max'; it must be 'concat' or 'mean'"),
        ("projector.scale", 2.0, r"config\.vision\.projector\.scale is 2\.0+; it must be 1"),
        ("projector.linears", (), r"config\.vision\.projector\.linears is empty"),
        ("projector.group", 0, r"config\.vision\.projector\.group is 0"),
        ("deepstack.layer", 0, r"config\.vision\.deepstack\.layer is 0; it must be from 1 to 2"),
        ("deepstack.projector.norm_before", "rms", r"config\.vision\.deepstack\.projector is one"),
        ("windowed_layers", (True,), r"config\.vision\.windowed_layers is 1 flags"),
        (
            "deepstack",
            (),
            r"config\.vision has rows of 32 numbers; the text model takes rows of 96",
        ),
    ],
)
def test_a_configuration_is_refused_by_field(
    loaded: LoadedModel, path: str, value: object, message: str
) -> None:
    assert loaded.vision is not None
    vision = change(asdict(loaded.vision), path, value)
    with pytest.raises(ModelFormatError, match=message):
        _core.Engine(
            asdict(loaded.config),
            {},
            dtype="f32",
            kv_dtype="f32",
            device="cpu",
            n_ctx=64,
            n_parallel=1,
            n_ubatch=16,
            n_threads=1,
            block_size=16,
            vision=vision,
        )


def test_tensors_of_the_tower_are_checked(loaded: LoadedModel) -> None:
    for name in (
        "tower.patch.weight",
        "tower.positions.weight",
        "tower.deepstack.1.linears.0.bias",
    ):
        tensors = {key: value for key, value in loaded.tensors.items() if key != name}
        without = LoadedModel(
            config=loaded.config,
            tensors=tensors,
            tokenizer=loaded.tokenizer,
            dtype=loaded.dtype,
            name=loaded.name,
            path=None,
            vision=loaded.vision,
        )
        if name.endswith(".bias"):  # a linear layer may have none
            Engine.from_loaded(without, CONFIG).close()
            continue
        with pytest.raises(PybatcherError, match=f"'{name}' is missing"):
            Engine.from_loaded(without, CONFIG)


@pytest.mark.parametrize("dtype", ["bf16", "int8", "int4"])
def test_rounded_weights_are_near(
    loaded: LoadedModel, engine: Engine, tiles: list[TowerTile], dtype: Any
) -> None:
    """A tower is int8 in an int4 engine."""
    expected = np.concatenate(run(engine, tiles))
    config = EngineConfig(dtype=dtype, n_ctx=64, n_parallel=2, n_ubatch=16)
    rounded = Engine.from_loaded(loaded, config)
    found = np.concatenate(run(rounded, tiles))
    error = np.sqrt(np.square(found - expected).mean() / np.square(expected).mean())
    assert 0 < error < 0.05
    rounded.close()
