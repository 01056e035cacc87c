"""The table of block layouts, against the `gguf` package's."""

from __future__ import annotations

import pytest
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

from pybatcher.loading.checkpoints.blocks import BLOCKS, ENGINE_BLOCKS, MXFP4_PARTS, block_name

OF_GGUF = sorted(BLOCKS.keys() - {MXFP4_PARTS, "int4_zp"})


@pytest.mark.parametrize("dtype", OF_GGUF)
def test_a_block_has_the_elements_and_bytes_that_gguf_gives_it(dtype: str) -> None:
    block = BLOCKS[dtype]
    kind = GGMLQuantizationType[block_name(dtype)]
    assert (block.n_elements, block.n_bytes) == GGML_QUANT_SIZES[kind]
    assert block.gguf_type == kind


def test_mxfp4_in_parts_lacks_the_byte_of_the_scale() -> None:
    whole, parts = BLOCKS["mxfp4"], BLOCKS[MXFP4_PARTS]
    assert (parts.n_elements, parts.n_bytes) == (whole.n_elements, whole.n_bytes - 1)


@pytest.mark.parametrize("dtype", OF_GGUF)
def test_names_are_those_of_gguf_in_lower_case(dtype: str) -> None:
    own = {"int8": "q8_0", "int4": "q4_0"}
    assert block_name(dtype).lower() == own.get(dtype, dtype)


def test_formats_of_the_engine_are_native() -> None:
    assert {dtype for dtype, block in BLOCKS.items() if block.native} == {*ENGINE_BLOCKS}
    assert {"int8", "int4", "int4_zp", "q4_k", "mxfp4"} <= {*ENGINE_BLOCKS}
    held = {dtype for dtype in ENGINE_BLOCKS if BLOCKS[dtype].in_int8}
    assert held == {"int8", "int4", "q5_0", "iq4_nl"}
    assert [dtype for dtype in ENGINE_BLOCKS if BLOCKS[dtype].in_bf16] == ["mxfp4"]
