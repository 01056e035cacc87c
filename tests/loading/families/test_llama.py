from __future__ import annotations

from typing import Any

import pytest

from pybatcher.errors import ModelFormatError
from pybatcher.loading import ModelConfig
from pybatcher.loading.checkpoints.fields import Fields
from pybatcher.loading.families import read_blueprint

BASE = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 100,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 4,
    "num_attention_heads": 6,
    "max_position_embeddings": 64,
}


LEFTOVERS = {"sliding_window": 16, "use_sliding_window": True, "max_window_layers": 0}


def read(model_type: str = "llama", **changes: Any) -> ModelConfig:
    fields = {**BASE, "model_type": model_type, "architectures": None, **changes}
    fields = {name: value for name, value in fields.items() if value is not ...}
    return read_blueprint(Fields(fields, "config.json")).config


def test_what_config_json_says() -> None:
    config = read(num_key_value_heads=2, head_dim=10, rms_norm_eps=1e-5)
    assert config == ModelConfig(
        architecture="llama",
        vocab_size=100,
        hidden_size=48,
        n_layers=4,
        n_heads=6,
        n_kv_heads=2,
        head_dim=10,
        intermediate_size=80,
        max_position_embeddings=64,
        norm="rms",
        norm_eps=1e-5,
        activation="silu",
        gated_mlp=True,
        position="rope",
        ropes=config.ropes,
        layer_ropes=(0, 0, 0, 0),
        attention_scale=10**-0.5,
        sliding_windows=(0, 0, 0, 0),
    )
    assert (len(config.ropes[0].inv_freq), config.ropes[0].attention_factor) == (5, 1.0)


def test_what_it_leaves_out() -> None:
    config = read()
    assert (config.n_kv_heads, config.head_dim, config.norm_eps) == (6, 8, 1e-6)
    assert read("qwen3").head_dim == 128


def test_sliding_windows() -> None:
    # A llama has no windows, whatever else its config.json has.
    assert read(**LEFTOVERS).sliding_windows == (0,) * 4
    assert read("mistral", sliding_window=16).sliding_windows == (16,) * 4
    assert read("mistral", sliding_window=None).sliding_windows == (0,) * 4
    windowed = {"sliding_window": 16, "use_sliding_window": True, "max_window_layers": 3}
    for model_type in ("qwen2", "qwen3"):
        assert read(model_type, sliding_window=16).sliding_windows == (0,) * 4
        assert read(model_type, **windowed).sliding_windows == (0, 0, 0, 16)
        kinds = ["sliding_attention", "full_attention"] * 2
        assert read(model_type, **windowed, layer_types=kinds).sliding_windows == (16, 0, 16, 0)
        off = {**windowed, "use_sliding_window": False}
        assert read(model_type, **off, layer_types=kinds).sliding_windows == (0,) * 4


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"model_type": "mamba"}, "model_type is 'mamba'; expected one of .*'llama', "),
        ({"model_type": None}, "model_type is None"),
        ({"model_type": ["llama"]}, "model_type is"),
        ({"architectures": ["LlamaForSequenceClassification"]}, r"expected \['LlamaForCausalLM'\]"),
        ({"architectures": "LlamaForCausalLM"}, "architectures is 'LlamaForCausalLM'"),
        (
            {"quantization_config": {"quant_method": "gptq"}},
            "quantization_config is .* quantised by 'gptq' are not read. .*dtype='int8'.* GGUF",
        ),
        ({"quantization_config": 4}, "quantization_config is 4; .* by another program"),
        ({"hidden_act": "relu"}, "hidden_act is 'relu'; expected 'silu' or 'swish'"),
        ({"vocab_size": 0}, "vocab_size is 0"),
        ({"vocab_size": ...}, "vocab_size is missing"),
        ({"vocab_size": 10**30}, "vocab_size is 1000000"),
        ({"hidden_size": -48}, "hidden_size is -48"),
        ({"hidden_size": 48.0}, "hidden_size is 48.0"),
        ({"hidden_size": "48"}, "hidden_size is '48'"),
        ({"num_hidden_layers": True}, "num_hidden_layers is True"),
        ({"num_hidden_layers": 2**40}, "num_hidden_layers is 1099511627776"),
        ({"intermediate_size": None}, "intermediate_size is None"),
        ({"num_attention_heads": 5}, "num_attention_heads is 5; expected a divisor of hidden"),
        ({"num_attention_heads": 0}, "num_attention_heads is 0"),
        ({"num_key_value_heads": 4}, "num_key_value_heads is 4; expected a divisor of.* 6"),
        ({"num_key_value_heads": 12}, "num_key_value_heads is 12"),
        ({"head_dim": 7}, "head_dim is 7; expected an even number"),
        ({"head_dim": 0}, "head_dim is 0"),
        ({"num_attention_heads": 16}, r"head_dim is missing; expected an even number.*\(it is 3\)"),
        ({"max_position_embeddings": 0}, "max_position_embeddings is 0"),
        ({"rms_norm_eps": float("nan")}, "rms_norm_eps is nan"),
        ({"rms_norm_eps": -1e-6}, "rms_norm_eps is -1e-06"),
        ({"rms_norm_eps": "1e-6"}, "rms_norm_eps is '1e-6'"),
        ({"tie_word_embeddings": 1}, "tie_word_embeddings is 1; expected true or false"),
        ({"attention_bias": "no"}, "attention_bias is 'no'"),
        ({"model_type": "mistral", "sliding_window": 0}, "sliding_window is 0"),
        ({"model_type": "qwen2", "layer_types": ["full_attention"]}, "a list of 4 layer types"),
        ({"model_type": "qwen2", "layer_types": ["chunked_attention"] * 4}, "'sliding_attention'"),
        ({"model_type": "qwen3", "layer_types": [[]] * 4}, "layer_types is"),
        ({"model_type": "qwen2", "use_sliding_window": 1}, "use_sliding_window is 1"),
    ],
)
def test_what_is_not_supported_or_absurd_is_refused_by_name(
    changes: dict[str, Any], said: str
) -> None:
    with pytest.raises(ModelFormatError, match=f"^config.json: .*{said}"):
        read(**changes)
