"""`EmbeddingHead`: the dense layers that a pooled vector goes through."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

__all__ = ["DenseLayer", "EmbeddingHead"]


class DenseLayer(NamedTuple):
    """A layer: act(weight @ x + bias).

    weight: (n_out, n_in) float32. bias: (n_out,) float32, or None. has_tanh: act is tanh; else x.
    """

    weight: NDArray[np.float32]
    bias: NDArray[np.float32] | None = None
    has_tanh: bool = False


class EmbeddingHead:
    """Dense layers, applied to one vector at a time: what a vector becomes depends on it alone.

    layers: at least one. Neighbours without an activation between them become one matrix, where
        that is not larger than both: a narrow layer between wide ones would make a giant.
    """

    def __init__(self, layers: Sequence[DenseLayer]) -> None:
        self._layers: list[DenseLayer] = []
        for layer in layers:
            if self._layers and _can_fold(self._layers[-1], layer):
                layer = _folded(self._layers.pop(), layer)
            self._layers.append(layer)

    def __call__(self, vector: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return the vector (n_in,) after all layers, (n_out,) float32.

        Not by BLAS, whose order of sums may hang on its threads.
        """
        import numpy as np

        with np.errstate(all="ignore"):  # the caller refuses what is not finite
            for layer in self._layers:
                vector = np.einsum("ij,j->i", layer.weight, vector, optimize=False)
                if layer.bias is not None:
                    vector = vector + layer.bias
                if layer.has_tanh:
                    vector = np.tanh(vector)
        return vector


def _can_fold(first: DenseLayer, second: DenseLayer) -> bool:
    n_folded = len(second.weight) * first.weight.shape[1]
    return not first.has_tanh and n_folded <= first.weight.size + second.weight.size


def _folded(first: DenseLayer, second: DenseLayer) -> DenseLayer:
    """Return the layer that does what two do; `first` has no activation. Computed in float64."""
    import numpy as np

    wide: NDArray[Any] = second.weight.astype(np.float64)
    bias = None if first.bias is None else wide @ first.bias.astype(np.float64)
    if second.bias is not None:
        bias = second.bias if bias is None else bias + second.bias
    with np.errstate(over="ignore"):  # what is too large for float32 makes vectors not finite
        return DenseLayer(
            (wide @ first.weight.astype(np.float64)).astype(np.float32),
            None if bias is None else bias.astype(np.float32),
            second.has_tanh,
        )
