from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from pybatcher.errors import ModelFormatError
from pybatcher.loading.checkpoints.fields import Fields
from pybatcher.loading.parts.gguf_keys import ArchitectureKeys


def test_keys_of_an_architecture() -> None:
    fields = Fields({"llama.a": 3, "llama.b": 0.5, "a": 7}, "model.gguf")
    keys = ArchitectureKeys(fields, "llama")
    assert keys.integer("a", 0, 9) == keys.get("a") == 3
    assert keys.number("b", 0.0, 1.0) == 0.5
    assert keys.number("c", 0.0, 1.0, 0.25) == 0.25
    assert keys.get("c") is None
    keys.refuse_unless("a", 3)
    with pytest.raises(ModelFormatError, match=r"model\.gguf: llama\.a is 3; expected 4"):
        keys.refuse_unless("a", 4)
    with pytest.raises(ModelFormatError, match=r"llama\.a is 3; expected less"):
        raise keys.error("a", "less")


@pytest.mark.parametrize(
    "value",
    [
        *(None, 1.5, True, "no", ["a", "b", "c"], np.zeros(4, int), np.zeros(0, int)),
        *(np.array([0, 1, 2]), np.array([0.0, 1.0, np.nan]), np.array([-1, 0, 1], np.int8)),
    ],
)
def test_flags_of_layers(value: Any) -> None:
    """Each of these was a TypeError, or was taken for something true."""
    keys = ArchitectureKeys(Fields({"llama.x": value}, "model.gguf"), "llama")
    with pytest.raises(
        ModelFormatError, match=r"llama\.x is .*a truth value for each of 3 layers$"
    ):
        keys.flags("x", 3)
    for good in (np.array([True, False, True]), np.array([1, 0, 1], np.uint32)):
        keys = ArchitectureKeys(Fields({"llama.x": good}, "model.gguf"), "llama")
        assert keys.flags("x", 3) == [True, False, True]
