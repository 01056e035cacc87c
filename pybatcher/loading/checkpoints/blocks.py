"""Block quantisation formats: groups of neighbouring elements that share scales.

A row of a quantised weight is a row of bytes. The engine computes with those in `ENGINE_BLOCKS`:
"int8" (GGUF's Q8_0), "int4" (Q4_0), "int4_zp" (which GGUF has not: int4 with a zero point for
each group), "q5_0", "iq4_nl", "q4_k", "q5_k", "q6_k" and "mxfp4". The others keep their GGUF
names, and `conversion.py` converts them, because the engine has no kernels for them; "mxfp4_parts"
is MXFP4 as safetensors have it, the scales in a tensor of their own.

Layouts: https://github.com/ggml-org/ggml/blob/master/src/ggml-common.h
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["BLOCKS", "ENGINE_BLOCKS", "MXFP4_PARTS", "Block", "block_name"]

MXFP4_PARTS = "mxfp4_parts"


@dataclass(frozen=True, slots=True)
class Block:
    """Size of one block: `n_elements` neighbouring elements of a row take `n_bytes` bytes."""

    n_elements: int
    n_bytes: int


BLOCKS = {
    "int8": Block(32, 34),
    "int4": Block(32, 18),
    "int4_zp": Block(32, 20),
    "Q4_1": Block(32, 20),
    "q5_0": Block(32, 22),
    "Q5_1": Block(32, 24),
    "Q2_K": Block(256, 84),
    "Q3_K": Block(256, 110),
    "q4_k": Block(256, 144),
    "q5_k": Block(256, 176),
    "q6_k": Block(256, 210),
    "IQ1_S": Block(256, 50),
    "IQ1_M": Block(256, 56),
    "IQ2_XXS": Block(256, 66),
    "IQ2_XS": Block(256, 74),
    "IQ2_S": Block(256, 82),
    "IQ3_XXS": Block(256, 98),
    "IQ3_S": Block(256, 110),
    "iq4_nl": Block(32, 18),
    "IQ4_XS": Block(256, 136),
    "TQ1_0": Block(256, 54),
    "TQ2_0": Block(256, 66),
    "mxfp4": Block(32, 17),
    MXFP4_PARTS: Block(32, 16),
}

_GGUF_NAMES = {
    "int8": "Q8_0",
    "int4": "Q4_0",
    "q5_0": "Q5_0",
    "iq4_nl": "IQ4_NL",
    "q4_k": "Q4_K",
    "q5_k": "Q5_K",
    "q6_k": "Q6_K",
    "mxfp4": "MXFP4",
}
ENGINE_BLOCKS = (*_GGUF_NAMES, "int4_zp")


def block_name(dtype: str) -> str:
    """Return GGUF's name of the block format `dtype`."""
    return _GGUF_NAMES.get("mxfp4" if dtype == MXFP4_PARTS else dtype, dtype)
