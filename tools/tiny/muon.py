"""Muon, the optimizer of the layers' matrices, in f32.

``torch.optim.Muon`` is the same in bf16, which takes ten times as long where a CPU has no
instructions for bf16. Stages 1 to 3 of the shipped weights were made with that one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

_COEFFICIENTS = (3.4445, -4.7750, 2.0315)  # the coefficients of Keller Jordan's Muon
_N_ITERATIONS = 5
_MOMENTUM = 0.95
_EPSILON = 1e-7


def orthogonalized(matrix: torch.Tensor) -> torch.Tensor:
    """Return (rows, columns) f32: the matrix with singular values near 1, by Newton and Schulz."""
    wide = matrix.float() if matrix.shape[0] <= matrix.shape[1] else matrix.float().T
    x = wide / wide.norm().clamp(min=_EPSILON)
    a, b, c = _COEFFICIENTS
    for _ in range(_N_ITERATIONS):
        gram = x @ x.T
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x if wide.shape == matrix.shape else x.T


class Muon:
    """Nesterov momentum, orthogonalized; steps as long as those of AdamW; decoupled decay.

    To be used as one of torch's: ``param_groups[0]["lr"]`` is the learning rate.
    """

    def __init__(
        self, parameters: Sequence[torch.nn.Parameter], lr: float, weight_decay: float
    ) -> None:
        self.param_groups = [{"lr": lr, "weight_decay": weight_decay}]
        self._parameters = parameters
        self._momenta = [torch.zeros_like(matrix) for matrix in parameters]

    def step(self) -> None:
        lr, decay = self.param_groups[0]["lr"], self.param_groups[0]["weight_decay"]
        with torch.no_grad():
            for matrix, momentum in zip(self._parameters, self._momenta, strict=True):
                momentum.lerp_(matrix.grad, 1 - _MOMENTUM)
                update = orthogonalized(matrix.grad.lerp(momentum, _MOMENTUM))
                matrix.mul_(1 - lr * decay)
                matrix.add_(update, alpha=-lr * 0.2 * math.sqrt(max(matrix.shape)))

    def zero_grad(self) -> None:
        for matrix in self._parameters:
            matrix.grad = None
