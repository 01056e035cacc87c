from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any

import numpy as np
import pytest
from gguf_configs import read_config
from gguf_files import rope_divisors

from pybatcher.errors import ModelFormatError
from pybatcher.loading.checkpoints.fields import Fields
from pybatcher.loading.checkpoints.model_config import ModelConfig
from pybatcher.loading.families import read_blueprint

LLAMA: dict[str, Any] = {
    "general.architecture": "llama",
    "llama.block_count": 3,
    "llama.context_length": 512,
    "llama.embedding_length": 48,
    "llama.feed_forward_length": 88,
    "llama.attention.head_count": 6,
    "llama.attention.head_count_kv": 2,
    "llama.attention.layer_norm_rms_epsilon": 1e-5,
    "llama.rope.freq_base": 5e5,
}
OF_TRANSFORMERS = {
    "num_hidden_layers": 3,
    "max_position_embeddings": 512,
    "hidden_size": 48,
    "intermediate_size": 88,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-5,
    "vocab_size": 384,
    "rope_theta": 5e5,
}


def read(divisors: np.ndarray | None = None, **changes: Any) -> ModelConfig:
    """Read LLAMA with changes; `__` in a name is a dot, and `...` removes a key."""
    fields = {**LLAMA, **{"llama." + key.replace("__", "."): v for key, v in changes.items()}}
    fields = {key: value for key, value in fields.items() if value is not ...}
    return read_config(Fields(fields, "model.gguf"), 384, divisors)


def expected(architecture: str = "llama", **changes: Any) -> ModelConfig:
    fields = {"model_type": architecture, **OF_TRANSFORMERS, **changes}
    return read_blueprint(Fields(fields, "config.json")).config


@pytest.mark.parametrize("architecture", ["llama", "qwen2", "qwen3"])
def test_the_same_as_from_config_json(architecture: str) -> None:
    keys = {key.replace("llama.", f"{architecture}."): value for key, value in LLAMA.items()}
    fields = Fields({**keys, "general.architecture": architecture}, "model.gguf")
    assert read_config(fields, 384, None) == expected(architecture, head_dim=8)


def test_the_size_of_a_head_may_be_its_own() -> None:
    config = read(attention__key_length=20, attention__value_length=20, rope__dimension_count=20)
    assert config == expected(head_dim=20)


def test_defaults() -> None:
    config = read(attention__head_count_kv=..., rope__freq_base=...)
    assert config == expected(num_key_value_heads=6, rope_theta=10000.0)


@pytest.mark.parametrize(
    ("keys", "rope"),
    [
        ({"rope__scaling__type": "none", "rope__scaling__factor": 4.0}, {"rope_type": "default"}),
        ({"rope__scaling__factor": 4.0}, {"rope_type": "linear", "factor": 4.0}),
        ({"rope__scale_linear": 2.0}, {"rope_type": "linear", "factor": 2.0}),
        ({"rope__scaling__factor": 0.0}, {"rope_type": "default"}),
        ({"rope__scaling__type": "linear"}, {"rope_type": "default"}),
        (
            {
                "rope__scaling__type": "yarn",
                "rope__scaling__factor": 4.0,
                "rope__scaling__original_context_length": 128,
                "rope__scaling__yarn_beta_fast": 16.0,
            },
            {
                "rope_type": "yarn",
                "factor": 4.0,
                "original_max_position_embeddings": 128,
                "beta_fast": 16.0,
            },
        ),
        *(
            (
                {"rope__scaling__type": "yarn", "rope__scaling__factor": 8.0, **factor},
                {"rope_type": "yarn", "factor": 8.0, "attention_factor": max(factor.values())},
            )
            for factor in (
                {"rope__scaling__yarn_attn_factor": 1.2079441547393799},
                {"rope__scaling__attn_factor": 1.2079441547393799},
                {"rope__scaling__yarn_attn_factor": 1.0},
                {"rope__scaling__attn_factor": 1.5, "rope__scaling__yarn_attn_factor": 1.5},
            )
        ),
    ],
)
def test_scaled_rope(keys: dict[str, Any], rope: dict[str, Any]) -> None:
    wanted = expected(head_dim=16, rope_parameters={"rope_theta": 5e5, **rope})
    assert read(attention__key_length=16, **keys) == wanted


def test_an_attention_factor_without_yarn_is_applied() -> None:
    plain = read(attention__key_length=16).ropes[0]
    scaled = read(attention__key_length=16, rope__scaling__attn_factor=1.25).ropes[0]
    assert scaled == replace(plain, attention_factor=1.25)


@pytest.mark.parametrize(
    "name", ["attention__head_count", "attention__head_count_kv", "feed_forward_length"]
)
def test_an_array_of_equal_numbers_is_one_number(name: str) -> None:
    value = LLAMA["llama." + name.replace("__", ".")]
    assert read(**{name: np.array([value] * 3, np.int32)}) == read()


def test_layers_may_differ_in_kv_heads_and_width() -> None:
    config = read(
        attention__head_count_kv=np.array([2, 6, 3], np.int32),
        feed_forward_length=np.array([88, 88, 40], np.uint32),
    )
    sizes = [(shape.n_kv_heads, shape.intermediate_size) for shape in config.layer_shapes]
    assert sizes == [(2, 88), (6, 88), (3, 40)]
    assert {shape.head_dim for shape in config.layer_shapes} == {8}


