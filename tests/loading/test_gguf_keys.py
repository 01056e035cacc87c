from __future__ import annotations

import pytest

from pybatcher.errors import ModelFormatError
from pybatcher.loading.fields import Fields
from pybatcher.loading.gguf_keys import ArchitectureKeys


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
