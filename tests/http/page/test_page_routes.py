"""The page's files and its feed over HTTP; in a browser, tests/page has it."""

from __future__ import annotations

import hashlib
import re
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
from http_served import served
from starlette.applications import Starlette
from starlette.routing import Mount

import pybatcher.http
from pybatcher import Batcher
from pybatcher.http import application
from pybatcher.testing import fake_batcher

FOLDER = Path(pybatcher.http.__file__).parent / "page" / "files"
FILES = sorted(path for path in FOLDER.rglob("*.*") if path.suffix != ".txt")
CONTENTS = {path: path.read_bytes() for path in FILES}
NAMES = {path: path.relative_to(FOLDER).as_posix() for path in FILES}
TYPES = {".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}


@pytest.fixture
async def batcher() -> AsyncIterator[Batcher]:
    async with fake_batcher() as one:
        yield one


@pytest.fixture
async def plain(batcher: Batcher) -> AsyncIterator[httpx.AsyncClient]:
    async with served(application(batcher)) as url, httpx.AsyncClient(base_url=url) as http:
        yield http


@pytest.fixture
async def guarded(batcher: Batcher) -> AsyncIterator[httpx.AsyncClient]:
    app = application(batcher, api_keys=["one", "two"])
    async with served(app) as url, httpx.AsyncClient(base_url=url) as http:
        yield http


async def test_the_page_and_whether_somebody_is_there(plain: httpx.AsyncClient) -> None:
    page = await plain.get("/")
    assert page.status_code == 200
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    policy = page.headers["content-security-policy"]
    assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self';")
    for word in ("frame-ancestors 'none'", "base-uri 'none'", "connect-src 'self'"):
        assert word in policy
    assert "unsafe" not in policy
    assert page.headers["x-content-type-options"] == "nosniff"
    looked = await plain.head("/")
    assert (looked.status_code, looked.content) == (200, b"")


async def test_each_file_has_its_type_and_is_sent_once(plain: httpx.AsyncClient) -> None:
    for path, content in CONTENTS.items():
        if path.suffix == ".html":
            continue
        found = await plain.get(f"/page/{NAMES[path]}")
        assert found.content == content
        assert found.headers["content-type"].startswith(TYPES[path.suffix])
        for tag in (found.headers["etag"], f'"other", W/{found.headers["etag"]}'):
            again = await plain.get(f"/page/{NAMES[path]}", headers={"if-none-match": tag})
            assert (again.status_code, again.content) == (304, b"")
        other = await plain.get(f"/page/{NAMES[path]}", headers={"if-none-match": '"other"'})
        assert other.status_code == 200


async def test_there_is_nothing_else(plain: httpx.AsyncClient) -> None:
    names = ("none.js", "..%2fguard.py", "%2e%2e/guard.py", "", "page.css/x", "live", "live/")
    for name in (*names, "vendor/LICENSES.txt", "live/../live/live.js%00", "/page.css"):
        assert (await plain.get(f"/page/{name}")).status_code == 404


def test_all_that_the_page_names_is_there_and_nothing_is_elsewhere() -> None:
    names = set(NAMES.values())
    index = (FOLDER / "index.html").read_text()
    named = re.findall(r'(?:src|href)="([^"#]+)"', index)
    assert named
    assert all(name.startswith("page/") and name[5:] in names for name in named)
    used = {name[5:] for name in named}
    for path in FILES:
        text = path.read_text()
        assert not re.search(r"innerHTML|insertAdjacentHTML|document\.write|\beval\(", text)
        if path.parent.name == "vendor":
            continue
        assert not re.findall(r"https?://(?!www\.w3\.org/2000/svg)", text), path.name
        imported = re.findall(r'^import .*from "(\.\.?/[^"]+)";$', text, re.MULTILINE)
        assert len(imported) == text.count('from "'), path.name
        found = {(path.parent / one).resolve().relative_to(FOLDER).as_posix() for one in imported}
        assert found <= names
        used |= found
        assert len(text.splitlines()) < 400
    assert used == names - {"index.html"}
    assert not re.search(r"<script(?! type=\"module\" src=)|<style|\sstyle=|\son\w+=", index)


def test_what_others_have_written_is_unchanged_and_named() -> None:
    """A vendored file is that of its package, whose version, digest and licence are beside it."""
    licences = (FOLDER / "vendor" / "LICENSES.txt").read_text()
    vendored = [path for path in FILES if path.parent.name == "vendor"]
    assert [path.name for path in vendored] == ["markdown-it.js"]
    for path in vendored:
        assert hashlib.sha256(CONTENTS[path]).hexdigest() in licences
    version = re.match(r"/\*! markdown-it (\S+) ", CONTENTS[vendored[0]].decode())
    assert version is not None
    assert f"markdown-it\n{version[1]}, unchanged" in licences


async def test_below_a_path_of_another_application(batcher: Batcher) -> None:
    app = Starlette(routes=[Mount("/llm", application(batcher, api_keys=["one"]))])
    async with served(app) as url, httpx.AsyncClient(base_url=url) as http:
        assert (await http.get("/llm", follow_redirects=True)).url.path == "/llm/"
        for path in ("/llm/", "/llm/page/main.js"):
            assert (await http.get(path)).status_code == 200
        assert (await http.get("/llm/live")).status_code == 401


async def test_where_keys_are_asked_for_the_page_itself_needs_none(
    guarded: httpx.AsyncClient,
) -> None:
    for path in ("/", "/page/main.js"):
        assert (await guarded.get(path)).status_code == 200
    for path in ("/live", "/v1/models", "/pages", "/page"):
        assert (await guarded.get(path)).status_code == 401
