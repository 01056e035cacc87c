from __future__ import annotations

import numpy as np
import pytest
import torch
from quantised_files import module, packed

from pybatcher.errors import ModelFormatError
from pybatcher.loading.safetensors.quantised.parts import Parts, rows_of_packed, to_f32


@pytest.mark.parametrize("bits", [4, 8])
def test_outputs_are_taken_out_of_words(bits: int) -> None:
    per_word = 32 // bits
    numbers = np.random.default_rng(1).integers(0, 2**bits, (5, 3 * per_word))
    order = tuple(np.random.default_rng(2).permutation(per_word).tolist())
    words = packed(numbers, bits, order).numpy()
    rows = np.array([2 * per_word + 1, 0, per_word])
    found = rows_of_packed(words, rows, bits, np.argsort(order))
    np.testing.assert_array_equal(found, numbers[:, rows].T)


def test_scales_become_f32_exactly() -> None:
    values = torch.tensor([1.5, -0.02, 1e-5])
    for dtype, tensor in (("f32", values), ("f16", values.half()), ("bf16", values.bfloat16())):
        array = tensor.view(torch.uint16).numpy() if dtype == "bf16" else tensor.numpy()
        np.testing.assert_array_equal(to_f32(array, dtype), tensor.float().numpy())


def test_a_module_has_the_tensors_with_its_name() -> None:
    tensors = {**module({"a": torch.zeros(2, 3), "c": torch.zeros(4)}), "mm.b": None}
    parts = Parts("m", tensors, "here")  # type: ignore[arg-type]
    assert (parts.has("a"), parts.has("b")) == (True, False)
    assert parts.n_bytes("a", "b", "c") == 40
    assert parts.array("a", "f32", 2, None).shape == (2, 3)
    with pytest.raises(ModelFormatError, match=r"here: tensor m\.b is missing"):
        parts.tensor("b")
    with pytest.raises(ModelFormatError, match=r"found shape \[4\]; expected \[any, 4\]"):
        parts.array("c", "f32", None, 4)
