from __future__ import annotations

import ast
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pybatcher.ray import autoscaling
from pybatcher.ray.autoscaling import TokensPolicy


def context(queued: list[float], busy: list[float]) -> Any:
    stats = {"queued_tokens": dict(enumerate(queued)), "busy": dict(enumerate(busy))}
    return SimpleNamespace(aggregated_metrics=stats)


@pytest.mark.parametrize(
    ("queued", "busy", "wanted"),
    [
        ([0, 0, 0], [0, 0, 0], 1),
        ([0, 0, 0, 0], [0.5, 0.5, 0.5, 0.5], 2),
        ([0, 0], [1, 1], 2),
        ([0, 0], [1.0, 0.1], 2),
        ([1000, 0], [1, 1], 3),
        ([1001, 0], [1, 1], 4),
        ([100_000], [1], 101),
    ],
)
def test_tokens_that_wait_bring_replicas(
    queued: list[float], busy: list[float], wanted: int
) -> None:
    assert TokensPolicy(1000)(context(queued, busy)) == (wanted, {})


def test_before_the_first_figures_there_is_one() -> None:
    assert TokensPolicy()(SimpleNamespace(aggregated_metrics=None)) == (1, {})
    assert TokensPolicy()(SimpleNamespace(aggregated_metrics={})) == (1, {})


def test_the_module_can_be_sent_by_value() -> None:
    """The controller has the module's source and nothing of the package."""
    tree = ast.parse(Path(autoscaling.__file__).read_text())
    imported = [node for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom)]
    names = {getattr(node, "module", None) or node.names[0].name for node in imported}
    assert names <= sys.stdlib_module_names
