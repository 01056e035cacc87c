"""Tenants: the names among which the engine's time is shared fairly. Pure.

Each connection of the sidecar is its own tenant. A client with several connections may name the
tenant of its calls with the opt `tenant`: then they have one share together. The front adds the
tenant to every call that it sends to its worker, in the same opt; the worker's session has no
tenant of its own and keeps that of the call.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, TypeVar

from ...calls.call import CallOptions
from .wire_fields import ASKED

__all__ = ["connection_tenant", "read_tenant", "with_tenant"]

_Options = TypeVar("_Options", bound=CallOptions)

_LONGEST = 256
"""Characters; the scheduler keeps the name as long as it has requests."""


def connection_tenant(number: int) -> str:
    """Return the tenant of the front's connection with that number."""
    return f"connection {number}"


def read_tenant(opts: Mapping[str, Any]) -> str:
    """Return the opt `tenant`; "" without one. Raises InvalidRequestError."""
    said = opts.get("tenant")
    if said is None:
        return ""
    return ASKED.text(said, "tenant")


def with_tenant(options: _Options, own: str) -> _Options:
    """Return the call with its tenant for the scheduler.

    own: the tenant of the connection; "" in the worker, where the front has set the call's. A name
        from a client never equals the tenant of a connection.

    Raises InvalidRequestError for a name that is too long.
    """
    if not own:
        return options
    said = options.tenant
    if len(said) > _LONGEST:
        raise ASKED.bad("tenant", said, f"a text of at most {_LONGEST} characters")
    return replace(options, tenant=f"named {said}" if said else own)
