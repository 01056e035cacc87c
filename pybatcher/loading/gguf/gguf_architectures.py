"""`ARCHITECTURES`: the keys, tensors and order of rows of each architecture of GGUF files.

Keys are those that llama.cpp's converter writes and its loader reads; the default of an absent
one is its loader's.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from ..checkpoints.fields import Fields
from ..checkpoints.limits import MAX_LAYERS, MAX_POSITIONS
from ..checkpoints.llama_config import LlamaSizes
from ..checkpoints.model_config import ModelConfig
from ..checkpoints.rope import read_rope
from ..checkpoints.tensors import Tensor, TensorRule
from ..families import gemma, gpt_oss, granite, llama, ministral, olmo, phi3, smollm3
from . import gguf_gemma4, gguf_lfm2, gguf_qwen35
from .gguf_encoders import (
    bert_rules,
    gemma_embedding,
    modern_bert_rules,
    read_bert,
    read_modern_bert,
)
from .gguf_keys import ArchitectureKeys
from .gguf_moe import GgufExperts, expert_rules
from .gguf_rope import original_positions

__all__ = ["ARCHITECTURES", "GgufArchitecture"]

_LAYERS_OF_27B = {"gemma2": 46, "gemma3": 62}
"""Whose attention is scaled by hidden_size / n_heads: a file does not say by what."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GgufArchitecture:
    """One architecture of GGUF files.

    change: makes of a Llama-like configuration that of this architecture, by its own keys.
    rules: of its tensors, with transformers' names as sources; biases as in `llama.rules`.
    experts: of its files; None: they have none.
    expert_rules: of its routers and experts, with GGUF's names as sources.
    config_name: of the configuration; "": the file's.
    is_causal: False: an encoder, whose file has to say so.
    names: GGUF's names of parts of a layer, where they are not those of a Llama.
    has_windows, has_attention_scale, has_rotary_dim, has_yarn_log_multiplier: its keys may say
        these.
    truncates_yarn: as `read_gguf_rope` has it.
    in_pairs: rows of q and k are permuted, for llama.cpp turns neighbouring rows.
    read: reads the whole configuration, where keys vary by layer; takes the number of tokens and
        the divisors of frequencies. None: it is Llama-like.
    unused: names of tensors that a file may have and that no layer needs.
    width: the key of the MLP's width, or of the shared expert's.
    read_encoder: reads the configuration of one that is not Llama-like, instead of `change`.
    own_rules: instead of `rules` and `names`, with GGUF's names as sources.
    plain: the metadata with one size where the file has one for each layer.
    """

    change: Callable[[ArchitectureKeys, ModelConfig], ModelConfig] = lambda _, config: config
    rules: Callable[..., Iterator[TensorRule]] = llama.rules
    experts: GgufExperts | None = None
    expert_rules: Callable[[ModelConfig], Iterator[TensorRule]] = expert_rules
    config_name: str = ""
    is_causal: bool = True
    names: Mapping[str, str] = field(default_factory=dict)
    has_windows: bool = False
    has_attention_scale: bool = False
    has_rotary_dim: bool = False
    has_yarn_log_multiplier: bool = False
    truncates_yarn: bool = True
    in_pairs: bool = False
    read: Callable[[ArchitectureKeys, int, NDArray[np.float64] | None], ModelConfig] | None = None
    unused: Callable[[ModelConfig], Collection[str]] = lambda _: ()
    width: str = "feed_forward_length"
    read_encoder: Callable[[ArchitectureKeys, LlamaSizes, int], ModelConfig] | None = None
    own_rules: Callable[[ModelConfig, Mapping[str, Tensor]], Iterator[TensorRule]] | None = None
    plain: Callable[[ArchitectureKeys], Fields] = lambda keys: keys.fields


def _gemma2(keys: ArchitectureKeys, config: ModelConfig) -> ModelConfig:
    window = keys.integer("attention.sliding_window", 0, MAX_POSITIONS, 4096)
    sliding = _sliding_layers(keys, config.n_layers, 2)
    return replace(
        _gemma(config),
        sliding_windows=tuple(window if slides else 0 for slides in sliding),
        attention_softcap=keys.number("attn_logit_softcapping", 0.0, 1e6, 50.0),
        logit_softcap=keys.number("final_logit_softcapping", 0.0, 1e6, 30.0),
    )


