"""`EmbeddingHead`: the dense layers that are applied to a pooled vector."""

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
    """Dense layers, applied to one vector at a time, so that a result depends on its vector alone.

    layers: at least one. Neighbours without an activation between them become one matrix unless it
        is larger than both: a narrow layer between wide ones would make a giant matrix.
    """

    def __init__(self, layers: Sequence[DenseLayer]) -> None:
        self._layers: list[DenseLayer] = []
        for layer in layers:
            if self._layers and _can_fold(self._layers[-1], layer):
                layer = _folded(self._layers.pop(), layer)
            self._layers.append(layer)

    def __call__(self, vector: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return the vector (n_in,) after all layers, (n_out,) float32.

        It does not use BLAS, whose order of summation may depend on its threads.
        """
        import numpy as np

        with np.errstate(all="ignore"):  # the caller refuses numbers that are not finite
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
    """Return one layer equal to two; `first` has no activation. Computed in float64."""
    import numpy as np

    wide: NDArray[Any] = second.weight.astype(np.float64)
    bias = None if first.bias is None else wide @ first.bias.astype(np.float64)
    if second.bias is not None:
        bias = second.bias if bias is None else bias + second.bias
    # values too large for float32 make vectors that are not finite
    with np.errstate(over="ignore"):
        return DenseLayer(
            (wide @ first.weight.astype(np.float64)).astype(np.float32),
            None if bias is None else bias.astype(np.float32),
            second.has_tanh,
        )
