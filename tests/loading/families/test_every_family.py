"""Every module of the folder describes a family, and no two families the same model."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
import transformers

from pybatcher.loading import families
from pybatcher.loading.families import FAMILIES, class_names, gguf_architectures
from pybatcher.loading.parts.family import Family


def test_every_module_is_a_family() -> None:
    modules = Path(families.__file__).parent.rglob("*.py")
    names = [path.stem for path in modules if path.name != "__init__.py"]
    assert len(FAMILIES) == len(names) > 10
    assert all(isinstance(family, Family) for family in FAMILIES)


def test_no_two_families_read_the_same_files() -> None:
    types = Counter(kind for family in FAMILIES for kind in family.hf)
    assert [kind for kind, count in types.items() if count > 1] == []
    architectures = Counter(name for family in FAMILIES for name in family.gguf)
    assert [name for name, count in architectures.items() if count > 1] == []
    assert sorted(architectures) == gguf_architectures()


def test_every_type_has_its_classes() -> None:
    for family in FAMILIES:
        assert family.hf.keys() == family.classes.keys()
        for model_type in family.hf:
            known = family.classes_of(model_type)
            assert bool(known.model) != bool(known.encoders), model_type


@pytest.mark.parametrize("name", class_names())
def test_transformers_has_the_class(name: str) -> None:
    assert hasattr(transformers, name)
