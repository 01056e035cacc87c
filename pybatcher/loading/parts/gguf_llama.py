"""GGUF files of models that are like a Llama: configuration, names of tensors, order of rows.

Keys are those that llama.cpp's converter writes and its loader reads; the default of an absent
key is its loader's.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Literal, TypedDict

from ..checkpoints.blueprint import HEAD, Blueprint
from ..checkpoints.fields import Fields
from ..checkpoints.limits import MAX_LAYERS, MAX_POSITIONS
from ..checkpoints.llama_config import LlamaSizes, SizeNames, llama_config, read_sizes
from ..checkpoints.model_config import ModelConfig
from ..checkpoints.rope import read_rope
from ..checkpoints.tensors import TensorRule
from .gguf_contents import GgufContents
from .gguf_experts import GgufExperts, read_moe
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
    "sliding_layers",
    "with_windows",
]

WINDOW = "attention.sliding_window"
SCALE = "attention.scale"
ROTARY_DIM = "rope.dimension_count"
YARN_LOG_MULTIPLIER = "rope.scaling.yarn_log_multiplier"
"""Keys that only some architectures read."""


def read_gguf_sizes(
    contents: GgufContents,
    *,
    reads: Collection[str] = (),
    width: str = "feed_forward_length",
    metadata: Fields | None = None,
) -> LlamaSizes:
    """Return the sizes of the model.

    reads: of WINDOW and SCALE those that the caller reads; the others are refused.
    width: the key of the MLP's width.
    metadata: instead of the file's, where one key differs from layer to layer.
    """
    keys, prefix = contents.keys, contents.keys.prefix
    if WINDOW not in reads:
        keys.refuse_unless(WINDOW, 0)
    if SCALE not in reads:
        keys.refuse_unless(SCALE)
    names = SizeNames(
        hidden_size=f"{prefix}embedding_length",
        n_layers=f"{prefix}block_count",
        n_heads=f"{prefix}attention.head_count",
        n_kv_heads=f"{prefix}attention.head_count_kv",
        head_dim=f"{prefix}attention.key_length",
        intermediate_size=f"{prefix}{width}",
        max_position_embeddings=f"{prefix}context_length",
    )
    sizes = read_sizes(contents.metadata if metadata is None else metadata, names)
    keys.refuse_unless("attention.value_length", sizes.head_dim)
    return sizes


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

    architecture: of the configuration; "": that of the file.
    reads: keys among WINDOW, SCALE, ROTARY_DIM and YARN_LOG_MULTIPLIER that the model may have.
    experts: of the model; None: a file with experts is refused.
    width, metadata: as in `read_gguf_sizes`. causal: False: the file has to say that it is not.
    norm: "rms" | "layer", which have keys of their own for epsilon.
    truncates_yarn: as in `read_gguf_rope`.

    Raises ModelFormatError for an unsupported option, or an impossible size.
    """
    keys = contents.keys
    sizes = read_gguf_sizes(contents, reads=reads, width=width, metadata=metadata)
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
    return replace(config, norm=norm, moe=read_moe(keys, experts, sizes))


class Biases(TypedDict):
    """Which matrices have biases: arguments of `llama_like.rules`."""

    qkv_bias: bool
    o_bias: bool
    mlp_bias: bool


def biases(contents: GgufContents, *, qkv_bias: bool = False) -> Biases:
    """Return the biases that the first layer has. qkv_bias: q, k and v have some in any case."""
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

    names: GGUF's names of parts of a layer, where they are not those of a Llama.
    """
    for rule in rules:
        yield replace(rule, source=gguf_name(rule.name, names))


def from_pairs(rules: Iterable[TensorRule], head_dim: int) -> Iterator[TensorRule]:
    """Yield the rules; those of q and k undo llama.cpp's permutation of rows.

    llama.cpp rotates dimensions 2i and 2i + 1 together in some architectures, and its
    converter puts row i + head_dim / 2 after row i. The engine rotates i and
    i + head_dim / 2.
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

    rules: with GGUF's names as sources. unused: names of tensors that a file may have and that no
    layer needs.
    """
    tied = gguf_name(HEAD) not in contents.tensors
    found = tuple(from_fused(tuple(rules), contents.tensors))
    return Blueprint(config, found, tied, generates=config.causal, unused=frozenset(unused))


def sliding_layers(
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


def with_windows(
    keys: ArchitectureKeys, config: ModelConfig, period: int, theta: float
) -> ModelConfig:
    """Return the configuration with windows, if the file has one, and `theta` in their layers."""
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
