from __future__ import annotations

import pytest
from family_configs import read_family

from pybatcher.errors import ModelFormatError


def test_three_layers_of_four_see_a_window_and_turn() -> None:
    config = read_family("exaone4").config
    assert config.sliding_windows == (4096, 4096, 4096, 0)
    assert config.layer_ropes == (0, 0, 0, -1)
    assert (config.pre_norm, config.post_norm, config.norm_eps) == (False, True, 1e-5)


def test_without_a_window_all_layers_turn() -> None:
    kinds = ["full_attention"] * 4
    for changes in ({"layer_types": kinds}, {}):
        config = read_family("exaone4", sliding_window=None, **changes).config
        assert (config.sliding_windows, config.layer_ropes) == ((0,) * 4, (0,) * 4)


def test_what_is_absurd_is_refused_by_name() -> None:
    with pytest.raises(ModelFormatError, match="layer_types"):
        read_family("exaone4", layer_types=["full_attention"])
    with pytest.raises(ModelFormatError, match="sliding_window is 0"):
        read_family("exaone4", sliding_window=0)
