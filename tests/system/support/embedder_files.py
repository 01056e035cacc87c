"""The files of sentence-transformers that say how a model embeds."""

from __future__ import annotations

import json
from pathlib import Path

__all__ = ["write_modules"]


def write_modules(path: Path, mode: str, *, normalize: bool, n_dense: int = 0) -> None:
    """Write `modules.json` and the folder of pooling. Folders of dense layers are the caller's."""
    kinds = ["Transformer", "Pooling"] + ["Dense"] * n_dense + ["Normalize"] * normalize
    modules = [
        {"idx": i, "path": f"{i}_{kind}", "type": f"sentence_transformers.models.{kind}"}
        for i, kind in enumerate(kinds)
    ]
    (path / "modules.json").write_text(json.dumps(modules))
    (path / "1_Pooling").mkdir(exist_ok=True)
    (path / "1_Pooling" / "config.json").write_text(json.dumps({mode: True}))
