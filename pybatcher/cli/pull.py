"""`pybatcher pull`: download a model of the Hugging Face hub into its cache."""

from __future__ import annotations

from typing import Annotated

import typer

from ..errors import ConfigError
from ..machine.memory import size_text
from ..models.hub import bytes_of, find_model, hub_name
from .console import write
from .loading_bar import loading_bar

__all__ = ["pull"]

NameArgument = Annotated[
    str,
    typer.Argument(
        help="A name on the hub: org/name, org/name@revision, org/name:Q4_K_M or "
        "hf:org/name/file.gguf.",
        show_default=False,
    ),
]


def pull(name: NameArgument) -> None:
    """Download a model of the Hugging Face hub, unless it is in the cache of this machine."""
    if hub_name(name) is None:
        raise ConfigError(f"{name!r} is no name on the Hugging Face hub; one is 'org/name'")
    with loading_bar("downloading the model") as progress:
        path = find_model(name if name.startswith("hf:") else f"hf:{name}", progress)
    write(f"{path}: {size_text(bytes_of(path))}\n")
