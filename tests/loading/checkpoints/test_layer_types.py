from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from pybatcher.errors import ModelFormatError
from pybatcher.loading.checkpoints.fields import Fields
from pybatcher.loading.checkpoints.layer_types import read_ropes, read_sliding_layers

THETAS = (("rope_theta", 100.0), ("local", 10.0))


def sliding(period: int = 3, **fields: Any) -> tuple[bool, ...]:
    return read_sliding_layers(Fields(fields, "config.json"), 4, period)


def lowest(**fields: Any) -> tuple[float, float]:
    """The lower one of the two frequencies of a head of 4: theta to the power -1/2."""
    full, local = read_ropes(Fields(fields, "config.json"), 4, 64, THETAS)
    return full.inv_freq[1], local.inv_freq[1]


def test_the_layers_that_see_a_window() -> None:
    assert sliding() == (True, True, False, True)
    assert sliding(period=1) == (False,) * 4
    assert sliding(sliding_window_pattern=2) == (True, False, True, False)
    kinds = ["full_attention", *["sliding_attention"] * 3]
    assert sliding(layer_types=kinds, sliding_window_pattern=2) == (False, True, True, True)


def test_frequencies() -> None:
    np.testing.assert_allclose(lowest(), (0.1, 10**-0.5), rtol=1e-6)
    np.testing.assert_allclose(lowest(rope_theta=4.0, local=25.0), (0.5, 0.2), rtol=1e-6)
    scaled = {"rope_type": "linear", "factor": 10.0}
    np.testing.assert_allclose(lowest(rope_scaling=scaled), (0.01, 10**-0.5), rtol=1e-6)
    by_type = {"full_attention": scaled, "sliding_attention": {"rope_theta": 16.0}}
    np.testing.assert_allclose(lowest(rope_parameters=by_type), (0.01, 0.25), rtol=1e-6)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        (
            {"layer_types": "full_attention"},
            "layer_types is 'full_attention'; .* list of 4",
        ),
        ({"layer_types": [None] * 4}, "'full_attention' and 'sliding_attention'"),
        ({"sliding_window_pattern": -1}, "sliding_window_pattern is -1"),
    ],
)
def test_layers_that_are_none(fields: dict[str, Any], said: str) -> None:
    with pytest.raises(ModelFormatError, match=said):
        sliding(**fields)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"local": 0.0}, "local is 0.0"),
        ({"rope_parameters": {"rope_type": "linear"}}, "rope_parameters: rope_type is 'linear'"),
        ({"rope_parameters": {"sliding_attention": [1]}}, "sliding_attention is"),
        (
            {"rope_parameters": {"full_attention": {"rope_type": "ntk"}}},
            "full_attention: rope_parameters: rope_type is 'ntk'",
        ),
        ({"rope_scaling": {"rope_type": "linear"}}, "rope_scaling: factor is missing"),
    ],
)
def test_frequencies_that_are_none(fields: dict[str, Any], said: str) -> None:
    with pytest.raises(ModelFormatError, match=said):
        lowest(**fields)
