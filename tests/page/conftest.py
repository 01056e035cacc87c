"""The page at / in a real Chromium: `make test-page` brings what these tests need.

They need a browser, so `make test` does not collect them. Whatever a test does, the page may not
ask another host for anything, break its content security policy, or raise an error.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest

if os.environ.get("PYBATCHER_TEST_SUITES") != "page":
    collect_ignore_glob = ["test_*.py"]
else:
    from chromium import Watched, open_chromium
    from page_server import ServePage, page_served
    from serving_doubles import Serving, serving

SERVE = ("--no-socket", "--http", "127.0.0.1:0", "--n-ctx", "16384")


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    path = os.environ.get("PYBATCHER_CHROMIUM") or shutil.which("chromium")
    assert path is not None, "there is no Chromium: `make test-page` says how to have one"
    with open_chromium(path) as one:
        yield one


@pytest.fixture(scope="session")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    """The shipped model, served for all tests that do it no harm."""
    with serving(tmp_path_factory.mktemp("serve"), *SERVE) as one:
        yield one


@pytest.fixture
def serve_page() -> Iterator[ServePage]:
    """Serves the page as `page_served` does, until all that `watched` has opened is closed."""
    with ExitStack() as servers:
        yield lambda *args, **kwargs: servers.enter_context(page_served(*args, **kwargs))


@pytest.fixture
def watched(browser: Any, serve_page: ServePage) -> Iterator[Watched]:
    """Opens pages; fails where one of them has done what no page may.

    It asks for the servers, so that they are there as long as its pages: what a page still loads
    when its server is gone is an error.
    """
    one = Watched(browser)
    yield one
    one.close()
