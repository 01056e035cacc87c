from __future__ import annotations

import numpy as np
import pytest

from pybatcher.params.embedding_head import DenseLayer, EmbeddingHead

RNG = np.random.default_rng(1)


def layer(n_out: int, n_in: int, *, bias: bool, tanh: bool) -> DenseLayer:
    weight = RNG.normal(0, 0.3, (n_out, n_in)).astype(np.float32)
    return DenseLayer(weight, RNG.normal(0, 1, n_out).astype(np.float32) if bias else None, tanh)


@pytest.mark.parametrize("biases", [(0, 0), (1, 0), (0, 1), (1, 1)])
@pytest.mark.parametrize("tanhs", [(0, 0), (1, 0), (0, 1), (1, 1)])
def test_a_vector_goes_through_all_layers(biases: tuple[int, int], tanhs: tuple[int, int]) -> None:
    layers = [
        layer(n_out, n_in, bias=bool(bias), tanh=bool(tanh))
        for n_out, n_in, bias, tanh in zip((23, 7), (11, 23), biases, tanhs, strict=True)
    ]
    vector = RNG.normal(0, 1, 11).astype(np.float32)
    expected = vector.astype(np.float64)
    for one in layers:
        expected = one.weight @ expected + (0 if one.bias is None else one.bias)
        expected = np.tanh(expected) if one.has_tanh else expected
    found = EmbeddingHead(layers)(vector)
    assert (found.dtype, found.shape) == (np.float32, (7,))
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


def test_bits_hang_on_the_vector_alone() -> None:
    head = EmbeddingHead([layer(129, 257, bias=True, tanh=False)])
    vector = RNG.normal(0, 1, 257).astype(np.float32)
    expected = head(vector).tobytes()
    for offset in range(1, 8):  # wherever it lies in memory
        room = np.zeros(300, np.float32)
        room[offset : offset + 257] = vector
        assert head(room[offset : offset + 257]).tobytes() == expected


def test_a_narrow_layer_between_wide_ones_makes_no_giant() -> None:
    """Two files of 400 kB would become a matrix of 40 GB."""
    narrow, wide = (
        layer(1, 100_000, bias=False, tanh=False),
        layer(100_000, 1, bias=True, tanh=False),
    )
    vector = RNG.normal(0, 1, 100_000).astype(np.float32)
    found = EmbeddingHead([narrow, wide])(vector)
    assert wide.bias is not None
    expected = wide.weight @ (narrow.weight @ vector) + wide.bias
    np.testing.assert_allclose(found, expected, rtol=1e-2, atol=1e-2)
