"""`pybatcher top URL`: the view of a server that is reached over HTTP, from its live feed."""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Generator, Mapping
from contextlib import closing
from dataclasses import fields
from http.client import HTTPException
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.parse import quote, urlsplit
from urllib.request import HTTPRedirectHandler, ProxyHandler, Request, build_opener

from typing_extensions import override

from ..calls.statistics import BatcherStatistics, Health
from ..calls.telemetry import RequestEvent, StepEvent
from ..errors import ConfigError, ConnectionLostError
from ..errors.checks import short
from ..sidecar.front.api_keys import read_api_keys
from .top_view import PERCENTILES, Times, TopView

__all__ = ["KEY_VARIABLE", "check_url", "feed_into", "key_of"]

KEY_VARIABLE = "PYBATCHER_API_KEY"

_ANSWER_TIMEOUT = 10.0  # seconds without a frame; the server sends two a second
_PAUSE = 1.0  # seconds between two attempts to reach a server that is gone
_MOST_BYTES = 2**22  # of a line
_COUNTS = frozenset(field.name for field in fields(BatcherStatistics))


def check_url(url: str) -> str:
    """Return a server's URL without a slash at its end. Raises ConfigError."""
    try:
        parts = urlsplit(url)
        is_url = parts.scheme in ("http", "https") and bool(parts.hostname)
        _ = parts.port  # raises ValueError
    except ValueError:
        is_url = False
    if not is_url or parts.query or parts.fragment or not url.isascii() or not url.isprintable():
        raise ConfigError(
            f"url is {short(url)}; it must be the address of a server, as http://127.0.0.1:8000"
        )
    return url.rstrip("/")


def key_of(file: Path | None, environ: Mapping[str, str] = os.environ) -> str | None:
    """Return the first key of a file, or else the one of $PYBATCHER_API_KEY. Raises ConfigError."""
    if file is not None:
        return read_api_keys(file)[0]
    key = environ.get(KEY_VARIABLE) or None
    if key is not None and not (key.isascii() and key.isprintable()):
        raise ConfigError(f"${KEY_VARIABLE} is no key: one is of ASCII characters without spaces")
    return key


def feed_into(
    view: TopView, url: str, model: str | None, key: str | None, seconds: float | None
) -> Generator[None]:
    """Update a view with the frames of a server; yield after each, for `seconds` seconds.

    If the server cannot be reached any more, the view says so, and it is tried again every second.
    Raises ConfigError if the server refuses, and ConnectionLostError if it cannot be reached at
    first, or if it is none of pybatcher.
    """
    end = math.inf if seconds is None else time.monotonic() + seconds
    feed = _Feed(view)
    while time.monotonic() < end:
        try:
            with closing(_frames(url, model, key, feed.serial)) as frames:
                for frame in frames:
                    feed.take(frame)
                    yield
                    if time.monotonic() >= end:
                        return
        except (OSError, HTTPException) as error:
            if feed.last is None:
                raise ConnectionLostError(
                    f"there is no live feed at {url}: {getattr(error, 'reason', error) or error}"
                ) from error
            feed.lose()
            yield
            time.sleep(min(_PAUSE, max(end - time.monotonic(), 0.0)))


def _frames(
    url: str, model: str | None, key: str | None, after: int | None
) -> Generator[dict[str, Any]]:
    """Yield the frames of one response of the live feed. Raises OSError and HTTPException."""
    query = [] if model is None else [f"model={quote(model, safe='')}"]
    query += [] if after is None else [f"after={after}"]
    request = Request(f"{url}/live?{'&'.join(query)}")
    if key is not None:
        request.add_header("authorization", f"Bearer {key}")
    is_local = urlsplit(url).hostname in ("localhost", "127.0.0.1", "::1")
    handlers = [_NoRedirects(), *([ProxyHandler({})] if is_local else [])]
    opener = build_opener(*handlers)
    try:
        response = opener.open(request, timeout=_ANSWER_TIMEOUT)
    except HTTPError as error:
        with error:
            raise _refusal(error, url) from None
    with response:
        if not response.headers.get("content-type", "").startswith("text/event-stream"):
            raise ConnectionLostError(f"the server at {url} has no live feed of pybatcher")
        while line := response.readline(_MOST_BYTES):
            if line.startswith(b"data:"):
                yield _parsed(line[5:], url)


class _NoRedirects(HTTPRedirectHandler):
    """Takes a redirection for a refusal: the key is for the host that was named."""

    @override
    def redirect_request(self, *_: Any) -> None:
        return None


