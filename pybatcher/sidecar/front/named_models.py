"""Models of a server by name: reads them from the command line, and makes their specifications."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ...errors import ConfigError
from ...models.hub import absolute_model
from ...params.config import bad_value
from .worker_spec import WorkerSpec

__all__ = ["check_models", "read_models", "socket_of", "specs_of"]

_PLACE = "{model}"
_BEGIN_PATHS = ("/", ".", "~")


def read_models(texts: Sequence[str]) -> dict[str, Any]:
    """Return the option `model` or `models` for the values of `--model`: PATH, or NAME=PATH.

    A text that begins with /, . or ~ is a path. Paths are returned absolute, names on the hub
    unchanged. Raises ConfigError for several models without names, and for two of one name.
    """
    named: dict[str, str] = {}
    paths = []
    for text in texts:
        name, equals, path = text.partition("=")
        if text.startswith(_BEGIN_PATHS) or not equals:
            paths.append(text)
        elif name in named:
            raise ConfigError(f"two models have the name {name!r}; give each one of its own")
        else:
            named[name] = absolute_model(path, Path.cwd()) if path else ""
    if paths and len(texts) > 1:
        raise ConfigError(
            f"model is {paths[0]!r}, beside other models; give each a name, as NAME=PATH"
        )
    if paths:
        return {"model": absolute_model(paths[0], Path.cwd())}
    check_models(named)
    return {"models": named}


def check_models(models: object) -> dict[str, str]:
    """Return models by name, for the option `models`. Raises ConfigError."""
    if not isinstance(models, Mapping) or not models:
        raise bad_value("models", models, "paths by the names of the models")
    for name, path in models.items():
        if not isinstance(name, str) or not name.isprintable() or name != name.strip() or not name:
            raise ConfigError(f"models has the name {name!r}; one is of printable characters")
        if not isinstance(path, str) or path == "" or "\0" in path:
            raise bad_value(f"models.{name}", path, "a path")
    return dict(models)


def specs_of(options: Mapping[str, Any]) -> dict[str, WorkerSpec]:
    """Return the workers' specifications, by the names that requests call the models by.

    options: options of the workers, by name. With `models` instead of `model`, there is a worker
        for each of these, and all of them have the other options. The name "" stands for the
        model's own name. Raises ConfigError.
    """
    given = dict(options)
    models = given.pop("models", None)
    if models is None:
        return {"": WorkerSpec().changed(given)}
    if "model" in given:
        raise ConfigError("model and models are both given; give one of them")
    return {
        name: WorkerSpec().changed({**given, "model": path})
        for name, path in check_models(models).items()
    }


def socket_of(path: str, model: str) -> str:
    """Return the path of a model's socket, with its name for {model}. Raises ConfigError.

    model: "" for a single model without a name; the path is then unchanged.
    """
    if not model or _PLACE not in path:
        return path
    if os.sep in model:
        raise ConfigError(
            f"the model's name is {model!r}, which no file can have: choose another one, or give "
            "no_socket"
        )
    return path.replace(_PLACE, model)
