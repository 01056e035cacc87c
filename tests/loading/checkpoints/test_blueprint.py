from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from pybatcher.errors import ModelFormatError
from pybatcher.loading import open_model
from pybatcher.loading.checkpoints.blueprint import EMBEDDING, HEAD, Blueprint
from pybatcher.loading.checkpoints.tensors import Tensor, TensorRule

RULES = (
    TensorRule(name=EMBEDDING, source="model.embed", shape=(2, 3)),
    TensorRule(name=HEAD, source="head", shape=(2, 3)),
    TensorRule(name="norm", source="model.norm", shape=(3,)),
)
ONES = np.ones((2, 3), np.float32)
NORM = np.ones(3, np.float32)


@pytest.fixture
def blueprint(originals: dict[str, Path]) -> Blueprint:
    return Blueprint(open_model(originals["llama"]).config, RULES, tied=False)


def fill(blueprint: Blueprint, **arrays: np.ndarray) -> dict[str, np.ndarray]:
    names = {"embed": "model.embed", "norm": "model.norm", "bare_embed": "embed", "bare": "norm"}
    available = {
        names.get(name, name): Tensor(array, "f32", f"file: {name}")
        for name, array in arrays.items()
    }
    return {name: t.array for name, t in blueprint.fill(available, "directory").items()}


def test_untied_needs_both(blueprint: Blueprint) -> None:
    assert fill(blueprint, embed=ONES, head=ONES, norm=NORM).keys() == {EMBEDDING, HEAD, "norm"}
    with pytest.raises(ModelFormatError, match="tensor head is missing"):
        fill(blueprint, embed=ONES, norm=NORM)
    with pytest.raises(ModelFormatError, match=r"tensor model\.embed is missing"):
        fill(blueprint, head=ONES, norm=NORM)


def test_tied_needs_one(blueprint: Blueprint) -> None:
    tied = dataclasses.replace(blueprint, tied=True)
    assert fill(tied, embed=ONES, norm=NORM).keys() == {EMBEDDING, "norm"}
    assert fill(tied, embed=ONES, head=ONES.copy(), norm=NORM).keys() == {EMBEDDING, "norm"}
    only_head = fill(tied, head=7 * ONES, norm=NORM)
    assert only_head.keys() == {EMBEDDING, "norm"}
    np.testing.assert_array_equal(only_head[EMBEDDING], 7 * ONES)
    with pytest.raises(ModelFormatError, match=r"tensor model\.embed is missing"):
        fill(tied, norm=NORM)
    with pytest.raises(ModelFormatError, match="file: head: found shape"):
        fill(tied, embed=ONES, head=ONES[:1], norm=NORM)


def test_the_text_part_of_a_model_that_has_others(blueprint: Blueprint) -> None:
    prefixes = (("lm.head", "head"), ("lm.", "model."))
    text = dataclasses.replace(blueprint, text_prefixes=prefixes)
    arrays = {"lm.embed": ONES, "lm.norm": NORM, "lm.head": 2 * ONES, "norm": 5 * NORM}
    others = {"model.vision.0": NORM, "vision.1": NORM, "audio.norm": NORM}
    said = r"directory: only the text part .*norm \(1 .*vision \(2 tensors\), audio \(1 tensors\)"
    available = {name: Tensor(array, "f32", name) for name, array in {**arrays, **others}.items()}
    with pytest.warns(UserWarning, match=said):
        filled = text.fill(available, "directory")
    assert filled.keys() == {EMBEDDING, HEAD, "norm"}
    np.testing.assert_array_equal(filled[HEAD].array, 2 * ONES)
    np.testing.assert_array_equal(filled["norm"].array, NORM)
    text.fill({name: tensor for name, tensor in available.items() if name.startswith("lm.")}, "")


def test_tied_by_word_but_not_in_deed(blueprint: Blueprint) -> None:
    tied = dataclasses.replace(blueprint, tied=True)
    filled = fill(tied, embed=ONES, head=2 * ONES, norm=NORM)
    np.testing.assert_array_equal(filled[HEAD], 2 * ONES)
    np.testing.assert_array_equal(filled[EMBEDDING], ONES)


def test_names_without_the_prefix(blueprint: Blueprint) -> None:
    tied = dataclasses.replace(blueprint, tied=True, prefix="model.")
    assert fill(tied, bare_embed=ONES, bare=NORM).keys() == {EMBEDDING, "norm"}
    assert fill(tied, embed=ONES, norm=NORM).keys() == {EMBEDDING, "norm"}
    with pytest.raises(ModelFormatError, match="missing"):
        fill(blueprint, bare_embed=ONES, bare=NORM, head=ONES)
