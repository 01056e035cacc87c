"""`open_gguf`: open a model in one GGUF file: weights, tokenizer and chat template.

Reads the keys that llama.cpp's converter writes and its loader reads:
https://github.com/ggml-org/ggml/blob/master/docs/gguf.md. The default of an absent key is
llama.cpp's.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from ...errors import ModelFormatError
from ...params.embedding_defaults import EmbeddingDefaults
from ...params.embedding_head import DenseLayer, EmbeddingHead
from ..checkpoints.blocks import BLOCKS, ENGINE_BLOCKS
from ..checkpoints.blueprint import EMBEDDING, HEAD, Blueprint
from ..checkpoints.fields import Fields, shown
from ..checkpoints.fingerprint import fingerprint
from ..checkpoints.limits import MAX_VOCABULARY
from ..checkpoints.loaded_model import LoadedModel
from ..checkpoints.model_config import ModelConfig
from ..checkpoints.tensors import PLAIN, Tensor, as_f32
from ..convert.conversion import SAME_AS
from ..tokenizers.gguf_tokenizer import read_tokenizer
from .file import map_gguf
from .gguf_architectures import ARCHITECTURES, GgufArchitecture
from .gguf_config import read_config
from .gguf_fused import from_fused
from .gguf_names import gguf_name
from .gguf_rope import LongRopeDivisors

__all__ = ["open_gguf"]

# Block formats without kernels that are loaded as int8: more than 4 bits, finer scales than int4
# has, or a minimum, without which 4 bits lose as much again.
_LOADED_AS_INT8 = ("Q4_1", "Q5_1", "IQ4_XS")
_ROPE_DIVISORS = "rope_freqs.weight"
_LEAST_DIVISOR = np.float32(1e-3)  # of frequencies, so that none becomes infinite
_LONGROPE_DIVISORS = ("rope_factors_short.weight", "rope_factors_long.weight")
_POOLINGS: dict[Any, Literal["mean", "cls", "last"]] = {1: "mean", 2: "cls", 3: "last"}
_DENSE_LAYERS = ("dense_2.weight", "dense_3.weight")


def open_gguf(path: Path) -> LoadedModel:
    """Open a GGUF file of one of the `ARCHITECTURES`.

    Maps the weights without reading them, except for query and key weights whose rows it
    copies in another order. Raises ModelFormatError
    that names the file, the key or tensor, its value and the expected one.
    """
    identity = fingerprint([path])
    file = map_gguf(path)
    tensors = file.tensors
    divisors = _rope_divisors(tensors.get(_ROPE_DIVISORS))
    longrope = _longrope_divisors(tensors, path)
    config = read_config(file.metadata, _vocab_size(tensors, path), divisors, longrope)
    own = ARCHITECTURES[file.metadata.text("general.architecture")]
    blueprint = _blueprint(config, own, tensors)
    tokenizer = read_tokenizer(file.metadata, config.vocab_size, path.parent)
    weights = blueprint.fill(tensors, str(path))
    _refuse_unknown_tensors(tensors, blueprint, own.unused(config), file.metadata)
    if own.in_pairs:
        weights = {
            name: _unpermuted(name, tensor, config.head_dim) for name, tensor in weights.items()
        }
    return LoadedModel(
        config=config,
        tensors=weights,
        tokenizer=tokenizer,
        dtype=_prevailing_dtype(weights),
        name=path.stem,
        path=path,
        fingerprint=identity,
        embedding=_embedding_defaults(file.metadata, config, tensors),
        generates=config.causal,
    )


def _embedding_defaults(
    metadata: Fields, config: ModelConfig, tensors: Mapping[str, Tensor]
) -> EmbeddingDefaults:
    """Return how texts are embedded: normalised where they are pooled, as llama.cpp has it."""
    name = f"{metadata.text('general.architecture')}.pooling_type"
    metadata.refuse_unless(name, 0, *_POOLINGS)
    pooling = _POOLINGS.get(metadata.get(name))
    own = EmbeddingDefaults.of_model(config.causal)
    if pooling is not None:
        own = EmbeddingDefaults(pooling, normalised=True)
    layers: list[DenseLayer] = []
    for dense in filter(None, map(tensors.get, _DENSE_LAYERS)):
        n_in = len(layers[-1].weight) if layers else config.hidden_size
        if len(dense.shape) != 2 or dense.shape[1] != n_in or dense.dtype not in PLAIN:
            raise ModelFormatError(
                f"{dense.source}: found {dense.dtype} {list(dense.shape)}; expected F32, F16 or "
                f"BF16 [any, {n_in}]"
            )
        layers.append(DenseLayer(as_f32(dense)))
    return replace(own, head=EmbeddingHead(layers)) if layers else own


def _vocab_size(tensors: Mapping[str, Tensor], path: Path) -> int:
    name = gguf_name(EMBEDDING)
    embedding = tensors.get(name)
    if embedding is None:
        raise ModelFormatError(f"{path}: tensor {name} is missing")
    if embedding.shape[0] > MAX_VOCABULARY:
        raise ModelFormatError(
            f"{embedding.source}: found shape {list(embedding.shape)}; "
            f"expected at most {MAX_VOCABULARY} rows"
        )
    return embedding.shape[0]


def _rope_divisors(tensor: Tensor | None) -> NDArray[np.float64] | None:
    if tensor is None:
        return None
    values = tensor.array.ravel()
    if tensor.dtype != "f32" or not np.all((values >= _LEAST_DIVISOR) & (values < np.inf)):
        raise ModelFormatError(
            f"{tensor.source}: found {tensor.dtype} {shown(values)}; "
            f"expected F32 from {_LEAST_DIVISOR}"
        )
    return values.astype(np.float64)


def _longrope_divisors(tensors: Mapping[str, Tensor], path: Path) -> LongRopeDivisors | None:
    short, long = (_rope_divisors(tensors.get(name)) for name in _LONGROPE_DIVISORS)
    if short is None and long is None:
        return None
    if short is None or long is None:
        missing = _LONGROPE_DIVISORS[0 if short is None else 1]
        raise ModelFormatError(f"{path}: tensor {missing} is missing, and its counterpart is there")
    return LongRopeDivisors(short, long)


def _blueprint(
    config: ModelConfig, own: GgufArchitecture, tensors: Mapping[str, Tensor]
) -> Blueprint:
    """Return the architecture's rules with GGUF's names; the biases are those in `tensors`."""
    tied = gguf_name(HEAD) not in tensors
    if own.own_rules is not None:
        rules = from_fused(tuple(own.own_rules(config, tensors)), tensors)
        return Blueprint(config, tuple(rules), tied=config.causal and tied)
    has_bias = {"blk.0.attn_q.bias", "blk.0.attn_qkv.bias"} & tensors.keys()
    rules = own.rules(
        config,
        qkv_bias=config.architecture == "qwen2" or bool(has_bias),
        o_bias="blk.0.attn_output.bias" in tensors,
        mlp_bias="blk.0.ffn_gate.bias" in tensors,
    )
    renamed = tuple(replace(rule, source=gguf_name(rule.name, own.names)) for rule in rules)
    return Blueprint(config, (*from_fused(renamed, tensors), *own.expert_rules(config)), tied)


def _refuse_unknown_tensors(
    tensors: Mapping[str, Tensor],
    blueprint: Blueprint,
    unused: Collection[str],
    metadata: Fields,
) -> None:
    """Raise ModelFormatError for a tensor without a rule: the model would lack that part."""
    known = {rule.among(tensors).source for rule in blueprint.rules}
    known |= {rule.plus_row.source for rule in blueprint.rules if rule.plus_row is not None}
    known |= {_ROPE_DIVISORS, *_LONGROPE_DIVISORS, *unused}
    if not blueprint.config.causal:
        known |= {*_DENSE_LAYERS}
    for name, tensor in tensors.items():
        if name not in known:
            architecture = metadata.get("general.architecture")
            raise ModelFormatError(
                f"{tensor.source} has no place in the {architecture} architecture; "
                "expected only tensors that the metadata call for"
            )


def _unpermuted(name: str, tensor: Tensor, head_dim: int) -> Tensor:
    """Undo llama.cpp's row permutation of query and key weights; other tensors are unchanged.

    llama.cpp rotates dimensions 2i and 2i + 1 together in some architectures, and its
    converter puts row i + head_dim / 2 after row i. The engine rotates i and
    i + head_dim / 2. Works on plain rows and on rows of blocks.
    """
    if not re.fullmatch(r"layers\.\d+\.[qk]\.(weight|bias)", name):
        return tensor
    rows = tensor.array.reshape(-1, head_dim // 2, 2, *tensor.array.shape[1:])
    ordered: NDArray[Any] = rows.swapaxes(1, 2).reshape(tensor.array.shape)
    return Tensor(ordered, tensor.dtype, tensor.source)


def _prevailing_dtype(weights: Mapping[str, Tensor]) -> str:
    """Return the dtype of most matrix elements; formats without kernels count as int8 or int4."""
    counts: Counter[str] = Counter()
    for tensor in weights.values():
        if tensor.array.ndim == 2:
            dtype = tensor.dtype
            dtype = SAME_AS.get(dtype, dtype)
            if dtype in BLOCKS and dtype not in ENGINE_BLOCKS:
                dtype = "int8" if dtype in _LOADED_AS_INT8 else "int4"
            counts[dtype] += math.prod(tensor.shape)
    return counts.most_common(1)[0][0]
