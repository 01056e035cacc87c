from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType as Kind
from gpt_oss_files import hf_parts
from safetensors.numpy import save_file

from pybatcher.errors import ModelFormatError
from pybatcher.loading.checkpoints.blocks import MXFP4_PARTS
from pybatcher.loading.checkpoints.tensors import Tensor
from pybatcher.loading.convert.mxfp4 import joined_blocks, with_mxfp4
from pybatcher.loading.safetensors.checkpoint import map_checkpoint

SHAPE = (3, 5, 4)  # experts, rows, groups


def random_parts(seed: int = 1) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    codes = rng.integers(0, 256, (*SHAPE, 16), dtype=np.uint8)
    return codes, rng.integers(0, 255, SHAPE, dtype=np.uint8)


def parts(blocks: np.ndarray, scales: np.ndarray | None) -> dict[str, Tensor]:
    tensors = {"a_blocks": Tensor(blocks, "U8", "file: tensor a_blocks")}
    if scales is not None:
        tensors["a_scales"] = Tensor(scales, "U8", "file: tensor a_scales")
    return tensors


def test_blocks_and_scales_become_one_tensor(tmp_path: Path) -> None:
    codes, scales = random_parts()
    plain = np.ones(4, np.float32)
    save_file({"a_blocks": codes, "a_scales": scales, "b": plain}, tmp_path / "model.safetensors")
    tensors = map_checkpoint([tmp_path / "model.safetensors"])
    assert tensors.keys() == {"a_blocks", "b"}
    assert (tensors["a_blocks"].dtype, tensors["a_blocks"].shape) == (MXFP4_PARTS, (3, 5, 128))
    assert tensors["a_blocks"].scales is not None
    np.testing.assert_array_equal(tensors["a_blocks"].scales, scales)


def test_joined_blocks_are_those_of_gguf() -> None:
    """Back from the parts that `gpt_oss_files` makes of the package's blocks."""
    values = np.random.default_rng(2).standard_normal((6, 96)).astype(np.float32)
    blocks = gguf.quants.quantize(values, Kind.MXFP4)
    codes, scales = hf_parts(blocks)
    tensor = Tensor(codes.reshape(6, -1), MXFP4_PARTS, "a", scales=scales)
    np.testing.assert_array_equal(joined_blocks(tensor), blocks)


def test_joined_blocks_have_the_numbers_of_transformers() -> None:
    """Bit for bit, under every scale but that which is no number."""
    from transformers.integrations.mxfp4 import convert_moe_packed_tensors

    codes, scales = random_parts()
    scales.reshape(-1)[:] = np.linspace(0, 252, scales.size).astype(np.uint8)
    joined = with_mxfp4(parts(codes, scales))["a_blocks"]
    expected = convert_moe_packed_tensors(
        torch.from_numpy(codes), torch.from_numpy(scales), dtype=torch.float32
    )
    assert joined.scales is not None
    for expert in range(SHAPE[0]):
        one = Tensor(joined.array[expert], MXFP4_PARTS, "a", scales=joined.scales[expert])
        values = gguf.quants.dequantize(joined_blocks(one), Kind.MXFP4)
        np.testing.assert_array_equal(values.T, expected[expert].numpy())


def test_what_does_not_fit_is_refused() -> None:
    codes, scales = random_parts()
    for blocks, others, said in (
        (codes, None, "a_blocks: tensor a_scales is missing"),
        (codes[..., :15], scales, r"found shape \[3, 5, 4, 15\]; expected groups of 16 bytes"),
        (codes[0, 0], scales, r"found shape \[4, 16\]; expected groups"),
        (codes[0, 0, 0, 0], scales, r"found shape \[\]; expected groups"),
        (codes, scales[:, 1:], r"a_scales: found U8 of shape \[3, 4, 4\]; .*shape \[3, 5, 4\]"),
    ):
        with pytest.raises(ModelFormatError, match=said):
            with_mxfp4(parts(blocks, others))
    wrong = parts(codes, scales)
    wrong["a_scales"] = Tensor(scales.astype(np.float32), "f32", "file: tensor a_scales")
    with pytest.raises(ModelFormatError, match="a_scales: found f32"):
        with_mxfp4(wrong)


def test_other_tensors_of_these_names_stay() -> None:
    plain = {"my_blocks": Tensor(np.ones((2, 2), np.float32), "f32", "my_blocks")}
    assert with_mxfp4(plain) == plain
