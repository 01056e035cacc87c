from __future__ import annotations

import numpy as np
import pytest
from torch.nn.functional import kl_div

from bench.engine.quality import divergences, figures


def test_divergences_are_those_of_torch() -> None:
    import torch

    rng = np.random.default_rng(0)
    reference, other = (rng.normal(0, 3, (5, 200)).astype(np.float32) for _ in range(2))
    p, q = (torch.log_softmax(torch.tensor(x).double(), -1) for x in (reference, other))
    expected = kl_div(q, p, reduction="none", log_target=True).sum(-1)
    assert divergences(reference, other) == pytest.approx(expected.numpy(), rel=1e-9)
    assert divergences(reference, reference + 7.0) == pytest.approx(np.zeros(5), abs=1e-6)


def test_figures() -> None:
    reference = np.array([[0.0, 1.0, 5.0], [4.0, 0.0, 0.0]], dtype=np.float32)
    other = np.array([[0.0, 1.0, 5.0], [0.0, 4.0, 0.0]], dtype=np.float32)
    found = figures(reference, other)
    assert found["same_top"] == 0.5
    assert found["mean"] == pytest.approx(found["median"])
    assert found["mean"] > 1.0
    assert found["logits_relative_difference"] == pytest.approx((32 / 42) ** 0.5)
