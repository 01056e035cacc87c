"""What can be said without Ray; `tests/suites/ray` deploys."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

import pybatcher.ray


def test_without_ray_the_way_out_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ImportError, match=r"pip install 'pybatcher\[ray\]'"):
        pybatcher.ray.deployment()


def test_ray_is_not_imported_before_it_is_needed() -> None:
    code = "import sys, pybatcher.ray; assert not {'ray', 'starlette'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


async def test_a_batcher_of_a_handle_is_one_that_can_be_started() -> None:
    class Handle:
        def options(self, **_: Any) -> Handle:
            return self

    batcher = pybatcher.ray.batcher(Handle())
    assert isinstance(batcher, pybatcher.AnyBatcher)
    assert (await batcher.health()).status == "new"
