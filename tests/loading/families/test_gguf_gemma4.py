"""Keys of Gemma 4's files; logits are compared in test_model.py."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from pybatcher.errors import ModelFormatError
from pybatcher.loading.checkpoints.blueprint import Blueprint
from pybatcher.loading.checkpoints.fields import Fields
from pybatcher.loading.checkpoints.model_config import ModelConfig
from pybatcher.loading.families import read_gguf_blueprint
from pybatcher.loading.parts.gguf_contents import GgufContents

KEYS: dict[str, Any] = {
    "block_count": 5,
    "context_length": 512,
    "embedding_length": 48,
    "feed_forward_length": np.array([88, 88, 88, 176, 176]),
    "attention.head_count": 6,
    "attention.head_count_kv": np.array([2, 2, 1, 2, 1]),
    "attention.key_length": 16,
    "attention.value_length": 16,
    "attention.key_length_swa": 10,
    "attention.layer_norm_rms_epsilon": 1e-5,
    "attention.sliding_window": 9,
    "attention.sliding_window_pattern": np.array([True, True, False, True, False]),
    "attention.shared_kv_layers": 2,
    "embedding_length_per_layer_input": 4,
    "rope.freq_base": 1e6,
}
DIVISORS = np.array([1.0, 1.0, *[1e30] * 6])


def read_all(divisors: Any = DIVISORS, **changes: Any) -> Blueprint:
    """Read KEYS with changes; `__` in a name is a dot."""
    keys = {**KEYS, **{key.replace("__", "."): value for key, value in changes.items()}}
    fields = {f"gemma4.{key}": value for key, value in keys.items()}
    fields["general.architecture"] = "gemma4"
    metadata = Fields(fields, "model.gguf")
    contents = GgufContents(metadata=metadata, vocab_size=384, rope_divisors=divisors)
    return read_gguf_blueprint(contents)


def read(divisors: Any = DIVISORS, **changes: Any) -> ModelConfig:
    return read_all(divisors, **changes).config


def test_what_a_file_says() -> None:
    config = read(final_logit_softcapping=30.0)
    assert [
        (shape.n_kv_heads, shape.head_dim, shape.intermediate_size, shape.kv_layer)
        for shape in config.layer_shapes
    ] == [(2, 10, 88, -1), (2, 10, 88, -1), (1, 16, 88, -1), (2, 10, 176, 1), (1, 16, 176, 2)]
    assert config.sliding_windows == (9, 9, 0, 9, 0)
    assert (config.per_layer_embedding_size, config.per_layer_embedding_scale) == (4, 2.0)
    assert (config.attention_scale, config.logit_softcap, config.vocab_size) == (1.0, 30.0, 384)
    full, sliding = config.ropes
    np.testing.assert_allclose(full.inv_freq, [1, 1e6 ** (-1 / 8), *[0] * 6], rtol=1e-6)
    np.testing.assert_allclose(sliding.inv_freq[1], 1e4 ** (-1 / 5), rtol=1e-6)


def test_what_is_the_same_in_all_layers_is_no_list() -> None:
    config = read(attention__head_count_kv=3, feed_forward_length=77)
    assert {(s.n_kv_heads, s.intermediate_size) for s in config.layer_shapes} == {(3, 77)}


def test_frequencies_without_divisors() -> None:
    np.testing.assert_allclose(read(None).ropes[0].inv_freq[7], 1e6 ** (-7 / 8), rtol=1e-6)


def test_tensors_of_shared_keys_are_left_alone() -> None:
    names = read_all().unused
    assert "blk.3.attn_k.weight" in names
    assert "blk.4.attn_k_norm.weight" in names
    assert "blk.2.attn_k.weight" not in names


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"expert_count": 8}, "expert_used_count is missing"),
        ({"attention__scale": 0.5}, "attention.scale is 0.5"),
        ({"attention__shared_kv_layers": 5}, "shared_kv_layers is 5"),
        ({"attention__shared_kv_layers": 4}, "shared_kv_layers is 4; .*of either kind"),
        ({"attention__sliding_window_pattern": None}, "sliding_window_pattern is None"),
        ({"attention__sliding_window_pattern": 6}, "sliding_window_pattern is 6"),
        ({"attention__head_count_kv": np.array([2, 2])}, "head_count_kv is .*one for each of 5"),
        ({"attention__head_count_kv": np.array([2, 2, 4, 2, 4])}, "divisors of the 6 heads"),
        ({"attention__head_count_kv": np.array([2, 2, 1, 2, 2])}, "in layer 4 that of 2"),
        ({"feed_forward_length": np.array([88.5] * 5)}, "feed_forward_length is"),
        ({"attention__key_length_swa": 7}, "key_length_swa is 7; expected an even"),
        ({"attention__value_length": 12}, "value_length is 12"),
        ({"rope__dimension_count": 8}, "dimension_count is 8"),
        ({"rope__scaling__type": "yarn"}, "scaling.type is 'yarn'"),
        ({"embedding_length_per_layer_input": -1}, "per_layer_input is -1"),
        ({"divisors": np.ones(3)}, "key_length is 16; expected twice the 3"),
    ],
)
def test_what_is_absurd_is_refused_by_name(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(ModelFormatError, match=rf"model\.gguf: .*{said}"):
        read(**changes)
