"""The options of a batcher as type checkers, shells and notebooks see them."""

from __future__ import annotations

import inspect
from dataclasses import fields
from typing import get_type_hints

import pytest
from type_check import type_errors
from typed_programs import OPTIONS

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


@pytest.mark.slow
def test_mypy_finds_mistakes() -> None:
    program, wrong = OPTIONS
    told = type_errors(program)
    assert [int(one.split(":")[0]) for one in told] == wrong
    assert 'Unexpected keyword argument "n_ctxx" for "Batcher"' in told[0]
    assert 'Argument "n_ctx" to "Batcher" has incompatible type "float"' in told[1]
