"""The package itself: what it says of itself, and what it leaves until it is asked for."""

from __future__ import annotations

import subprocess
import sys
from importlib import metadata

import pytest

import pybatcher
from pybatcher.engine import Engine
from pybatcher.sidecar.client.blocking_client import BlockingClient
from pybatcher.sidecar.client.client import Client


def test_the_version_is_that_of_the_installed_package() -> None:
    assert pybatcher.__version__ == metadata.version("pybatcher-engine")


def test_neither_the_version_nor_the_extension_is_looked_up_on_import() -> None:
    code = (
        "import sys, pybatcher; "
        "assert '__version__' not in vars(pybatcher); assert 'pybatcher._core' not in sys.modules; "
        "pybatcher.Engine; assert 'pybatcher._core' in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize(
    "module",
    ["pybatcher", "pybatcher.testing", "pybatcher.sidecar.front.server", "pybatcher.cli"],
)
def test_what_only_an_opened_model_needs_is_not_imported_before(module: str) -> None:
    late = {"numpy", "jinja2", "pybatcher.loading", "pybatcher.engine"}
    code = f"import sys, {module}; assert not {late} & set(sys.modules), {late} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_what_is_not_there_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'engine_of_another_name'"):
        pybatcher.engine_of_another_name  # noqa: B018


@pytest.mark.parametrize("its_own", [Engine, Client, BlockingClient])
def test_what_is_imported_when_it_is_asked_for_is_the_class_of_its_module(its_own: type) -> None:
    assert getattr(pybatcher, its_own.__name__) is its_own


def test_every_name_that_is_said_to_be_public_is_there() -> None:
    missing = [name for name in pybatcher.__all__ if not hasattr(pybatcher, name)]
    assert missing == []


def test_the_client_is_imported_when_it_is_asked_for() -> None:
    code = (
        "import sys, pybatcher; "
        "assert not {'pybatcher.sidecar', 'msgpack'} & set(sys.modules); "
        "assert pybatcher.Client.__name__ == 'Client'; "
        "assert pybatcher.BlockingClient.__name__ == 'BlockingClient'; "
        "assert 'msgpack' in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
