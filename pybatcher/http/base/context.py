"""`Context`: the state that the handlers of an application share."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from starlette.requests import Request

from ...calls.any_batcher import AnyBatcher
from ...calls.model_info import ModelInfo
from ...calls.trace_headers import current_trace_headers, headers_of_trace
from ...errors import PybatcherError
from .body_room import BodyRoom
from .connection import CheckCommas, read_body
from .image_hosts import ImageHosts
from .image_sources import load_images
from .model_list import ModelList
from .sampling_fields import bad
from .token_texts import TokenTexts

__all__ = ["Context"]

_T = TypeVar("_T")


class Context:
    """The models, the limits on bodies, and the token texts of each model.

    max_body: the most bytes of a request's body. room: the memory for the bodies of all requests.
    image_hosts: the hosts that may be asked for images; None: no host.
    """

    def __init__(
        self,
        models: ModelList,
        max_body: int,
        room: BodyRoom,
        image_hosts: ImageHosts | None = None,
    ) -> None:
        self.models = models
        self.max_body = max_body
        self._room = room
        self._image_hosts = image_hosts or ImageHosts()
        self._texts: dict[str, tuple[str, TokenTexts]] = {}  # with the model's fingerprint
        self._shared: dict[object, Any] = {}
        self.began = int(time.time())

    async def body(self, request: Request, check: CheckCommas | None = None) -> dict[str, Any]:
        """Return the body of a request. Raises HttpError, ClientGoneError.

        check: refuses a body by its commas, before it is parsed.
        """
        return await read_body(request, self.max_body, self._room, check)

    async def load_images(self, request: Request, messages: list[dict[str, Any]]) -> dict[str, str]:
        """Decode or fetch the images of messages; as the function of this name."""
        return await load_images(request, messages, self._image_hosts, self._room)

    async def texts(self, name: str, batcher: AnyBatcher, options: Mapping[str, Any]) -> TokenTexts:
        """Return the token texts of a model, which log-probabilities need if `options` asks for
        them.

        The texts belong to the model that is served now; a reload can change the vocabulary.
        """
        if "logprobs" not in options:
            return TokenTexts(batcher)
        info = await self.model_info(batcher)
        fingerprint = "" if info is None else info.fingerprint
        known = self._texts.get(name)
        if known is None or known[0] != fingerprint:
            known = self._texts[name] = (fingerprint, TokenTexts(batcher))
        return known[1]

    @staticmethod
    async def model_info(batcher: AnyBatcher) -> ModelInfo | None:
        """Return the description of a model. None: it is not available.

        A closed batcher has no description, and neither has a sidecar that is older than this call.
        """
        try:
            return await batcher.model_info()
        except PybatcherError:
            return None

    def shared(self, make: Callable[[ModelList], _T]) -> _T:
        """Return the application's only instance of `make`, which the first call makes.

        A room of handlers keeps its own state here, so that this room imports none of them.
        """
        if make not in self._shared:
            self._shared[make] = make(self.models)
        made: _T = self._shared[make]
        return made

    def options(self, request: Request) -> dict[str, Any]:
        """Return the call options that the headers of a request contain."""
        options: dict[str, Any] = {}
        if (namespace := request.scope.get("pybatcher.namespace")) is not None:
            options["namespace"] = namespace
        # A key takes turns with other keys, and the tenants that its holder names inside its share.
        names = (options.get("namespace"), request.headers.get("x-tenant"))
        if tenant := "\n".join(name for name in names if name):
            options["tenant"] = tenant
        if current_trace_headers() is None and (trace := headers_of_trace(request.headers)):
            options["trace_headers"] = trace
        if (priority := request.headers.get("x-priority")) is not None:
            try:
                options["priority"] = int(priority)
            except ValueError:
                raise bad("x-priority", priority, "a whole number") from None
        return options

    @staticmethod
    def head(prefix: str, kind: str, model: str) -> dict[str, Any]:
        """Return the first fields of a response's body, which every chunk of a stream repeats."""
        made = f"{prefix}-{secrets.token_hex(12)}"
        return {"id": made, "object": kind, "created": int(time.time()), "model": model}
