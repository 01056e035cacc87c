"""Matrices that a function makes while an engine is built: one product's at a time, or none."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from typing import Any

import numpy as np
import pytest
from attacked_engine import OPTIONS, PROMPT
from numpy.typing import NDArray

from pybatcher.engine import Engine
from pybatcher.errors import ModelFormatError
from pybatcher.loading import LoadedModel, from_torch
from pybatcher.testing.checkpoints import make_module


def logits(model: LoadedModel, tensors: dict[str, Any]) -> NDArray[np.float32]:
    engine = Engine(asdict(model.config), tensors, **OPTIONS)
    made: NDArray[np.float32] = engine.prefill_chunk(engine.seq_new(), PROMPT, logits=True)
    engine.close()
    return made


def given(model: LoadedModel) -> dict[str, Any]:
    return {name: (tensor.array, tensor.dtype) for name, tensor in model.tensors.items()}


def promised(model: LoadedModel, make: Callable[[str], NDArray[Any]]) -> dict[str, Any]:
    """All matrices as promises."""
    return {
        name: (partial(make, name), tensor.dtype, *tensor.shape)
        if tensor.array.ndim == 2
        else (tensor.array, tensor.dtype)
        for name, tensor in model.tensors.items()
    }


def test_one_product_at_a_time(model: LoadedModel) -> None:
    made: dict[str, weakref.ref[NDArray[Any]]] = {}
    most = 0

    def alive() -> int:
        return sum(array() is not None for array in made.values())

    def make(name: str) -> NDArray[Any]:
        nonlocal most
        array = model.tensors[name].array.copy()
        made[name] = weakref.ref(array)
        most = max(most, alive())
        return array

    np.testing.assert_array_equal(logits(model, promised(model, make)), logits(model, given(model)))
    assert most == 3  # q, k and v, which are one product
    assert alive() == 0
    assert made.keys() == {name for name, t in model.tensors.items() if t.array.ndim == 2}


class BrokenError(Exception):
    pass


def test_a_function_that_raises(model: LoadedModel) -> None:
    def make(name: str) -> NDArray[Any]:
        if name == "layers.1.up.weight":
            raise BrokenError(name)
        return model.tensors[name].array

    with pytest.raises(BrokenError, match=r"layers\.1\.up\.weight"):
        logits(model, promised(model, make))


BAD: dict[str, Callable[[NDArray[Any]], object]] = {
    "nothing": lambda array: None,
    "a list": lambda array: array.tolist(),
    "a row less": lambda array: array[1:],
    "turned": lambda array: array.T,
    "flat": lambda array: array.ravel(),
    "of another type": lambda array: array.astype(np.float64),
    "what is no number": lambda array: np.full_like(array, np.nan),
}


@pytest.mark.parametrize("name", BAD)
def test_a_promise_that_is_not_kept(name: str, model: LoadedModel) -> None:
    def make(tensor: str) -> Any:
        array = model.tensors[tensor].array
        return BAD[name](array) if tensor == "layers.0.gate.weight" else array

    with pytest.raises(ModelFormatError, match=r"layers\.0\.gate\.weight"):
        logits(model, promised(model, make))


@pytest.mark.parametrize(
    "entry",
    [
        (print, "f32", 2),
        (print, "f32", 2, 3, 4),
        (print, "f64", 384, 48),
        (print, "f32", 2.0, 3.0),
        (print, 7, 2, 3),
        (None, "f32", 2, 3),
        (print, "f32", -1, 48),
        (print, "f32", 384, 2**62),
        (print, "f32", 2**70, 48),
    ],
)
def test_a_promise_that_cannot_be_meant(entry: tuple[Any, ...], model: LoadedModel) -> None:
    with pytest.raises(ModelFormatError, match="token_embedding"):
        logits(model, {**given(model), "token_embedding": entry})


def with_order(model: LoadedModel, name: str, order: object) -> dict[str, Any]:
    """Promise one matrix with an order of its columns."""
    array, dtype = model.tensors[name].array, model.tensors[name].dtype
    return {**given(model), name: (lambda: array, dtype, *array.shape, order)}


def test_an_order_of_columns_moves_what_comes_in(model: LoadedModel) -> None:
    name = "layers.0.up.weight"
    array = model.tensors[name].array
    order = np.random.default_rng(1).permutation(array.shape[1]).astype(np.int32)
    moved = array[:, order].copy()
    entry = (lambda: moved, model.tensors[name].dtype, *array.shape, order)
    made, exact = logits(model, {**given(model), name: entry}), logits(model, given(model))
    np.testing.assert_allclose(made, exact, atol=1e-4)
    assert np.abs(logits(model, {**given(model), name: entry[:4]}) - exact).max() > 0.01


ORDERS: dict[str, Callable[[NDArray[Any]], object]] = {
    "none": lambda order: None,
    "a list": lambda order: order.tolist(),
    "of 64 bits": lambda order: order.astype(np.int64),
    "of numbers with a point": lambda order: order.astype(np.float32),
    "of two dimensions": lambda order: order[None],
    "of nothing": lambda order: order[:0],
    "one short": lambda order: order[:-1],
    "one long": lambda order: np.append(order, order[:1]),
    "one twice": lambda order: np.where(order == 7, 8, order).astype(np.int32),
    "one below": lambda order: order - 1,
    "one beyond": lambda order: order + 1,
    "far beyond": lambda order: order + np.int32(2**31 - 1 - order.max()),
    "of a byte order": lambda order: order.astype(">i4"),
}


@pytest.mark.parametrize("name", ORDERS)
def test_an_order_that_cannot_be_meant(name: str, model: LoadedModel) -> None:
    order = ORDERS[name](np.arange(48, dtype=np.int32)[::-1].copy())
    with pytest.raises(ModelFormatError, match=r"layers\.1\.q\.weight.* order"):
        logits(model, with_order(model, "layers.1.q.weight", order))


def test_an_embedding_has_no_order(model: LoadedModel) -> None:
    order = np.arange(48, dtype=np.int32)
    with pytest.raises(ModelFormatError, match="'token_embedding' has an order of its inputs"):
        logits(model, with_order(model, "token_embedding", order))


def test_an_order_is_read_from_any_strides(model: LoadedModel) -> None:
    name = "layers.0.up.weight"
    array = model.tensors[name].array
    order = np.arange(48, dtype=np.int32)[::-1]
    backwards = array[:, ::-1].copy()
    entry = (lambda: backwards, model.tensors[name].dtype, *array.shape, order)
    made = logits(model, {**given(model), name: entry})
    np.testing.assert_allclose(made, logits(model, given(model)), atol=1e-4)


def test_a_vector_is_not_promised(model: LoadedModel) -> None:
    entry = (lambda: np.ones((48, 1), np.float32), "f32", 48, 1)
    with pytest.raises(ModelFormatError, match="final_norm"):
        logits(model, {**given(model), "final_norm.weight": entry})


@pytest.mark.parametrize("kind", ["promised", "int8"])
def test_a_convolution_that_is_no_plain_matrix(kind: str) -> None:
    recurrent = from_torch(
        make_module("qwen3_5", max_position_embeddings=80, linear_conv_kernel_dim=32)
    )
    tensors, name = given(recurrent), "layers.0.gated_delta_net.convolution"
    array, dtype = tensors[name]
    blocks = np.zeros((array.shape[0], 34), np.uint8)
    promise = (lambda: array, dtype, *array.shape)
    tensors[name] = promise if kind == "promised" else (blocks, "int8")
    with pytest.raises(ModelFormatError, match=f"{name}' is quantised"):
        logits(recurrent, tensors)
