"""Block formats: quantised rows whose neighbouring elements share scales.

A row of a quantised weight is an array of bytes. The native formats, which the engine computes
with, come from `csrc/formats/list.h`. `conversion.py` dequantises the other formats. "mxfp4_parts"
is MXFP4 as safetensors files store it, with the scales in a separate tensor.

ggml defines the layouts: https://github.com/ggml-org/ggml/blob/master/src/ggml-common.h
"""

from __future__ import annotations

from dataclasses import dataclass

from ... import _core

__all__ = ["BLOCKS", "ENGINE_BLOCKS", "MXFP4_PARTS", "Block", "block_name"]

MXFP4_PARTS = "mxfp4_parts"


@dataclass(frozen=True, slots=True)
class Block:
    """A block format: `n_elements` neighbouring elements of a row take `n_bytes` bytes.

    gguf_name, gguf_type: name and number of the type in GGUF files; "" and None if GGUF does not
        have the format.
    native: True if the engine has kernels for the format.
    in_int8, in_bf16: True if an int8 or a bf16 matrix represents all its numbers exactly.
    """

    n_elements: int
    n_bytes: int
    gguf_name: str = ""
    gguf_type: int | None = None
    native: bool = False
    in_int8: bool = False
    in_bf16: bool = False


def _native() -> dict[str, Block]:
    """Return the native formats that a checkpoint may have, in the engine's order.

    "fp8" is not one of them: no file has the engine's FP8 blocks, which are made at load.
    """
    return {
        name: Block(
            n_elements=facts["n_elements"],
            n_bytes=facts["n_bytes"],
            gguf_name=facts["gguf_name"],
            gguf_type=facts["gguf_type"],
            native=True,
            in_int8=facts["in_int8"],
            in_bf16=facts["in_bf16"],
        )
        for name, facts in _core.weight_formats().items()
        if name != "fp8"
    }


_GGUF_ONLY = {
    "IQ2_XXS": (16, 256, 66),
    "IQ2_XS": (17, 256, 74),
    "IQ3_XXS": (18, 256, 98),
    "IQ1_S": (19, 256, 50),
    "IQ3_S": (21, 256, 110),
    "IQ2_S": (22, 256, 82),
    "IQ1_M": (29, 256, 56),
    "TQ1_0": (34, 256, 54),
    "TQ2_0": (35, 256, 66),
}
"""GGUF's formats that may not be native: (type, elements, bytes) by GGUF's name."""

_NATIVE = _native()

BLOCKS: dict[str, Block] = {
    **{
        name.lower(): Block(n_elements, n_bytes, name, number)
        for name, (number, n_elements, n_bytes) in _GGUF_ONLY.items()
    },
    **_NATIVE,
    MXFP4_PARTS: Block(
        _NATIVE["mxfp4"].n_elements,
        _NATIVE["mxfp4"].n_bytes - 1,
        _NATIVE["mxfp4"].gguf_name,
        in_bf16=True,
    ),
}
ENGINE_BLOCKS = tuple(_NATIVE)


def block_name(dtype: str) -> str:
    """Return GGUF's name of the block format `dtype`, or `dtype` if GGUF has no such format."""
    block = BLOCKS.get(dtype)
    return block.gguf_name if block is not None and block.gguf_name else dtype
