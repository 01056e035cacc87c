"""`list_response`: a JSON body whose long list is written beside the event loop."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any

from starlette.responses import Response

__all__ = ["list_json", "list_response"]

_FEW = 2000  # numbers and texts that are written in a millisecond


async def list_response(
    head: Mapping[str, Any], name: str, items: Iterable[Any], *, n_values: int
) -> Response:
    """Return a response with the body `{**head, name: [*items]}`, in which `head` has `name` too.

    items: may be a generator, which then runs beside the loop. n_values: about the number of values
        of all items; few values are written on the loop.
    """
    write = partial(list_json, head, name, items)
    written = write() if n_values <= _FEW else await asyncio.to_thread(write)
    return Response(written, media_type="application/json")


def list_json(head: Mapping[str, Any], name: str, items: Iterable[Any]) -> bytes:
    """Return the body of `list_response` as JSON.

    Each item is made and written by itself: on another thread, this holds the GIL for no longer.
    """
    parts = [_dumped(item) for item in items]
    fields = [
        f"{_dumped(key)}:" + (f"[{','.join(parts)}]" if key == name else _dumped(value))
        for key, value in head.items()
    ]
    return f"{{{','.join(fields)}}}".encode()


def _dumped(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
