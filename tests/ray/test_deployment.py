"""What can be said without Ray; `tests/suites/ray` deploys."""

from __future__ import annotations

import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest

import pybatcher.ray


def test_without_ray_the_way_out_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ImportError, match=r"pip install 'pybatcher-engine\[ray\]'"):
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


@pytest.mark.parametrize(
    ("given", "n_threads"),
    [
        ({}, 1),
        ({"num_cpus": 4.0}, 4),
        ({"num_cpus": 2.9}, 2),
        ({"num_cpus": 0.25}, 1),
        ({"num_cpus": 0}, None),
        ({"num_cpus": 4, "n_threads": 3}, 3),
        ({"num_cpus": 4, "n_threads": 0}, 0),
    ],
    ids=str,
)
def test_a_replica_has_as_many_threads_as_cpus(
    monkeypatch: pytest.MonkeyPatch, given: dict[str, Any], n_threads: int | None
) -> None:
    bound: list[dict[str, Any]] = []
    deployed = SimpleNamespace(bind=lambda _, options: bound.append(options))
    serve = SimpleNamespace(deployment=lambda *_, **__: deployed)
    for name, module in {
        "ray": SimpleNamespace(serve=serve),
        "ray.serve": serve,
        "ray.serve.config": SimpleNamespace(RequestRouterConfig=dict),
        "pybatcher.ray.served": SimpleNamespace(Ingress=None, ServedReplica=None),
    }.items():
        monkeypatch.setitem(sys.modules, name, module)
    pybatcher.ray.deployment(http=False, **given)
    assert bound == [{} if n_threads is None else {"n_threads": n_threads}]
