"""`list_response`, `text_json`: JSON bodies whose long lists and texts let other threads run."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any

from starlette.responses import Response

__all__ = ["list_json", "list_response", "text_json"]

_FEW = 2000  # numbers and texts that are written in a millisecond
_PART = 2**16  # characters that are written in less than a millisecond


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


def text_json(texts: Mapping[str, str]) -> bytes:
    """Return a map of texts as JSON. A long text is written in parts, between which it releases
    the GIL.
    """
    fields = []
    for key, text in texts.items():
        parts = [_dumped(text[i : i + _PART])[1:-1] for i in range(0, len(text), _PART)]
        fields.append(f'{_dumped(key)}:"{"".join(parts)}"')
    return f"{{{','.join(fields)}}}".encode("utf-8", "replace")


def _dumped(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
