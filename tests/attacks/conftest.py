"""The model that the attacks are made on."""

from __future__ import annotations

import pytest

from pybatcher.loading import LoadedModel, from_torch
from pybatcher.testing.checkpoints import make_module


@pytest.fixture(scope="module")
def model() -> LoadedModel:
    return from_torch(make_module("qwen3", max_position_embeddings=80))
