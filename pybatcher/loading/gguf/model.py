"""`open_gguf`: open a model in one GGUF file: weights, tokenizer and chat template.

Reads the keys that llama.cpp's converter writes and its loader reads:
https://github.com/ggml-org/ggml/blob/master/docs/gguf.md. The default of an absent key is
llama.cpp's.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from ...errors import ModelFormatError
from ...params.embedding_defaults import EmbeddingDefaults
from ...params.embedding_head import DenseLayer, EmbeddingHead
from ..checkpoints.blocks import BLOCKS
from ..checkpoints.blueprint import EMBEDDING, Blueprint
from ..checkpoints.fields import Fields, shown
from ..checkpoints.limits import MAX_VOCABULARY
from ..checkpoints.loaded_model import LoadedModel
from ..checkpoints.model_files import ModelFiles, reading
from ..checkpoints.tensors import PLAIN, Tensor, as_f32
from ..families import read_gguf_blueprint
from ..parts.gguf_contents import GgufContents
from ..parts.gguf_names import gguf_name
from ..parts.gguf_rope import LongRopeDivisors
from ..tokenizers.gguf_tokenizer import read_tokenizer
from .file import map_gguf, part_files
from .mmproj import find_mmproj, is_tower, open_mmproj

__all__ = ["open_gguf"]

_ROPE_DIVISORS = "rope_freqs.weight"
_LEAST_DIVISOR = np.float32(1e-3)  # keeps the divided frequencies finite
_LONGROPE_DIVISORS = ("rope_factors_short.weight", "rope_factors_long.weight")
_POOLINGS: dict[Any, Literal["mean", "cls", "last"]] = {1: "mean", 2: "cls", 3: "last"}
_DENSE_LAYERS = ("dense_2.weight", "dense_3.weight")


def open_gguf(
    path: Path,
    files: ModelFiles | None = None,
    *,
    reads: bool = True,
    vision: bool = True,
    mmproj: Path | None = None,
) -> LoadedModel:
    """Open a GGUF file of an architecture that a family reads.

    path: the file; of a model in several files, the first part. files: what it is read through.
    reads: False: the values of weights are not used, as for `open_model`.
    vision: False: the vision tower of a model that takes images is not loaded.
    mmproj: the file with the vision tower; None: one beside the model, if there is one.

    Maps the weights without reading them, except for query and key weights whose rows it copies
    in another order. Raises ModelFormatError, which names the file, the key or tensor, its value
    and the expected one.
    """
    if files is None:
        files = ModelFiles(path.parent)
        with reading(files):
            return open_gguf(path, files, reads=reads, vision=vision, mmproj=mmproj)
    file = map_gguf(path)
    tensors = file.tensors
    _refuse_parts_of_models(file.metadata, path)
    contents = GgufContents(
        metadata=file.metadata,
        rope_divisors=_rope_divisors(tensors.get(_ROPE_DIVISORS)),
        longrope=_longrope_divisors(tensors, path),
        vocab_size=_vocab_size(tensors, path),
        tensors=tensors,
    )
    blueprint = read_gguf_blueprint(contents)
    config = blueprint.config
    tokenizer = read_tokenizer(file.metadata, config.vocab_size, path.parent)
    weights = blueprint.fill(tensors, str(path), reads=reads)
    _refuse_unknown_tensors(tensors, blueprint, file.metadata)
    dtype = _prevailing_dtype(weights)
    embedding = _embedding_defaults(file.metadata, blueprint, tensors)
    processor = None
    tower = mmproj or find_mmproj(path, contents.architecture) if vision else None
    if tower is not None:
        blueprint, of_tower, processor = open_mmproj(tower, contents, blueprint, reads=reads)
        weights |= of_tower
    return LoadedModel(
        config=blueprint.config,
        tensors=weights,
        tokenizer=tokenizer,
        dtype=dtype,
        name=path.stem if len(part_files(path)) == 1 else path.stem[: -len("-00001-of-00001")],
        path=path,
        fingerprint=files.fingerprint(),
        weights_fingerprint=files.fingerprint(weights_only=True),
        files=files,
        embedding=embedding,
        generates=blueprint.generates,
        vision=blueprint.vision,
        image_processor=processor,
    )


def _refuse_parts_of_models(metadata: Fields, path: Path) -> None:
    """Raise ModelFormatError for a LoRA adapter, and for the part of a model that reads images."""
    if metadata.get("general.type") == "adapter":
        raise ModelFormatError(
            f"{path}: is a LoRA adapter, which is not read; merge it into its base model "
            "(llama.cpp's llama-export-lora) and give the file that this writes"
        )
    if is_tower(metadata):
        raise ModelFormatError(
            f"{path}: is the vision tower of a model; give the .gguf file beside it that has the "
            "language model, and this file as `mmproj`, if it is not found there"
        )


def _embedding_defaults(
    metadata: Fields, blueprint: Blueprint, tensors: Mapping[str, Tensor]
) -> EmbeddingDefaults:
    """Return the defaults for embedding texts; llama.cpp, too, normalises pooled embeddings."""
    name = f"{metadata.text('general.architecture')}.pooling_type"
    metadata.refuse_unless(name, 0, *_POOLINGS)
    pooling = _POOLINGS.get(metadata.get(name))
    config = blueprint.config
    own = EmbeddingDefaults.of_model(config.causal, blueprint.padding_token)
    if pooling is not None:
        own = replace(own, pooling=pooling, normalised=True)
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


def _refuse_unknown_tensors(
    tensors: Mapping[str, Tensor], blueprint: Blueprint, metadata: Fields
) -> None:
    """Raise ModelFormatError for a tensor without a rule: the engine would ignore that part."""
    known = {rule.among(tensors).source for rule in blueprint.rules}
    known |= {rule.plus_row.source for rule in blueprint.rules if rule.plus_row is not None}
    known |= {_ROPE_DIVISORS, *_LONGROPE_DIVISORS, *blueprint.unused}
    if not blueprint.config.causal:
        known |= {*_DENSE_LAYERS}
    for name, tensor in tensors.items():
        if name not in known:
            architecture = metadata.get("general.architecture")
            raise ModelFormatError(
                f"{tensor.source} has no place in the {architecture} architecture; "
                "expected only tensors that the metadata call for"
            )


def _prevailing_dtype(weights: Mapping[str, Tensor]) -> str:
    """Return the dtype of most matrix elements; formats without kernels count as int4."""
    counts: Counter[str] = Counter()
    for tensor in weights.values():
        if tensor.array.ndim == 2:
            block = BLOCKS.get(tensor.dtype)
            has_kernels = block is None or block.native
            counts[tensor.dtype if has_kernels else "int4"] += math.prod(tensor.shape)
    return counts.most_common(1)[0][0]