def _gemma3(keys: ArchitectureKeys, config: ModelConfig) -> ModelConfig:
    config = replace(
        _gemma(config), logit_softcap=keys.number("final_logit_softcapping", 0.0, 1e6, 0.0)
    )
    return _with_windows(keys, config, 6, keys.number("rope.freq_base_swa", 1e-3, 1e12, 1e4))


def _gemma(config: ModelConfig) -> ModelConfig:
    per_head = config.head_dim
    if config.n_layers == _LAYERS_OF_27B[config.architecture]:
        per_head = config.hidden_size // config.n_heads
    return replace(
        config,
        activation="gelu_tanh",
        post_norm=True,
        embedding_scale=config.hidden_size**0.5,
        attention_scale=per_head**-0.5,
    )


def _granite(keys: ArchitectureKeys, config: ModelConfig) -> ModelConfig:
    def factor(name: str) -> float | None:
        """Return a multiplier; None where the file has none, which 0 says too."""
        value = keys.number(name, 0.0, 1e6, 0.0)
        return keys.number(name, 1e-6, 1e6) if value else None

    logits = keys.number("logit_scale", 1e-6, 1e6)
    return granite.with_multipliers(
        config,
        embedding=factor("embedding_scale") or 1.0,
        residual=factor("residual_scale") or 1.0,
        attention=factor("attention.scale") or config.attention_scale,
        logits=logits,
    )


def _olmo2(keys: ArchitectureKeys, config: ModelConfig) -> ModelConfig:
    """An OLMo 3 is one with windows, in whose layers frequencies are not scaled."""
    theta = keys.number("rope.freq_base", 1e-3, 1e12, 1e4)
    theta = keys.number("rope.freq_base_swa", 1e-3, 1e12, theta)
    return olmo.post_normed(_with_windows(keys, config, 4, theta))


def _phi3(keys: ArchitectureKeys, config: ModelConfig) -> ModelConfig:
    window = keys.integer("attention.sliding_window", 0, MAX_POSITIONS, 0)
    return replace(config, sliding_windows=(window,) * config.n_layers)


def _phi3_rules(config: ModelConfig, **_biases: bool) -> Iterator[TensorRule]:
    """Yield the rules of a model that has no biases."""
    return phi3.fused_rules(config)


def _mistral3(keys: ArchitectureKeys, config: ModelConfig) -> ModelConfig:
    beta = keys.number("attention.temperature_scale", 0.0, 1e3, 0.0)
    original = original_positions(keys, config.max_position_embeddings)
    return ministral.with_query_beta(config, beta, original)


def _gpt_oss(keys: ArchitectureKeys, config: ModelConfig) -> ModelConfig:
    window = keys.integer("attention.sliding_window", 1, MAX_POSITIONS)
    sliding = _sliding_layers(keys, config.n_layers, 2)
    return replace(config, sliding_windows=tuple(window if slides else 0 for slides in sliding))


def _with_windows(
    keys: ArchitectureKeys, config: ModelConfig, period: int, theta: float
) -> ModelConfig:
    """Return the configuration with windows, if the file has one, and `theta` in their layers."""
    window = keys.integer("attention.sliding_window", 0, MAX_POSITIONS, 0)
    if window == 0:
        return config
    sliding = _sliding_layers(keys, config.n_layers, period)
    plain = Fields({"rope_theta": theta}, keys.fields.source)
    rope = read_rope(plain, config.head_dim, config.max_position_embeddings)
    return replace(
        config,
        ropes=(*config.ropes, rope),
        layer_ropes=tuple(map(int, sliding)),
        sliding_windows=tuple(window if slides else 0 for slides in sliding),
    )


def _modern_bert(keys: ArchitectureKeys, sizes: LlamaSizes, vocab_size: int) -> ModelConfig:
    sliding = _sliding_layers(keys, sizes.n_layers, 3, full_first=True)
    return read_modern_bert(keys, sizes, vocab_size, sliding)


