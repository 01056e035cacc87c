"""Vision towers compute the same rows as transformers, in chunks of any size."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from pybatcher.engine import Engine
from pybatcher.loading import LoadedModel, from_torch
from pybatcher.params.config import EngineConfig
from tests.support.vision_models import CASES, TowerTile

LIMIT = 1e-4  # of the largest number of a row

Asked = tuple[LoadedModel, list[TowerTile], NDArray[np.float32]]


@pytest.fixture(scope="module", params=CASES)
def asked(request: pytest.FixtureRequest) -> Asked:
    case = CASES[request.param]
    module = case.make()
    tiles = case.tiles(module, case.grids)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # no part of the model is left out
        loaded = from_torch(module)
    return loaded, tiles, case.rows(module, case.grids, tiles)


def rows_of(loaded: LoadedModel, tiles: list[TowerTile], **options: Any) -> NDArray[np.float32]:
    config = EngineConfig(dtype="f32", n_ctx=512, n_parallel=2, **options)
    engine = Engine.from_loaded(loaded, config)
    engine.tower_begin(tiles)
    while not engine.tower_run(100):
        pass
    taken = engine.tower_take()
    engine.close()
    assert not any(isinstance(rows, str) for rows in taken)
    return np.concatenate(taken)


def test_rows_are_those_of_transformers_in_chunks_of_any_size(asked: Asked) -> None:
    loaded, tiles, expected = asked
    at_once = rows_of(loaded, tiles)
    assert at_once.shape == expected.shape
    assert np.abs(at_once - expected).max() <= LIMIT * np.abs(expected).max()
    for n_ubatch in (1, 16, 64):
        assert np.array_equal(rows_of(loaded, tiles, n_ubatch=n_ubatch), at_once)


def test_rows_of_a_tile_are_those_of_the_tile_alone(asked: Asked) -> None:
    loaded, tiles, _ = asked
    together = rows_of(loaded, tiles, n_ubatch=16)
    alone = np.concatenate([rows_of(loaded, [tile], n_threads=1) for tile in tiles])
    assert np.array_equal(together, alone)
