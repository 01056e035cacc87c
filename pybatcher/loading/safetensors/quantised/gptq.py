"""GPTQ, as AutoGPTQ and GPTQModel save it: numbers are packed along the inputs.

A module has qweight, int32 (inputs * bits / 32, outputs): a word holds neighbouring inputs, the
first in the lowest bits; scales (groups, outputs); qzeros, int32 (groups, outputs * bits / 32),
packed along the outputs; and g_idx, int32 (inputs), the group of each input. The format "gptq"
(v1) stores zero points minus 1; "gptq_v2" stores them unchanged.
https://github.com/AutoGPTQ/AutoGPTQ/blob/main/auto_gptq/nn_modules/qlinear/qlinear_cuda_old.py
https://github.com/ModelCloud/GPTQModel/blob/main/gptqmodel/utils/model.py
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ...checkpoints.fields import Fields
from .grouped_numbers import GroupedNumbers, grouped_numbers
from .parts import Parts, rows_of_packed, to_f32
from .scheme import Scheme, check_names, read_group_size

__all__ = ["read"]

_V1, _V2 = "gptq", "gptq_v2"
_OF_THE_PROGRAM = (
    *("act_group_aware", "adapter", "backend", "batch_size", "block_name_to_quantize"),
    *("cache_block_outputs", "damp_auto_increment", "damp_percent", "dataset", "desc_act"),
    *("disable_exllama", "exllama_config", "failsafe", "gc_mode", "gptaq", "hessian", "lm_head"),
    *("max_input_length", "meta", "mock_quantization", "model_file_base_name"),
    *("model_name_or_path", "model_seqlen", "modules_in_block_to_quantize", "mse"),
    *("module_name_preceding_first_block", "offload_to_disk", "offload_to_disk_path"),
    *("pack_impl", "pad_token_id", "process", "rotation", "static_groups", "sym", "tokenizer"),
    *("true_sequential", "use_cuda_fp16", "use_exllama", "v2", "v2_alpha", "version"),
)
"""Fields of the quantisation program that are not needed to read the tensors."""


def read(fields: Fields) -> Scheme:
    """Return the scheme of a quantization_config of GPTQ. Raises ModelFormatError."""
    read_here = ("bits", "group_size", "checkpoint_format", "format", "pack_dtype", "dynamic")
    check_names(fields, (*read_here, "is_marlin_format", *_OF_THE_PROGRAM))
    fields.refuse_unless("pack_dtype", "int32")
    fields.refuse_unless("is_marlin_format", False)
    fields.refuse_unless("rotation")
    fields.refuse_unless("adapter")
    fields.refuse_unless("dynamic", False, {})
    bits = fields.integer("bits", 1, 32)
    if bits not in (4, 8):
        raise fields.error("bits", "4 or 8")
    size = read_group_size(fields, "group_size")
    for name in ("checkpoint_format", "format"):
        fields.refuse_unless(name, _V1, _V2)
    name = "checkpoint_format" if "checkpoint_format" in fields else "format"
    offset = 0 if fields.text(name, _V1) == _V2 else 1

    def matrix(parts: Parts) -> GroupedNumbers:
        return _matrix(parts, bits, size, offset)

    return Scheme(("qweight",), matrix)


def _matrix(parts: Parts, bits: int, size: int, offset: int) -> GroupedNumbers:
    per_word = 32 // bits
    packed: NDArray[np.int32] = parts.array("qweight", "I32", None, None)
    n_in, n_out = packed.shape[0] * per_word, packed.shape[1]
    size = n_in if size < 0 else size
    n_groups = -(-n_in // size) if size else 0
    scales = parts.scales("scales", n_groups, n_out)
    packed_zeros = parts.array("qzeros", "I32", n_groups, -(-n_out // per_word))
    group_of = parts.group_of("g_idx", n_in, n_groups, size)
    places = np.arange(per_word)
    mask = np.uint32((1 << bits) - 1)

    def numbers(rows: NDArray[np.int64]) -> NDArray[np.uint8]:
        words = packed[:, rows].view(np.uint32)
        out = np.empty((len(rows), packed.shape[0], per_word), np.uint8)
        for place in range(per_word):
            out[..., place] = (words >> np.uint32(bits * place) & mask).T
        return out.reshape(len(rows), -1)

    def zeros(rows: NDArray[np.int64]) -> NDArray[np.int16]:
        return rows_of_packed(packed_zeros, rows, bits, places).astype(np.int16) + np.int16(offset)

    return grouped_numbers(
        "GPTQ",
        bits,
        parts.n_bytes("qweight", "scales", "qzeros", "g_idx"),
        (n_out, n_in),
        group_of,
        numbers,
        lambda rows: to_f32(scales.array[:, rows].T, scales.dtype),
        zeros,
        scales.dtype == "f16",
    )
