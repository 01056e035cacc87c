"""The table of block layouts, against the `gguf` package's."""

from __future__ import annotations

import pytest
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

from pybatcher.loading.checkpoints.blocks import BLOCKS, MXFP4_PARTS, Block, block_name


@pytest.mark.parametrize("dtype", sorted(BLOCKS.keys() - {MXFP4_PARTS, "int4_zp"}))  # none of GGUF
def test_a_block_has_the_elements_and_bytes_that_gguf_gives_it(dtype: str) -> None:
    sizes = GGML_QUANT_SIZES[GGMLQuantizationType[block_name(dtype)]]
    assert BLOCKS[dtype] == Block(*sizes)


def test_mxfp4_in_parts_lacks_the_byte_of_the_scale() -> None:
    whole = BLOCKS["mxfp4"]
    assert BLOCKS[MXFP4_PARTS] == Block(whole.n_elements, whole.n_bytes - 1)


def test_kinds_with_kernels_have_a_name_of_our_own() -> None:
    assert {dtype: block_name(dtype) for dtype in BLOCKS if block_name(dtype) != dtype} == {
        "int8": "Q8_0",
        "int4": "Q4_0",
        "q5_0": "Q5_0",
        "iq4_nl": "IQ4_NL",
        "q4_k": "Q4_K",
        "q5_k": "Q5_K",
        "q6_k": "Q6_K",
        "mxfp4": "MXFP4",
        MXFP4_PARTS: "MXFP4",
    }
