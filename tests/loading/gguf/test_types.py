"""The oracle is the table of the `gguf` package."""

from __future__ import annotations

import gguf

from pybatcher.loading.checkpoints.blocks import BLOCKS, MXFP4_PARTS, block_name
from pybatcher.loading.gguf.types import TYPES


def test_names_and_sizes() -> None:
    for number, kind in TYPES.items():
        known = gguf.GGMLQuantizationType(number)
        assert kind.name == known.name
        assert (kind.n_elements, kind.n_bytes) == gguf.GGML_QUANT_SIZES[known]


def test_every_kind_of_block_has_a_number() -> None:
    assert {kind.dtype for kind in TYPES.values()} >= BLOCKS.keys() - {MXFP4_PARTS, "int4_zp"}
    assert block_name("int8") == "Q8_0"
    assert block_name("int4") == "Q4_0"
