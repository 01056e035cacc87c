"""`ServedReplica` and `Ingress`: the classes that Ray Serve constructs in its processes."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from typing import Any, NoReturn

from ..batcher import Batcher
from ..errors import PybatcherError
from .handle_replicas import HandleReplicas
from .replica import Replica
from .replicated_batcher import ReplicatedBatcher

__all__ = ["Ingress", "ServedReplica"]

_LOGGER = logging.getLogger("pybatcher")
_BATCHER_FAILED = 70  # exit status, EX_SOFTWARE


class ServedReplica(Replica):
    """A `Replica` that opens its model when it is constructed.

    If the engine has failed for good, or hangs, the process exits before a caller gets an error:
    another replica continues its requests, and Ray starts a new one.

    model, options: arguments of the `Batcher`.
    """

    async def __init__(  # type: ignore[misc]  # Ray awaits it
        self, model: str | None, options: Mapping[str, Any]
    ) -> None:
        super().__init__(Batcher(model, on_failure=_give_up, **options))
        await self.start()


class Ingress:
    """The ASGI application of `pybatcher.http` over replicas.

    replicas: a handle of `ServedReplica`. model_name: the name for requests; None: the model's own.
    options: options of `pybatcher.http.application`.
    """

    async def __init__(  # type: ignore[misc]  # Ray awaits it
        self, replicas: Any, model_name: str | None, options: Mapping[str, Any]
    ) -> None:
        self._batcher = ReplicatedBatcher(HandleReplicas(replicas))
        self._model_name = model_name
        self._options = options
        await self._batcher.start()

    def __serve_build_asgi_app__(self) -> Any:
        """Return the application. Ray calls this once."""
        from ..http import application

        name = self._model_name or self._batcher.model_name
        return application({name: self._batcher}, **self._options)


def _give_up(error: PybatcherError) -> NoReturn:
    """Exit at once. `on_failure` calls it before the callers get the error."""
    _LOGGER.critical("replica %d ends: %s", os.getpid(), error)
    os._exit(_BATCHER_FAILED)
