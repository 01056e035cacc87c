"""Fixtures: a tiny checkpoint of every architecture, and functions that damage a copy."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pybatcher.testing.checkpoints import ARCHITECTURES, make_checkpoint

Edit = Callable[..., None]


@pytest.fixture(scope="session")
def originals(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Checkpoints by architecture. Tests must not change them."""
    root = tmp_path_factory.mktemp("checkpoints")
    return {name: make_checkpoint(root / name, name, seed=1) for name in ARCHITECTURES}


@pytest.fixture
def llama(originals: dict[str, Path], tmp_path: Path) -> Path:
    """A copy of the llama checkpoint, for a test to damage."""
    return Path(shutil.copytree(originals["llama"], tmp_path / "llama"))


@pytest.fixture
def edit() -> Edit:
    """Return edit(file, name=value, ...): change fields of a JSON file; `...` removes one."""

    def change(path: Path, **changes: Any) -> None:
        fields = json.loads(path.read_text()) if path.exists() else {}
        fields.update(changes)
        fields = {name: value for name, value in fields.items() if value is not ...}
        path.write_text(json.dumps(fields))

    return change
