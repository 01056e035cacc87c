"""`ModelList`: the batchers of a server by the names of their models."""

from __future__ import annotations

from collections.abc import Mapping

from ...calls.any_batcher import AnyBatcher
from ...errors import ConfigError
from ...errors.checks import short
from .http_error import HttpError

__all__ = ["ModelList"]


class ModelList:
    """The batchers of a server by name. The first one serves requests without a model name.

    batchers: one batcher, which is served under its own model's name, or several by name.
    """

    def __init__(self, batchers: AnyBatcher | Mapping[str, AnyBatcher]) -> None:
        if isinstance(batchers, AnyBatcher):
            self._given: Mapping[str, AnyBatcher] = {"": batchers}
        elif isinstance(batchers, Mapping) and batchers:
            self._given = dict(batchers)
            for name, batcher in self._given.items():
                if not isinstance(name, str) or not isinstance(batcher, AnyBatcher):
                    raise ConfigError(
                        f"batchers[{short(name)}] is {short(batcher)}; names must be texts, and "
                        "all others batchers or clients"
                    )
        else:
            raise ConfigError(
                f"batchers is {short(batchers)}; it must be a batcher, a client, or a mapping of "
                "names to these"
            )

    @property
    def by_name(self) -> dict[str, AnyBatcher]:
        """All batchers by the names of their models. The batchers must have been started."""
        return {name or batcher.model_name: batcher for name, batcher in self._given.items()}

    def find(self, name: object) -> tuple[str, AnyBatcher]:
        """Return the name and the batcher of a model. Raises HttpError (404)."""
        batchers = self.by_name
        if name is None or name == "":
            return next(iter(batchers.items()))
        batcher = batchers.get(name) if isinstance(name, str) else None
        if batcher is None:
            known = ", ".join(batchers)
            raise HttpError(
                404,
                f"model is {short(name)}, which is not served here; there is: {known}",
                code="model_not_found",
                param="model",
            )
        assert isinstance(name, str)
        return name, batcher
