"""GGUF files of models that are like a Llama: configuration, names of tensors, order of rows.

The keys are the ones that llama.cpp's converter writes and its loader reads. An absent key has the
default of llama.cpp's loader.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Literal, TypedDict

import numpy as np

from ..checkpoints.blueprint import HEAD, Blueprint
from ..checkpoints.fields import Fields
from ..checkpoints.limits import MAX_EXPERTS, MAX_HEADS, MAX_LAYERS, MAX_POSITIONS, MAX_WIDTH
from ..checkpoints.llama_config import LlamaSizes, SizeNames, llama_config, read_sizes
from ..checkpoints.model_config import LayerShape, ModelConfig
from ..checkpoints.rope import read_rope
from ..checkpoints.tensors import TensorRule
from .experts import is_sparse
from .gguf_contents import GgufContents
from .gguf_experts import SHARED_EXPERT_NAMES, GgufExperts, read_moe
from .gguf_fused import from_fused
from .gguf_keys import ArchitectureKeys
from .gguf_names import gguf_name
from .gguf_rope import read_gguf_rope

__all__ = [
    "ROTARY_DIM",
    "SCALE",
    "WINDOW",
    "YARN_LOG_MULTIPLIER",
    "biases",
    "from_pairs",
    "gguf_blueprint",
    "read_gguf_config",
    "read_gguf_sizes",
    "renamed",
    "renamed_beside_experts",
    "sliding_layers",
    "with_windows",
]

WINDOW = "attention.sliding_window"
SCALE = "attention.scale"
ROTARY_DIM = "rope.dimension_count"
YARN_LOG_MULTIPLIER = "rope.scaling.yarn_log_multiplier"
"""The keys WINDOW, SCALE, ROTARY_DIM and this one are read for some architectures only."""

_HEADS, _KV_HEADS = "attention.head_count", "attention.head_count_kv"


def read_gguf_sizes(
    contents: GgufContents,
    *,
    reads: Collection[str] = (),
    width: str = "feed_forward_length",
    metadata: Fields | None = None,
    varies: bool = False,
) -> LlamaSizes:
    """Return the sizes of the model.

    reads: the keys among WINDOW and SCALE that the caller reads; a file with another is refused.
    width: the key of the MLP's width.
    metadata: replaces the file's metadata, for files with a key that differs between layers.
    varies: True if KV heads and the width may differ between layers; the result has the largest.
    """
    prefix = contents.keys.prefix
    if WINDOW not in reads:
        contents.keys.refuse_unless(WINDOW, 0)
    if SCALE not in reads:
        contents.keys.refuse_unless(SCALE)
    names = SizeNames(
        hidden_size=f"{prefix}embedding_length",
        n_layers=f"{prefix}block_count",
        n_heads=prefix + _HEADS,
        n_kv_heads=prefix + _KV_HEADS,
        head_dim=f"{prefix}attention.key_length",
        intermediate_size=f"{prefix}{width}",
        max_position_embeddings=f"{prefix}context_length",
    )
    keys = ArchitectureKeys(metadata or contents.metadata, contents.architecture)
    values = _sizes_by_layer(keys, width)
    for name, of_layers in values.items():
        if len({*of_layers}) > 1 and not (varies and name in (_KV_HEADS, width)):
            raise keys.error(name, "one and the same number for all layers")
    uniform = {prefix + name: max(of_layers) for name, of_layers in values.items()}
    sizes = read_sizes(keys.fields.with_values(uniform), names)
    keys.refuse_unless("attention.value_length", sizes.head_dim)
    return sizes


def _sizes_by_layer(keys: ArchitectureKeys, width: str) -> dict[str, list[int]]:
    """Return the values of the keys that are arrays, with a number for each layer."""
    limits = {_HEADS: MAX_HEADS, _KV_HEADS: MAX_HEADS, width: MAX_WIDTH}
    arrays = [name for name in limits if isinstance(keys.get(name), np.ndarray)]
    n_layers = keys.integer("block_count", 1, MAX_LAYERS) if arrays else 0
    return {name: keys.by_layer(name, n_layers, limits[name]) for name in arrays}


def _layer_shapes(keys: ArchitectureKeys, sizes: LlamaSizes, width: str) -> tuple[LayerShape, ...]:
    """Return the shape of each layer; (): all layers have the same shape."""
    values = _sizes_by_layer(keys, width)
    if all(len({*values.get(name, ())}) < 2 for name in (_KV_HEADS, width)):
        return ()
    kv_heads = values.get(_KV_HEADS, [sizes.n_kv_heads] * sizes.n_layers)
    if any(sizes.n_heads % n for n in kv_heads):
        raise keys.error(_KV_HEADS, f"divisors of {keys.prefix}{_HEADS}, {sizes.n_heads}")
    inner = values.get(width, [sizes.intermediate_size] * sizes.n_layers)
    return tuple(
        LayerShape(n_kv_heads=heads, head_dim=sizes.head_dim, intermediate_size=n)
        for heads, n in zip(kv_heads, inner, strict=True)
    )


def read_gguf_config(
    contents: GgufContents,
    *,
    architecture: str = "",
    reads: Collection[str] = (),
    experts: GgufExperts | None = None,
    width: str = "feed_forward_length",
    metadata: Fields | None = None,
    causal: bool = True,
    norm: Literal["rms", "layer"] = "rms",
    truncates_yarn: bool = True,
) -> ModelConfig:
    """Return the configuration of a model that is like a Llama.

    architecture: the architecture's name in the configuration; "": the file's name.
    reads: keys among WINDOW, SCALE, ROTARY_DIM and YARN_LOG_MULTIPLIER that the model may have.
    experts: the architecture's experts; None: a file with experts is refused.
    width, metadata: as in `read_gguf_sizes`.
    causal: the only valid value of the key `attention.causal`, which may be absent.
    norm: "rms" | "layer"; each has its own key for epsilon.
    truncates_yarn: as in `read_gguf_rope`.

    Raises ModelFormatError for an unsupported option, or an impossible size.
    """
    keys = contents.keys
    varies = experts is None or keys.integer("expert_count", 0, MAX_EXPERTS, 0) == 0
    sizes = read_gguf_sizes(contents, reads=reads, width=width, metadata=metadata, varies=varies)
    keys.refuse_unless("attention.causal", causal)
    if ROTARY_DIM not in reads:
        keys.refuse_unless(ROTARY_DIM, sizes.head_dim)
    rope = read_gguf_rope(
        keys,
        sizes,
        contents.rope_divisors,
        contents.longrope,
        has_yarn_log_multiplier=YARN_LOG_MULTIPLIER in reads,
        truncates_yarn=truncates_yarn,
    )
    epsilon = "layer_norm_rms_epsilon" if norm == "rms" else "layer_norm_epsilon"
    config = llama_config(
        sizes,
        architecture=architecture or contents.architecture,
        vocab_size=contents.vocab_size,
        norm_eps=keys.number(f"attention.{epsilon}", 0.0, 1.0),
        rope=rope,
        sliding_windows=(0,) * sizes.n_layers,
    )
    of_layers = ArchitectureKeys(metadata or contents.metadata, contents.architecture)
    shapes = _layer_shapes(of_layers, sizes, width) if varies else ()
    return replace(config, norm=norm, moe=read_moe(keys, experts, sizes), layer_shapes=shapes)


class Biases(TypedDict):
    """The arguments of `llama_like.rules` that tell which matrices have biases."""

    qkv_bias: bool
    o_bias: bool
    mlp_bias: bool


def biases(contents: GgufContents, *, qkv_bias: bool = False) -> Biases:
    """Return the biases that the first layer has. qkv_bias: True if q, k and v always have them."""
    tensors = contents.tensors
    has_some = {"blk.0.attn_q.bias", "blk.0.attn_qkv.bias"} & tensors.keys()
    return Biases(
        qkv_bias=qkv_bias or bool(has_some),
        o_bias="blk.0.attn_output.bias" in tensors,
        mlp_bias=bool({"blk.0.ffn_gate.bias", "blk.0.ffn_up.bias"} & tensors.keys()),
    )


def renamed(
    rules: Iterable[TensorRule], names: Mapping[str, str] | None = None
) -> Iterator[TensorRule]:
    """Yield the rules with GGUF's names as sources.

    names: GGUF's names of parts of a layer that differ from a Llama's.
    """
    for rule in rules:
        yield replace(rule, source=gguf_name(rule.name, names))


def renamed_beside_experts(
    config: ModelConfig, rules: Iterable[TensorRule], names: Mapping[str, str] | None = None
) -> Iterator[TensorRule]:
    """Yield the rules as `renamed` does; the MLP of a layer with experts is its shared expert."""
    names = names or {}
    with_shared = {**names, **SHARED_EXPERT_NAMES}
    for rule in rules:
        yield from renamed([rule], with_shared if is_sparse(config, rule) else names)


def from_pairs(rules: Iterable[TensorRule], head_dim: int) -> Iterator[TensorRule]:
    """Yield the rules; the rules of q and k undo llama.cpp's permutation of rows.

    llama.cpp rotates dimensions 2i and 2i + 1 together in some architectures, and its converter
    puts row i + head_dim / 2 after row i. The engine rotates dimensions i and i + head_dim / 2
    together.
    """
    order = (*range(0, head_dim, 2), *range(1, head_dim, 2))
    for rule in rules:
        is_rotated = re.fullmatch(r"layers\.\d+\.[qk]\.(weight|bias)", rule.name)
        yield replace(rule, head_order=order) if is_rotated else rule


def gguf_blueprint(
    contents: GgufContents,
    config: ModelConfig,
    rules: Iterable[TensorRule],
    unused: Collection[str] = (),
) -> Blueprint:
    """Return the blueprint of a file.

    rules: rules with GGUF's names as sources. unused: names of tensors that a file may have and
    that no layer needs.
    """
    tied = gguf_name(HEAD) not in contents.tensors
    found = tuple(from_fused(tuple(rules), contents.tensors))
    return Blueprint(config, found, tied, generates=config.causal, unused=frozenset(unused))


def sliding_layers(
    keys: ArchitectureKeys, n_layers: int, period: int, *, full_first: bool = False
) -> Sequence[bool]:
    """Return, for each layer, True if it is a sliding-window layer: by the file, or by period.

    period: every `period`-th layer has full attention if the file has no pattern.
    full_first: True if the first layer of a period has full attention, False if the last has.
    """
    name = "attention.sliding_window_pattern"
    pattern = keys.get(name)
    if pattern is None or isinstance(pattern, int):
        period = keys.integer(name, 1, MAX_LAYERS, period)
        return [(layer + (not full_first)) % period != 0 for layer in range(n_layers)]
    return keys.flags(name, n_layers, ", or the period of the pattern")


def with_windows(
    keys: ArchitectureKeys, config: ModelConfig, period: int, theta: float
) -> ModelConfig:
    """Return the configuration with the file's sliding windows.

    theta: the rotary base of the sliding-window layers.
    """
    window = keys.integer(WINDOW, 0, MAX_POSITIONS, 0)
    if window == 0:
        return config
    sliding = sliding_layers(keys, config.n_layers, period)
    plain = Fields({"rope_theta": theta}, keys.fields.source)
    rope = read_rope(plain, config.head_dim, config.max_position_embeddings)
    return replace(
        config,
        ropes=(*config.ropes, rope),
        layer_ropes=tuple(map(int, sliding)),
        sliding_windows=tuple(window if slides else 0 for slides in sliding),
    )
