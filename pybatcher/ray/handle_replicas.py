"""`HandleReplicas`: the replicas of a deployment of Ray Serve, through its handle."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import contextmanager
from contextvars import Context
from typing import Any

from typing_extensions import override

from ..errors import EngineFailedError, QueueFullError
from .replicas import Message, Params, ReplicaLostError, Replicas, Routing

__all__ = ["HandleReplicas"]

_RETRY_AFTER = 1.0
_ALL_TIMEOUT = 10.0
"""Seconds that all replicas have to answer a question; health probes wait no longer."""


class HandleReplicas(Replicas):
    """Calls of `Replica` over a handle. handle: a `ray.serve.handle.DeploymentHandle`."""

    def __init__(self, handle: Any) -> None:
        self._handle = handle
        self._streams = handle.options(method_name="stream", stream=True)
        self._asks = handle.options(method_name="ask")

    @override
    async def stream(
        self, method: str, params: Params, routing: Routing
    ) -> AsyncGenerator[list[Message]]:
        # Ray passes all arguments to the router; `PrefixRouter` reads these two by name.
        with _typed_errors():
            answers = _alone(
                self._streams.remote,
                method,
                params,
                prefix=routing.prefix,
                fingerprint=routing.fingerprint,
            )
        has_ended = False
        try:
            while True:
                with _typed_errors():
                    try:
                        messages: list[Message] = await anext(answers)
                    except StopAsyncIteration:
                        has_ended = True
                        return
                yield messages
        finally:
            if not has_ended:
                answers.cancel()

    @override
    async def ask(self, method: str, params: Params) -> Message:
        with _typed_errors():
            answer = _alone(self._asks.remote, method, params)
            try:
                message: Message = await answer
            except asyncio.CancelledError:
                answer.cancel()
                raise
            return message

    @override
    async def ask_all(self, method: str, params: list[Any]) -> list[Message]:
        from ray.serve.exceptions import DeploymentUnavailableError

        try:
            asked = self._handle.broadcast("ask", method, params)
            answers: list[Any] = await asked.results_async(
                timeout_s=_ALL_TIMEOUT, return_exceptions=True
            )
        except (DeploymentUnavailableError, TimeoutError):
            return []
        return [(one[0], one[1]) for one in answers if isinstance(one, (tuple, list))]


def _alone(remote: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Call a method of a handle outside the context of an HTTP request.

    In that context all calls have the id of the HTTP request, by which Ray's router finds waiting
    calls: of several at a time, such as samples of a prompt, it would find only one.
    """
    return Context().run(remote, *args, **kwargs)


@contextmanager
def _typed_errors() -> Iterator[None]:
    """Raise ReplicaLostError or a PybatcherError in place of an exception of Ray."""
    from ray.exceptions import RayActorError, RayError, RayTaskError, WorkerCrashedError
    from ray.serve.exceptions import BackPressureError, DeploymentUnavailableError

    try:
        yield
    except BackPressureError as error:
        raise QueueFullError(str(error), error.retry_after_s or _RETRY_AFTER) from error
    except DeploymentUnavailableError as error:
        raise EngineFailedError(f"the replicas cannot be deployed: {error}") from error
    except RayTaskError as error:
        if isinstance(getattr(error, "cause", None), RayActorError):
            raise ReplicaLostError(str(error)) from error
        raise EngineFailedError(f"a replica could not serve this: {error}") from error
    except (RayActorError, WorkerCrashedError, RayError) as error:
        raise ReplicaLostError(str(error)) from error
