from __future__ import annotations

import pytest
import torch

from tools.tiny.muon import Muon, orthogonalized

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.mark.parametrize("shape", [(8, 24), (24, 8), (16, 16)])
def test_singular_values_become_alike(shape: tuple[int, int]) -> None:
    torch.manual_seed(0)
    matrix = torch.randn(shape)
    before, after = torch.linalg.svdvals(matrix), torch.linalg.svdvals(orthogonalized(matrix))
    assert orthogonalized(matrix).shape == shape
    assert 0.5 < after.min() <= after.max() < 1.3
    assert after.max() / after.min() < 0.7 * before.max() / before.min()


@pytest.mark.parametrize("shape", [(8, 24), (24, 8)])
def test_it_is_the_muon_of_torch_but_for_rounding(shape: tuple[int, int]) -> None:
    """Steps of torch's are computed in bf16, so that they differ by about a hundredth."""
    torch.manual_seed(1)
    start = torch.randn(shape)
    own, other = (torch.nn.Parameter(start.clone()) for _ in range(2))
    ours = Muon([own], lr=0.01, weight_decay=0.05)
    theirs = torch.optim.Muon([other], lr=0.01, weight_decay=0.05, adjust_lr_fn="match_rms_adamw")
    for _ in range(5):
        own.grad = torch.randn(shape)
        other.grad = own.grad.clone()
        ours.step()
        theirs.step()
    difference, way = (own - other).norm(), (other - start).norm()
    assert 0 < difference < 0.02 * way
