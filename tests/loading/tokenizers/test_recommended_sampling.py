from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pybatcher.loading import open_model
from pybatcher.loading.checkpoints.fields import Fields
from pybatcher.loading.tokenizers.recommended_sampling import (
    IN_GENERATION_CONFIG,
    IN_GGUF,
    recommended_sampling,
)

CONFIG = {
    "temperature": 0.6,
    "top_k": 20,
    "top_p": 0.95,
    "min_p": 0.0,
    "repetition_penalty": 1.05,
}


def read(names: dict[str, str], **fields: Any) -> dict[str, float]:
    return recommended_sampling(Fields(fields, "a file"), names)


def test_names_of_both_files() -> None:
    others = {"do_sample": True, "max_new_tokens": 5, "eos_token_id": 1}
    assert read(IN_GENERATION_CONFIG, **CONFIG, **others) == CONFIG
    in_gguf = {IN_GGUF[name]: value for name, value in CONFIG.items()}
    assert read(IN_GGUF, **in_gguf) == CONFIG
    assert read(IN_GGUF, **CONFIG) == {}


def test_null_says_nothing_and_minus_one_is_all_tokens() -> None:
    assert read(IN_GENERATION_CONFIG, temperature=None, top_k=-1) == {"top_k": 0}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("temperature", value) for value in (-1, "hot", True, [], {}, float("nan"), 10**400)),
        *(("top_k", value) for value in (-2, 0.5, 2**31, "\n", -1.0)),
        *(("top_p", value) for value in (-0.5, 1.5, [0.9])),
        *(("repetition_penalty", value) for value in (0, -1.0)),
    ],
)
def test_values_that_no_request_may_have_are_left_out(name: str, value: Any) -> None:
    with pytest.warns(UserWarning, match=f"^a file: {name} is left out: {name} is "):
        assert read(IN_GENERATION_CONFIG, **{"min_p": 0.1, name: value}) == {"min_p": 0.1}


def test_a_directory(llama: Path, edit: Any) -> None:
    edit(llama / "generation_config.json", **CONFIG)
    assert open_model(llama).tokenizer.sampling == CONFIG
    (llama / "generation_config.json").unlink()
    assert open_model(llama).tokenizer.sampling == {}
