"""Sampling parameters are validated once in each process that a call passes through."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from small_sidecar import sidecar

from pybatcher import AnyBatcher, Client, SamplingParams
from pybatcher.testing import fake_batcher

PROCESSES = {"in process": 1, "sidecar": 2, "front and worker": 3}
CALLS: dict[str, dict[str, Any]] = {
    "keywords": {"temperature": 0.5, "stop": ["x"]},
    "samples": {"n": 3, "temperature": 1.0},
    "seed": {"seed": 7, "max_tokens": 2},
    "left to the model": {"of_model": ("temperature", "top_p")},
}


@pytest.fixture
def validated(monkeypatch: pytest.MonkeyPatch) -> list[SamplingParams]:
    """The parameters that were validated, in order."""
    found: list[SamplingParams] = []
    validate = SamplingParams.__post_init__

    def counted(self: SamplingParams) -> None:
        found.append(self)
        validate(self)

    monkeypatch.setattr(SamplingParams, "__post_init__", counted)
    return found


@asynccontextmanager
async def served(way: str, folder: Path) -> AsyncIterator[AnyBatcher]:
    """A batcher behind as many connections as the way has; each connection stands for a process."""
    async with fake_batcher() as batcher:
        if way == "in process":
            yield batcher
            return
        async with sidecar(folder / "worker", batcher), Client(folder / "worker") as front:
            if way == "sidecar":
                yield front
                return
            async with (
                sidecar(folder / "front", front),  # type: ignore[arg-type]
                Client(folder / "front") as client,
            ):
                yield client


@pytest.mark.parametrize("way", PROCESSES)
@pytest.mark.parametrize("call", CALLS)
async def test_each_process_validates_once(
    way: str, call: str, tmp_path: Path, validated: list[SamplingParams]
) -> None:
    async with served(way, tmp_path) as batcher:
        validated.clear()
        await batcher.generate("hi", **{"max_tokens": 4, **CALLS[call]})
        n_samples = CALLS[call].get("n", 1)  # each is a call of its own between processes
        assert len(validated) == 1 + n_samples * (PROCESSES[way] - 1)


@pytest.mark.parametrize("way", PROCESSES)
async def test_parameters_that_a_caller_has_made_are_not_validated_again(
    way: str, tmp_path: Path, validated: list[SamplingParams]
) -> None:
    async with served(way, tmp_path) as batcher:
        params = SamplingParams(max_tokens=4, temperature=0.5)
        validated.clear()
        await batcher.generate("hi", params)
        assert len(validated) == PROCESSES[way] - 1