def _sliding_layers(
    keys: ArchitectureKeys, n_layers: int, period: int, *, full_first: bool = False
) -> Sequence[bool]:
    """Return which layers see a window: all but every `period`-th, or as the file says.

    full_first: of a period the first layer sees all, not the last.
    """
    name = "attention.sliding_window_pattern"
    pattern = keys.get(name)
    if pattern is None or isinstance(pattern, int):
        period = keys.integer(name, 1, MAX_LAYERS, period)
        return [(layer + (not full_first)) % period != 0 for layer in range(n_layers)]
    return keys.flags(name, n_layers, ", or the period of the pattern")


ARCHITECTURES = {
    "llama": GgufArchitecture(experts=GgufExperts(wide_as_mlp=True), in_pairs=True),
    "qwen2": GgufArchitecture(),
    "qwen3": GgufArchitecture(),
    "qwen35": GgufArchitecture(
        change=gguf_qwen35.change,
        own_rules=gguf_qwen35.rules,
        config_name="qwen3_5",
        has_rotary_dim=True,
        unused=gguf_qwen35.unused_tensors,
    ),
    "qwen35moe": GgufArchitecture(
        change=gguf_qwen35.change,
        own_rules=gguf_qwen35.rules,
        experts=GgufExperts(always=True, shared_expert=True),
        width="expert_shared_feed_forward_length",
        config_name="qwen3_5_moe",
        has_rotary_dim=True,
        unused=gguf_qwen35.unused_tensors,
    ),
    "lfm2": GgufArchitecture(
        change=gguf_lfm2.change, own_rules=gguf_lfm2.rules, plain=gguf_lfm2.plain
    ),
    "lfm2moe": GgufArchitecture(
        change=gguf_lfm2.change,
        own_rules=gguf_lfm2.rules,
        plain=gguf_lfm2.plain,
        experts=GgufExperts(always=True, sigmoid=True, dense_first=True),
        config_name="lfm2_moe",
    ),
    "qwen3moe": GgufArchitecture(experts=GgufExperts(always=True), config_name="qwen3_moe"),
    "gemma2": GgufArchitecture(change=_gemma2, rules=gemma.gguf_rules, has_windows=True),
    "gemma3": GgufArchitecture(change=_gemma3, rules=gemma.gguf_rules, has_windows=True),
    "gemma-embedding": GgufArchitecture(
        change=lambda keys, config: gemma_embedding(_gemma3(keys, config)),
        rules=gemma.gguf_rules,
        config_name="gemma3",
        is_causal=False,
        has_windows=True,
    ),
    "bert": GgufArchitecture(read_encoder=read_bert, own_rules=bert_rules),
    "modern-bert": GgufArchitecture(
        read_encoder=_modern_bert, own_rules=modern_bert_rules, has_windows=True
    ),
    "gemma4": GgufArchitecture(
        read=gguf_gemma4.read,
        rules=gguf_gemma4.rules,
        expert_rules=gguf_gemma4.expert_rules,
        names=gguf_gemma4.NAMES,
        unused=gguf_gemma4.unused_tensors,
    ),
    "granite": GgufArchitecture(change=_granite, has_attention_scale=True, in_pairs=True),
    "olmo2": GgufArchitecture(change=_olmo2, rules=olmo.rules, has_windows=True),
    "smollm3": GgufArchitecture(change=lambda _, config: smollm3.in_gguf(config), in_pairs=True),
    "phi3": GgufArchitecture(
        change=_phi3,
        rules=_phi3_rules,
        names={"q": "attn_qkv", "k": "attn_qkv", "v": "attn_qkv", "gate": "ffn_up"},
        has_windows=True,
        has_rotary_dim=True,
    ),
    "gpt-oss": GgufArchitecture(
        change=_gpt_oss,
        rules=gpt_oss.attention_rules,
        experts=GgufExperts(
            always=True,
            wide_as_mlp=True,
            softmax_of_chosen=True,
            swiglu_limit=gpt_oss.SWIGLU_LIMIT,
            swiglu_alpha=gpt_oss.SWIGLU_ALPHA,
        ),
        expert_rules=partial(expert_rules, has_biases=True),
        config_name="gpt_oss",
        names={"mlp_norm": "post_attention_norm", "sinks": "attn_sinks"},
        has_windows=True,
        truncates_yarn=False,
    ),
    "mistral3": GgufArchitecture(change=_mistral3, has_yarn_log_multiplier=True, in_pairs=True),
}
