"""A server on localhost that answers as the Hugging Face hub does, with repositories in memory."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit


@dataclass
class Repository:
    """files: by path, as they are at every revision; commits: by revision; token: that it needs."""

    files: dict[str, bytes]
    commits: dict[str, str] = field(default_factory=lambda: {"main": "a" * 40})
    token: str | None = None
    is_gated: bool = False


@dataclass
class FakeHub:
    """repositories: by name. requests: "METHOD path" of each. cuts: bytes after which each of the
    next answers with a file ends, by its path. starts: first bytes of the ranges asked for."""

    repositories: dict[str, Repository]
    url: str = ""
    requests: list[str] = field(default_factory=list)
    cuts: dict[str, list[int]] = field(default_factory=dict)
    starts: list[int] = field(default_factory=list)

    def downloads(self) -> list[str]:
        """Return the files that were asked for, once each."""
        got = [path for path in self.requests if path.startswith("GET ") and "/resolve/" in path]
        asked = [path.split("/", 5)[5] for path in got]
        return list(dict.fromkeys(asked))


def model_files(directory: Path) -> dict[str, bytes]:
    """Return the files of a model directory."""
    return {path.name: path.read_bytes() for path in directory.iterdir() if path.is_file()}


@contextmanager
def fake_hub(repositories: dict[str, Repository]) -> Iterator[FakeHub]:
    """Serve these repositories until the context ends."""
    hub = FakeHub(repositories)

    class Handler(_Handler):
        pass

    Handler.hub = hub
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    hub.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _Handler(BaseHTTPRequestHandler):
    hub: FakeHub
    protocol_version = "HTTP/1.1"

    def log_message(self, *args: object) -> None:
        pass

    def do_GET(self) -> None:
        self._answer(True)

    def do_HEAD(self) -> None:
        self._answer(False)

    def _answer(self, with_body: bool) -> None:
        path = unquote(urlsplit(self.path).path)
        self.hub.requests.append(f"{self.command} {path}")
        pieces = path.strip("/").split("/")
        is_api = pieces[:2] == ["api", "models"]
        repository = self.hub.repositories.get("/".join(pieces[2:4] if is_api else pieces[:2]))
        if len(pieces) < 4:
            self._refuse(404, "EntryNotFound")
            return
        revision = "main" if len(pieces) == 4 else pieces[5 if is_api else 3]
        if (refused := self._refused(repository, revision)) is not None:
            self._refuse(*refused)
            return
        assert repository is not None
        commit = repository.commits.get(revision, revision)
        if is_api:
            files = [{"rfilename": f, "size": len(data)} for f, data in repository.files.items()]
            described = {"id": "/".join(pieces[2:4]), "sha": commit, "siblings": files}
            self._send(json.dumps(described).encode(), {})
            return
        file = "/".join(pieces[4:])
        if file not in repository.files:
            self._refuse(404, "EntryNotFound")
            return
        self._send_file(file, repository.files[file], commit, with_body)

    def _refused(self, repository: Repository | None, revision: str) -> tuple[int, str] | None:
        """Return status and code of an error, for what may not be had or is not there."""
        if repository is None:
            return 401, "RepoNotFound"
        has_token = self.headers.get("Authorization") == f"Bearer {repository.token}"
        if repository.token and not has_token:
            return (403, "GatedRepo") if repository.is_gated else (401, "RepoNotFound")
        if revision not in {*repository.commits, *repository.commits.values()}:
            return 404, "RevisionNotFound"
        return None

    def _send_file(self, file: str, data: bytes, commit: str, with_body: bool) -> None:
        etag = f'"{hashlib.sha256(data).hexdigest()}"'
        headers = {"ETag": etag, "X-Repo-Commit": commit, "Accept-Ranges": "bytes"}
        headers |= {"X-Linked-Size": str(len(data)), "X-Linked-Etag": etag}
        start = 0
        if (asked := self.headers.get("Range")) is not None:
            start = int(asked.removeprefix("bytes=").split("-")[0])
            self.hub.starts.append(start)
            headers["Content-Range"] = f"bytes {start}-{len(data) - 1}/{len(data)}"
        cuts = self.hub.cuts.get(file, [])
        cut = cuts.pop(0) if with_body and cuts else None
        self._send(data[start:], headers, 206 if start else 200, cut, with_body)

    def _send(
        self,
        data: bytes,
        headers: dict[str, str],
        status: int = 200,
        cut: int | None = None,
        with_body: bool = True,
    ) -> None:
        self.send_response(status)
        for key, value in headers.items():
            self.send_header(key, value)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if with_body:
            self.wfile.write(data if cut is None else data[:cut])
        if cut is not None:
            self.close_connection = True

    def _refuse(self, status: int, code: str) -> None:
        self._send(
            b"", {"X-Error-Code": code, "X-Error-Message": f"{code} (test)"}, status, None, False
        )
