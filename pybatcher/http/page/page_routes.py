"""Handlers that serve the files of the page at /."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from functools import cache
from importlib import resources
from typing import Any, NamedTuple

from starlette.requests import Request
from starlette.responses import Response

from ..base.context import Context
from ..base.http_error import HttpError

__all__ = ["ROUTES"]

_TYPES = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}
_POLICY = "; ".join(
    [
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self' data:",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
        "trusted-types 'none'",
    ]
)
_HEADERS = {
    "cache-control": "no-cache",
    "content-security-policy": _POLICY,
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
}


class _File(NamedTuple):
    content: bytes
    headers: dict[str, str]


@cache
def _files() -> Mapping[str, _File]:
    """Return all files of the page by name. No other file is served."""
    found: dict[str, _File] = {}
    folders = [("", resources.files(__package__) / "files")]
    for prefix, folder in folders:
        for file in folder.iterdir():
            kind = _TYPES.get(file.name.rpartition(".")[2])
            if file.is_dir():
                folders.append((f"{prefix}{file.name}/", file))
            elif kind is not None:
                content = file.read_bytes()
                tag = '"' + hashlib.sha256(content).hexdigest()[:32] + '"'
                headers = {"content-type": kind, "etag": tag, **_HEADERS}
                found[prefix + file.name] = _File(content, headers)
    return found


async def page(context: Context, request: Request) -> Any:
    """GET /, HEAD /: the page. Agents send HEAD to check that the server is up."""
    return _sent("index.html", request)


async def part(context: Context, request: Request) -> Any:
    """GET /page/{name:path}: a script, a style sheet or an image."""
    return _sent(request.path_params["name"], request)


def _sent(name: str, request: Request) -> Response:
    file = _files().get(name)
    if file is None:
        raise HttpError(404, f"there is nothing at {request.url.path}", code="unknown_url")
    known = request.headers.get("if-none-match", "").replace("W/", "").split(",")
    if file.headers["etag"] in (one.strip() for one in known):
        return Response(status_code=304, headers=file.headers)
    return Response(file.content, headers=file.headers)


ROUTES = [
    ("/", "GET", page),
    ("/page/{name:path}", "GET", part),
]
"""The path, method and handler of each endpoint."""
