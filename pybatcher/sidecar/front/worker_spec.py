"""`WorkerSpec`: the model and options that a worker process serves."""

from __future__ import annotations

import reprlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from ...errors import ConfigError
from ...models.hub import Progress, find_model
from ...params.config import split_options
from ..protocol.limits import Limits

__all__ = ["INTERNAL_LIMITS", "WorkerSpec"]

INTERNAL_LIMITS = Limits(
    max_frame=2**30,
    max_depth=128,
    max_in_flight=2**20,
    max_elements=2**26,
    image_bytes=2**28,
)
"""Limits of the socket between front and worker: every message the front accepts must fit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSpec:
    """The arguments of a `Batcher`, and the period of its heartbeats.

    model: a path, a name on the hub, or None for the shipped one. options: of the batcher, by name.
    beat_period: seconds between two heartbeats.
    """

    model: str | None = None
    system_prompt: str | None = None
    options: dict[str, Any] = field(default_factory=dict)
    beat_period: float = 1.0

    def to_wire(self) -> dict[str, Any]:
        """Return the specification as a map."""
        return asdict(self)

    def changed(self, changes: Mapping[str, Any]) -> WorkerSpec:
        """Return a copy with other values of `model`, `system_prompt` and options.

        Raises ConfigError for a value or an option that cannot work.
        """
        own = {name: changes[name] for name in ("model", "system_prompt") if name in changes}
        for name, value in own.items():
            if value is not None and not isinstance(value, str):
                raise ConfigError(f"{name} is {reprlib.repr(value)}; it must be a text, or None")
        changed = {name: changes[name] for name in changes if name not in own}
        options = {**self.options, **changed}
        split_options(dict(options))  # raises for bad options, before a worker is started
        return replace(self, options=options, **own)

    def found(self, progress: Progress | None = None) -> WorkerSpec:
        """Return a copy with a path for a name on the hub, so that no worker contacts the hub.

        Blocks while the model is downloaded. progress: as in `find_model`. Raises ModelFormatError.
        """
        if self.model is None:
            return self
        path = find_model(self.model, progress)
        return replace(self, model=str(path)) if path.is_absolute() else self

    @classmethod
    def from_wire(cls, spec: dict[str, Any]) -> WorkerSpec:
        """Return the specification from a map of `to_wire`.

        Raises ConfigError for a map of another version.
        """
        try:
            return cls(**spec)
        except TypeError as error:
            raise ConfigError(f"the front and its worker are of two versions: {error}") from error
