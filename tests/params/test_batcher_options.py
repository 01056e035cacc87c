"""The options of a batcher as type checkers, shells and notebooks see them."""

from __future__ import annotations

import inspect
from dataclasses import fields
from typing import get_type_hints

import pytest
from type_check import type_errors

import pybatcher
from pybatcher import Batcher, BlockingBatcher, EngineConfig, SchedulerConfig, SupervisionConfig
from pybatcher.params.batcher_options import BatcherOptions
from pybatcher.testing import fake_batcher

KINDS = (EngineConfig, SchedulerConfig, SupervisionConfig)


def test_they_are_the_fields_of_the_classes_with_their_types() -> None:
    hints = {name: hint for kind in KINDS for name, hint in get_type_hints(kind).items()}
    assert get_type_hints(BatcherOptions) == hints
    assert not BatcherOptions.__required_keys__


@pytest.mark.parametrize(
    ("make", "first"),
    [
        (Batcher, "model"),
        (BlockingBatcher, "model"),
        (Batcher.from_torch, "module"),
        (BlockingBatcher.from_torch, "module"),
        (fake_batcher, "engine"),
    ],
)
def test_signatures_list_them_with_their_defaults(make: object, first: str) -> None:
    assert callable(make)
    shown = inspect.signature(make).parameters
    assert next(iter(shown)) == first
    assert not [p for p in shown.values() if p.kind is inspect.Parameter.VAR_KEYWORD]
    for option in (one for kind in KINDS for one in fields(kind)):
        assert shown[option.name].kind is inspect.Parameter.KEYWORD_ONLY
        assert shown[option.name].default == option.default


def test_a_subclass_has_the_signature_of_its_own_init() -> None:
    class Own(Batcher):
        def __init__(self, size: int) -> None:
            super().__init__(n_ctx=size)

    assert [*inspect.signature(Own).parameters] == ["size"]


def test_dir_lists_public_names_only() -> None:
    assert dir(pybatcher) == sorted([*pybatcher.__all__, "__version__"])
    assert all(hasattr(pybatcher, name) for name in dir(pybatcher))


PROGRAM = """\
from pybatcher import Batcher, BlockingBatcher, Engine, EngineConfig
from pybatcher.ray import deployment
from pybatcher.testing import fake_batcher
Batcher("m", n_ctx="auto", dtype="int8", step_timeout=None, system_prompt="s")
BlockingBatcher(n_parallel=4, on_failure=print)
deployment(n_ctx=512, system_prompt="s")
Batcher(n_ctxx=5)
Batcher(n_ctx=5.5)
Batcher.from_torch(None, n_ctxx=5)
BlockingBatcher(n_ctxx=5)
BlockingBatcher.from_torch(None, temperature=1.0)
fake_batcher(n_paralel=5)
deployment(n_ctxx=5)
Batcher(dtype="int7")
Batcher(kv_dtype="q8_0")
Batcher(device="gpu")
Batcher(victim_policy="oldest")
Batcher(block_size=48)
Engine.load(dtype="int7")
EngineConfig(device="cuda", block_size=64, dtype="q4_k_m")
"""


@pytest.mark.slow
def test_type_checkers_find_mistakes() -> None:
    told = type_errors(PROGRAM)
    assert [one.split(":")[0] for one in told] == [str(line) for line in range(7, 20)]
    assert 'Unexpected keyword argument "n_ctxx" for "Batcher"' in told[0]
    assert 'Argument "n_ctx" to "Batcher" has incompatible type "float"' in told[1]
