"""Tenants: the names among which the engine's time is shared fairly. Pure.

Each connection of the sidecar is its own tenant. A client with several connections may name the
tenant of its calls with the opt `tenant`: then they have one share together. The front adds the
tenant to every call that it sends to its worker, in the same opt; the worker's session has no
tenant of its own and keeps that of the call.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from hashlib import sha256
from typing import Any, TypeVar

from ...calls.arguments import check_name
from ...calls.call import CallOptions
from ...errors.checks import LONGEST_NAME
from .wire_fields import ASKED

__all__ = ["connection_tenant", "own_name", "read_tenant", "with_tenant"]

_Options = TypeVar("_Options", bound=CallOptions)


def connection_tenant(number: int) -> str:
    """Return the tenant of the front's connection with that number."""
    return f"connection {number}"


def read_tenant(opts: Mapping[str, Any]) -> str | None:
    """Return the opt `tenant`; None without one. Raises InvalidRequestError."""
    said = opts.get("tenant")
    return None if said is None else ASKED.text(said, "tenant")


def own_name(kind: str, name: str) -> str:
    """Return a tenant that no tenant of another kind equals, and that a call may have.

    A name that would be too long is replaced by its digest.
    """
    made = f"{kind} {name}" if name else kind
    return made if len(made) <= LONGEST_NAME else f"{kind} {sha256(name.encode()).hexdigest()}"


def with_tenant(options: _Options, own: str) -> _Options:
    """Return the call with its tenant for the scheduler.

    own: the tenant of the connection; "" in the worker, where the front has set the call's. A name
        from a client never equals the tenant of a connection.

    Raises InvalidRequestError for a name that is too long.
    """
    if not own:
        return options
    said = check_name("tenant", options.tenant)
    return replace(options, tenant=own_name("named", said) if said else own)
