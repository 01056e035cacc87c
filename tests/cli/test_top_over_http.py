"""`pybatcher top URL`: what a server is doing, from its live feed alone."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest
from http_served import served

from pybatcher import ConfigError, ConnectionLostError
from pybatcher.cli.top_over_http import check_url, feed_into, key_of
from pybatcher.cli.top_view import TopView
from pybatcher.http import application
from pybatcher.testing import fake_batcher

FRAME: dict[str, Any] = {
    "time": 100.0,
    "serial": 1,
    "model": "m",
    "health": {"status": "ready", "reason": "fine"},
    "counts": {"queued": 3, "running": 2, "steps": 9, "kv_total_blocks": 10, "unknown": 1},
    "ttft": {"n": 7, "p50": 0.1, "p95": 0.2, "p99": 0.3},
    "itl": None,
    "queued": None,
    "total": None,
    "step": None,
    "ended": [],
}


async def text_of(url: str, model: str | None = None, key: str | None = None) -> str:
    """Return the frame of a terminal for the first frame of a server."""

    def read() -> str:
        from rich.console import Console

        view = TopView("")
        next(feed_into(view, url, model, key, 10.0))
        console = Console(width=110, height=60, force_terminal=False)
        with console.capture() as captured:
            console.print(view.render(110, 60))
        return captured.get() + view.line()

    return await asyncio.to_thread(read)


async def test_a_server_is_seen_with_its_requests() -> None:
    async with fake_batcher() as batcher:
        app = application({"one": batcher, "two": batcher}, api_keys=["secret"])
        async with served(app) as url:
            async with httpx.AsyncClient(base_url=url, headers={"x-api-key": "secret"}) as http:
                body = {"prompt": "Hi", "max_tokens": 5, "ignore_eos": True}
                for _ in range(3):
                    assert (await http.post("/v1/completions", json=body)).status_code == 200
            text = await text_of(url, "two", "secret")
            assert "pybatcher top  two  ready" in text
            assert "3 completed" in text
            assert text.count("length") == 3
            assert "of 3" in text
            for wrong, complaint in (
                (None, "asks for an API key"),
                ("other", "asks for an API key"),
            ):
                with pytest.raises(ConfigError, match=complaint):
                    await text_of(url, None, wrong)
            with pytest.raises(ConfigError, match="model is 'three'"):
                await text_of(url, "three", "secret")
            assert "one" in await text_of(url, None, "secret")


class Answers(BaseHTTPRequestHandler):
    """Answers each request with the next answer of its server; the last one for all later ones."""

    def do_GET(self) -> None:
        server: Any = self.server
        server.asked.append((self.path, dict(self.headers)))
        answer = server.answers.pop(0) if len(server.answers) > 1 else server.answers[0]
        status, kind, body = answer
        self.send_response(status)
        self.send_header("content-type", kind)
        if status == 302:
            self.send_header("location", "http://127.0.0.1:1/live")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        pass


@contextmanager
def answering(*answers: tuple[int, str, bytes]) -> Iterator[Any]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Answers) as server:
        server.answers, server.asked = list(answers), []  # type: ignore[attr-defined]
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


def url_of(server: Any) -> str:
    return f"http://127.0.0.1:{server.server_address[1]}"


def events(*frames: Any) -> tuple[int, str, bytes]:
    data = b"".join(b": comment\n\ndata: %s\n\n" % json.dumps(one).encode() for one in frames)
    return 200, "text/event-stream; charset=utf-8", data


def test_it_asks_again_where_a_response_has_ended() -> None:
    later = {**FRAME, "time": 103.0, "serial": 5, "counts": {**FRAME["counts"], "steps": 39}}
    with answering(events(FRAME), events(later)) as server:
        view = TopView("")
        frames = feed_into(view, url_of(server), "a b", "key", None)
        next(frames)
        assert "0 steps/s" in view.line()
        assert "TTFT 100.0/200.0/300.0 ms" in view.line()
        next(frames)
        assert "10 steps/s" in view.line()
        assert "2 running 3 waiting" in view.line()
        frames.close()
    (first, headers), (second, _) = server.asked[:2]
    assert (first, second) == ("/live?model=a%20b", "/live?model=a%20b&after=1")
    assert headers["Authorization"] == "Bearer key"


def test_a_server_that_goes_and_another_that_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pybatcher.cli.top_over_http._PAUSE", 0.0)
    again = {**FRAME, "time": 1.0, "counts": {**FRAME["counts"], "steps": 1}}
    unavailable = (503, "application/json", b'{"error": {"message": "later"}}')
    with answering(events(FRAME), unavailable, events(again)) as server:
        view = TopView("")
        frames = feed_into(view, url_of(server), None, None, None)
        next(frames)
        next(frames)
        assert "hung" in view.line()
        next(frames)
        assert "ready" in view.line()
        assert "0 steps/s" in view.line()
        frames.close()
    assert server.asked[1][0] == "/live?after=1"


ODD: list[Any] = [None, True, -1, 1e400, "x", [], [[]], {}, {"a": 1}, "9" * 5000]


@pytest.mark.parametrize("field", sorted(FRAME))
def test_frames_of_any_other_kind_are_a_typed_error(field: str) -> None:
    for value in ODD:
        with answering(events({**FRAME, field: value})) as server:
            view = TopView("")
            frames = feed_into(view, url_of(server), None, None, None)
            with suppress(ConnectionLostError):
                next(frames)
                assert view.line()


@pytest.mark.parametrize(
    ("answer", "kind", "complaint"),
    [
        ((200, "text/html", b"<html>"), ConnectionLostError, "has no live feed of pybatcher"),
        ((404, "text/html", b"<html>"), ConfigError, "status 404"),
        ((404, "text/html", b'{"error": []}'), ConfigError, "status 404"),
        ((302, "text/html", b""), ConfigError, "status 302"),
        ((429, "text/html", b'{"error": {"message": "8 watch"}}'), ConnectionLostError, "8 watch"),
        ((200, "text/event-stream", b"data: nothing\n\n"), ConnectionLostError, "sends no frames"),
        ((200, "text/event-stream", b"data: []\n\n"), ConnectionLostError, "sends no frames"),
        (
            (200, "text/event-stream", b'data: {"error": {"message": "x"}}\n\n'),
            ConnectionLostError,
            "has ended its feed",
        ),
    ],
)
def test_other_servers_are_a_typed_error(
    answer: tuple[int, str, bytes], kind: type[Exception], complaint: str
) -> None:
    with answering(answer) as server, pytest.raises(kind, match=complaint):
        next(feed_into(TopView(""), url_of(server), None, "key", None))


def test_nobody_there_is_a_typed_error() -> None:
    with pytest.raises(ConnectionLostError, match=r"no live feed at http://127\.0\.0\.1:1: "):
        next(feed_into(TopView(""), "http://127.0.0.1:1", None, None, None))


def test_names_of_a_server_do_not_control_the_terminal() -> None:
    hostile = "m\x1b]0;evil\x07\n"
    frame = {**FRAME, "model": hostile, "health": {"status": hostile, "reason": hostile}}
    with answering(events(frame)) as server:
        text = asyncio.run(text_of(url_of(server)))
    assert "\x1b" not in text
    assert "\x07" not in text


@pytest.mark.parametrize(
    "url",
    [
        *("", "x", "localhost:8000", "ftp://x", "http://", "http://x:99999", "http://["),
        *("http://x/?a", "http://x/#a", "http://x/\n", "http://\u00e9", "file:///etc/passwd"),
    ],
)
def test_addresses_that_are_none(url: str) -> None:
    with pytest.raises(ConfigError, match="url is "):
        check_url(url)


def test_addresses() -> None:
    assert check_url("http://127.0.0.1:8000/") == "http://127.0.0.1:8000"
    assert check_url("https://[::1]:8000/llm") == "https://[::1]:8000/llm"


def test_the_key_comes_from_a_file_or_the_environment(tmp_path: Path) -> None:
    assert key_of(None, {}) is None
    assert key_of(None, {"PYBATCHER_API_KEY": ""}) is None
    assert key_of(None, {"PYBATCHER_API_KEY": "one"}) == "one"
    path = tmp_path / "keys"
    path.touch(mode=0o600)
    path.write_text("# mine\ntwo\nthree\n")
    assert key_of(path, {"PYBATCHER_API_KEY": "one"}) == "two"
    for wrong in ("\u00e9", "a\nb"):
        with pytest.raises(ConfigError, match="PYBATCHER_API_KEY"):
            key_of(None, {"PYBATCHER_API_KEY": wrong})
