"""`type_errors`: what a strict mypy says of a program that uses pybatcher."""

from __future__ import annotations

import os
import re
import tempfile
from pathlib import Path

from mypy import api

__all__ = ["type_errors"]

_ROOT = Path(__file__).resolve().parents[2]
_CACHE = _ROOT / ".mypy_cache" / "programs"
# Of other packages nothing is read: their stubs take most of the time, and no call of pybatcher is
# typed by them alone.
_CONFIG = f"""\
[mypy]
strict = True
mypy_path = {_ROOT}
follow_imports = silent
cache_dir = {_CACHE}

[mypy-_cffi_backend.*,django.*,flask.*,gguf.*,jinja2.*,msgpack.*,numpy.*,prometheus_client.*,rich.*,safetensors.*,\
tokenizers.*,torch.*,transformers.*,typer.*,uvloop.*]
follow_imports = skip
ignore_missing_imports = True
"""


def type_errors(program: str) -> list[str]:
    """Messages like `3: Unexpected keyword argument "x" for "f"  [call-arg]`, by line.

    pybatcher's annotations are read from the checkout. The first call after they have changed
    takes some seconds; what it has read is kept in the checkout's `.mypy_cache`.

    Raises RuntimeError where mypy itself fails.
    """
    with tempfile.TemporaryDirectory() as folder:
        config, source = Path(folder, "mypy.ini"), Path(folder, f"program_{os.getpid()}.py")
        config.write_text(_CONFIG)
        source.write_text(program)
        said, trouble, status = api.run(
            ["--config-file", str(config), "--no-error-summary", "--no-pretty", str(source)]
        )
    if trouble or status not in (0, 1):
        raise RuntimeError(f"mypy failed with status {status}: {trouble or said}")
    lines = re.findall(rf"{source.name}:(\d+): error: (.*)", said)
    return [f"{number}: {message}" for number, message in lines]