def _refusal(error: HTTPError, url: str) -> Exception:
    if error.code == 401:
        return ConfigError(
            f"the server at {url} asks for an API key: give --api-key-file, or set ${KEY_VARIABLE}"
        )
    try:
        message = str(json.loads(error.read(_MOST_BYTES))["error"]["message"])
    except (OSError, HTTPException, ValueError, LookupError, TypeError):
        message = f"it has no live feed of pybatcher: status {error.code}"
    if error.code in (429, 502, 503):
        return OSError(message)
    return ConfigError(f"the server at {url} refuses: {short(message)}")


def _parsed(data: bytes, url: str) -> dict[str, Any]:
    try:
        frame = json.loads(data)
    except (ValueError, RecursionError):
        frame = None
    if not isinstance(frame, dict):
        raise ConnectionLostError(f"the server at {url} sends no frames of a live feed")
    if "error" in frame:
        raise ConnectionLostError(f"the server at {url} has ended its feed: {short(frame)}")
    return frame


class _Feed:
    """Turns frames into the updates and events of a view."""

    def __init__(self, view: TopView) -> None:
        self._view = view
        self.last: BatcherStatistics | None = None
        self.serial: int | None = None
        self._now = 0.0
        self._seen = 0.0  # time.monotonic of the last frame

    def take(self, frame: Mapping[str, Any]) -> None:
        """Show a frame. Raises ConnectionLostError for one without the fields of a frame."""
        try:
            self._take(frame)
        except (LookupError, TypeError, ValueError, AttributeError, OverflowError) as error:
            raise ConnectionLostError(
                f"the server sends frames of another version: {type(error).__name__}: "
                f"{short(str(error))}"
            ) from error

    def _take(self, frame: Mapping[str, Any]) -> None:
        now, counts = _number(frame["time"]), frame["counts"]
        if now < self._now:  # another server, whose counts and clock begin anew
            self._view.clear()
            self.last = None
        self._now, self._seen = now, time.monotonic()
        self.serial = int(frame["serial"])
        self._view.rename(str(frame["model"]))
        if counts is not None or self.last is None:
            known = {name: int(n) for name, n in (counts or {}).items() if name in _COUNTS}
            known["kv_total_blocks"] = max(known.get("kv_total_blocks", 0), 1)
            self.last = BatcherStatistics(**{**dict.fromkeys(_COUNTS, 0), **known})
        if (step := frame["step"]) is not None:
            self._view.take(_step_event(step, now, self.last))
        for ended in frame["ended"]:
            self._view.take(_request_event(ended))
        health = Health(frame["health"]["status"], str(frame["health"]["reason"]))
        self._view.update(self.last, health, now, _times(frame))

    def lose(self) -> None:
        """Show that the server cannot be reached."""
        assert self.last is not None
        now = self._now + time.monotonic() - self._seen
        self._view.update(self.last, Health("hung", "the server cannot be reached"), now)


def _number(value: Any) -> float:
    """Return a finite number. Raises TypeError and ValueError."""
    number = float(value)
    if not math.isfinite(number):
        raise ValueError("a number is not finite")
    return number


def _times(frame: Mapping[str, Any]) -> Times:
    """Return the percentiles of a frame, which has those of the last minute."""
    names = {"TTFT": "ttft", "ITL": "itl", "queued": "queued", "total": "total"}
    times: Times = {}
    for label, name in names.items():
        found = frame.get(name) or {}
        values = tuple(_number(found.get(f"p{percent}", 0.0)) for percent in PERCENTILES)
        times[label] = values, int(found.get("n", 0))
    return times


def _step_event(step: Mapping[str, Any], now: float, counts: BatcherStatistics) -> StepEvent:
    """Return an event of the mean step of the last seconds, with mean numbers of rows."""
    rows: dict[str, Any] = {
        name: _number(step[name])
        for name in ("seconds", "engine_seconds", "decode_rows", "prefill_rows", "draft_rows")
    }
    return StepEvent(
        when=now,
        **rows,
        n_sequences=0,
        queued=counts.queued,
        queued_tokens=counts.queued_tokens,
        running=counts.running,
        kv_total_blocks=counts.kv_total_blocks,
        kv_free_blocks=counts.kv_free_blocks,
        kv_cached_blocks=counts.kv_cached_blocks,
    )


def _request_event(ended: Mapping[str, Any]) -> RequestEvent:
    itl, ttft = ended["itl"], ended["ttft"]
    return RequestEvent(
        when=_number(ended["when"]),
        request_id=int(ended["id"]),
        namespace="",
        priority=0,
        finish_reason=str(ended["reason"]),
        prompt_tokens=int(ended["prompt"]),
        cached_tokens=int(ended["cached"]),
        generated_tokens=int(ended["generated"]),
        queued=_number(ended["queued"]),
        ttft=None if ttft is None else _number(ttft),
        itl=() if itl is None else (_number(itl),),
        total=_number(ended["total"]),
        preemptions=int(ended["preemptions"]),
        recomputed_tokens=0,
    )
