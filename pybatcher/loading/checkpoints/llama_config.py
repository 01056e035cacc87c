"""`read_sizes`, `llama_config`: build the Llama family's `ModelConfig` from either file format."""

from __future__ import annotations

from typing import NamedTuple

from .fields import Fields
from .limits import MAX_HEAD_DIM, MAX_HEADS, MAX_LAYERS, MAX_POSITIONS, MAX_WIDTH
from .model_config import ModelConfig
from .rope import Rope

__all__ = ["LlamaSizes", "SizeNames", "llama_config", "read_sizes"]


class SizeNames(NamedTuple):
    """The names of the size fields in a file."""

    hidden_size: str
    n_layers: str
    n_heads: str
    n_kv_heads: str
    head_dim: str
    intermediate_size: str
    max_position_embeddings: str


class LlamaSizes(NamedTuple):
    """The sizes of a `ModelConfig`, by its field names."""

    hidden_size: int
    n_layers: int
    n_heads: int
    n_kv_heads: int
    head_dim: int
    intermediate_size: int
    max_position_embeddings: int


def read_sizes(fields: Fields, names: SizeNames, head_dim: int | None = None) -> LlamaSizes:
    """Read the sizes and check that they are consistent.

    head_dim: the default if the file has none; None: hidden_size / n_heads.

    Raises ModelFormatError for sizes that are inconsistent or out of range.
    """
    hidden_size = fields.integer(names.hidden_size, 1, MAX_WIDTH)
    n_layers = fields.integer(names.n_layers, 1, MAX_LAYERS)
    n_heads = fields.integer(names.n_heads, 1, MAX_HEADS)
    n_kv_heads = fields.integer(names.n_kv_heads, 1, MAX_HEADS, n_heads)
    if n_heads % n_kv_heads:
        raise fields.error(names.n_kv_heads, f"a divisor of {names.n_heads}, {n_heads}")
    if head_dim is None:
        if names.head_dim not in fields and hidden_size % n_heads:
            raise fields.error(names.n_heads, f"a divisor of {names.hidden_size}, {hidden_size}")
        head_dim = hidden_size // n_heads
    head_dim = fields.integer(names.head_dim, 2, MAX_HEAD_DIM, head_dim)
    if head_dim % 2 or not 2 <= head_dim <= MAX_HEAD_DIM:
        raise fields.error(
            names.head_dim, f"an even number up to {MAX_HEAD_DIM} (it is {head_dim})"
        )
    return LlamaSizes(
        hidden_size=hidden_size,
        n_layers=n_layers,
        n_heads=n_heads,
        n_kv_heads=n_kv_heads,
        head_dim=head_dim,
        intermediate_size=fields.integer(names.intermediate_size, 1, MAX_WIDTH),
        max_position_embeddings=fields.integer(names.max_position_embeddings, 1, MAX_POSITIONS),
    )


def llama_config(
    sizes: LlamaSizes,
    *,
    architecture: str,
    vocab_size: int,
    norm_eps: float,
    rope: Rope | None,
    sliding_windows: tuple[int, ...],
) -> ModelConfig:
    """Return a `ModelConfig` with the properties that all models of the family share.

    rope: the frequencies of every layer; None: the caller sets `ropes`.
    """
    return ModelConfig(
        **sizes._asdict(),
        architecture=architecture,
        vocab_size=vocab_size,
        norm="rms",
        norm_eps=norm_eps,
        activation="silu",
        gated_mlp=True,
        position="rope",
        ropes=() if rope is None else (rope,),
        layer_ropes=(0,) * sizes.n_layers,
        attention_scale=sizes.head_dim**-0.5,
        sliding_windows=sliding_windows,
    )