def test_the_scaling_of_llama_3_comes_as_divisors() -> None:
    """The divisors are f32, so that a frequency may differ in its last bit."""
    rope = {
        "rope_type": "llama3",
        "rope_theta": 5e5,
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 128,
    }
    wanted = expected(head_dim=64, rope_parameters=rope)
    divisors = rope_divisors({"rope_parameters": rope, "head_dim": 64})
    assert divisors is not None
    assert 1.0 < divisors[divisors > 1].min() < 8.0 == divisors.max()
    config = read(divisors.astype(np.float64), attention__key_length=64)
    np.testing.assert_array_max_ulp(
        np.float32(config.ropes[0].inv_freq), np.float32(wanted.ropes[0].inv_freq), maxulp=1
    )
    assert asdict(replace(config, ropes=())) == asdict(replace(wanted, ropes=()))


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "no layers": ({"block_count": 0}, "llama.block_count is 0; expected a whole number from 1"),
    "2**60 layers": ({"block_count": 2**60}, "llama.block_count is 1152921504606846976"),
    "no number of layers": ({"block_count": ...}, "llama.block_count is missing"),
    "a text": ({"embedding_length": "48"}, "llama.embedding_length is '48'"),
    "a truth value": ({"embedding_length": True}, "llama.embedding_length is True"),
    "a width of 2**21": ({"feed_forward_length": 2**21}, "llama.feed_forward_length is 2097152"),
    "heads per layer": (
        {"attention__head_count": np.array([6, 6, 4])},
        r"llama.attention.head_count is array\(\[6, 6, 4\]\); expected one and the same number",
    ),
    "a layer without KV heads": (
        {"attention__head_count_kv": np.array([2, 0, 2])},
        r"head_count_kv is array\(\[2, 0, 2\]\); expected a number from 1 to",
    ),
    "too few layers": (
        {"feed_forward_length": np.array([88, 88])},
        r"feed_forward_length is array\(\[88, 88\]\); expected .* one for each of 3 layers",
    ),
    "numbers of KV heads that do not divide": (
        {"attention__head_count_kv": np.array([6, 4, 6])},
        r"array\(\[6, 4, 6\]\); expected divisors of llama.attention.head_count, 6",
    ),
    "experts and layers of several widths": (
        {"expert_count": 4, "expert_used_count": 2, "feed_forward_length": np.array([8, 8, 4])},
        r"feed_forward_length is array\(\[8, 8, 4\]\); expected one and the same number",
    ),
    "uneven groups": (
        {"attention__head_count_kv": 4},
        "head_count_kv is 4; expected a divisor of llama.attention.head_count, 6",
    ),
    "uneven heads": (
        {"embedding_length": 50},
        "head_count is 6; expected a divisor of llama.embedding_length, 50",
    ),
    "an odd head": ({"attention__key_length": 7}, "key_length is 7; expected an even number"),
    "a head of 3 by default": (
        {"embedding_length": 18},
        r"key_length is missing; expected an even number up to 1024 \(it is 3\)",
    ),
    "values of another size": ({"attention__value_length": 16}, "value_length is 16; expected 8"),
    "half of it rotates": ({"rope__dimension_count": 4}, "dimension_count is 4; expected 8"),
    "an epsilon that is no number": (
        {"attention__layer_norm_rms_epsilon": float("nan")},
        "layer_norm_rms_epsilon is nan; expected a number from 0 to 1",
    ),
    "no epsilon": ({"attention__layer_norm_rms_epsilon": ...}, "rms_epsilon is missing"),
    "no positions": ({"context_length": 0}, "llama.context_length is 0"),
    "a negative base": ({"rope__freq_base": -1.0}, "llama.rope.freq_base is -1.0"),
    "an infinite base": ({"rope__freq_base": float("inf")}, "llama.rope.freq_base is inf"),
    "experts of which none is used": ({"expert_count": 8}, "llama.expert_used_count is missing"),
    "too many experts": (
        {"expert_count": 10**6},
        "llama.expert_count is 1000000; expected a whole",
    ),
    "a window": ({"attention__sliding_window": 4096}, "sliding_window is 4096; expected 0"),
    "longrope": (
        {"rope__scaling__type": "longrope"},
        "llama.rope.scaling.type is 'longrope'; expected 'none', 'linear' or 'yarn'",
    ),
    "a negative factor": ({"rope__scaling__factor": -2.0}, "llama.rope.scaling.factor is -2.0"),
    "two factors": (
        {"rope__scaling__yarn_attn_factor": 1.5, "rope__scaling__attn_factor": 2.0},
        "rope.scaling.attn_factor is 2.0; expected 1.5, as in llama.rope.scaling.yarn_attn_factor",
    ),
    "a factor of zero": (
        {"rope__scaling__yarn_attn_factor": 0.0},
        "yarn_attn_factor is 0.0; expected a number from 0.001 to 1000",
    ),
    "YaRN without a logarithm": (
        {"rope__scaling__type": "yarn", "rope__scaling__factor": 2.0, "rope__freq_base": 1.0},
        "rope_theta is 1.0; expected more than 1",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str) -> None:
    changes, message = REFUSED[name]
    with pytest.raises(ModelFormatError, match=message) as caught:
        read(**changes)
    assert str(caught.value).startswith("model.gguf: ")


@pytest.mark.parametrize("architecture", ["gemma", "", "llama4", "mamba"])
def test_other_architectures(architecture: str) -> None:
    fields = Fields({**LLAMA, "general.architecture": architecture}, "model.gguf")
    with pytest.raises(ModelFormatError, match=r"one of .*'llama', .*'qwen2', .*'qwen3'"):
        read_config(fields, 384, None)
    with pytest.raises(ModelFormatError, match=r"general\.architecture is missing"):
        read_config(Fields({}, "model.gguf"), 384, None)


def test_divisors_of_another_head() -> None:
    with pytest.raises(
        ModelFormatError, match=r"twice the 3 elements of tensor rope_freqs\.weight"
    ):
        read(np.ones(3))
