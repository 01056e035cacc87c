"""The sizes of the Llama family, under the field names of either format."""

from __future__ import annotations

from typing import Any

import pytest

from pybatcher import ModelFormatError
from pybatcher.loading.checkpoints.fields import Fields
from pybatcher.loading.checkpoints.llama_config import (
    LlamaSizes,
    SizeNames,
    llama_config,
    read_sizes,
)
from pybatcher.loading.checkpoints.rope import Rope

NAMES = SizeNames(*(f"the {name}" for name in SizeNames._fields))
SIZES = LlamaSizes(
    hidden_size=48,
    n_layers=2,
    n_heads=6,
    n_kv_heads=3,
    head_dim=10,
    intermediate_size=96,
    max_position_embeddings=128,
)


def read(default_head_dim: int | None = None, **changes: Any) -> LlamaSizes:
    values = {f"the {name}": value for name, value in {**SIZES._asdict(), **changes}.items()}
    return read_sizes(Fields(values, "a file"), NAMES, default_head_dim)


def test_sizes_are_read_by_the_names_of_the_file() -> None:
    assert read() == SIZES
    assert read(n_kv_heads=None) == SIZES._replace(n_kv_heads=6)


def test_a_head_dim_that_the_file_does_not_say() -> None:
    assert read(head_dim=None).head_dim == 48 // 6
    assert read(128, head_dim=None).head_dim == 128
    assert read(128).head_dim == 10
    assert read(hidden_size=50).head_dim == 10
    assert read(128, head_dim=None, hidden_size=50).head_dim == 128


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"n_kv_heads": 4}, "the n_kv_heads is 4; expected a divisor of the n_heads, 6"),
        (
            {"hidden_size": 50, "head_dim": None},
            "the n_heads is 6; expected a divisor of the hidden_size, 50",
        ),
        ({"head_dim": 7}, "the head_dim is 7; expected an even number"),
        ({"n_layers": None}, "the n_layers is None; expected a whole number"),
        ({"intermediate_size": 0}, "the intermediate_size is 0"),
        ({"max_position_embeddings": "many"}, "the max_position_embeddings is 'many'"),
    ],
)
def test_what_does_not_fit_is_refused_by_the_names_of_the_file(
    changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ModelFormatError, match=f"a file: {message}"):
        read(**changes)


def test_what_all_of_the_family_have_in_common() -> None:
    config = llama_config(
        SIZES,
        architecture="qwen3",
        vocab_size=300,
        norm_eps=1e-5,
        rope=Rope((1.0,) * 5, 0.7),
        sliding_windows=(0, 8),
    )
    assert (config.norm, config.norm_eps) == ("rms", 1e-5)
    assert (config.activation, config.gated_mlp, config.position) == ("silu", True, "rope")
    assert (config.ropes, config.layer_ropes) == ((Rope((1.0,) * 5, 0.7),), (0, 0))
    assert config.attention_scale == pytest.approx(10**-0.5)
    assert (config.architecture, config.vocab_size) == ("qwen3", 300)
    assert config.sliding_windows == (0, 8)
    assert LlamaSizes(*(getattr(config, name) for name in LlamaSizes._fields)) == SIZES
