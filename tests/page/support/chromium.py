"""A Chromium for tests of the page, and pages in it that are watched for what none may do."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

from playwright.sync_api import Browser, Page, Route, expect, sync_playwright

__all__ = ["Watched", "open_chromium"]

ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
PATIENCE = 120_000  # ms; the machine may be busy
_NOTE_VIOLATIONS = """
window.violations = [];
document.addEventListener("securitypolicyviolation",
    (event) => window.violations.push(`${event.violatedDirective} ${event.blockedURI}`));
"""


@contextmanager
def open_chromium(path: str) -> Iterator[Browser]:
    """Open the program at `path`, with a profile of its own that is thrown away."""
    expect.set_options(timeout=PATIENCE)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=ARGUMENTS)
        yield browser
        browser.close()


class Watched:
    """Pages of one test.

    sent: the bodies of the chats that were asked for.
    may_fail: texts of errors in the console that the test means to cause.
    """

    def __init__(self, browser: Browser) -> None:
        self._browser = browser
        self._contexts: list[Any] = []
        self._wrong: list[str] = []
        self.sent: list[dict[str, Any]] = []
        self.may_fail: tuple[str, ...] = ()

    def open(
        self, url: str, *, width: int = 1280, height: int = 800, more: Any = None, **of_context: Any
    ) -> Page:
        """Open a page. more: fields that each chat has besides those that the page sends."""
        context = self._browser.new_context(
            viewport={"width": width, "height": height}, **of_context
        )
        context.set_default_timeout(PATIENCE)
        context.add_init_script(_NOTE_VIOLATIONS)
        self._contexts.append(context)
        own = urlsplit(url).netloc

        def look(route: Route) -> None:
            request = route.request
            if urlsplit(request.url).netloc != own:
                self._wrong.append(f"asked for {request.url}")
                route.abort()
            elif request.method == "POST" and request.url.endswith("/chat/completions"):
                body = {**json.loads(request.post_data or ""), **(more or {})}
                self.sent.append(body)
                route.continue_(post_data=json.dumps(body))
            else:
                route.continue_()

        context.route("**/*", look)
        page = context.new_page()
        page.on("pageerror", lambda error: self._wrong.append(f"raised {error}"))
        page.on("console", self._note)
        page.goto(url)
        return page

    def close(self) -> None:
        """Close all pages, while their server is there. Fails with what they have done wrong."""
        for context in self._contexts:
            for page in context.pages:
                self._wrong += page.evaluate("window.violations")
            context.close()
        self._contexts.clear()
        assert not self._wrong, self._wrong

    def _note(self, message: Any) -> None:
        is_bad = message.type in ("error", "warning")
        if is_bad and not any(text in message.text for text in self.may_fail):
            self._wrong.append(f"{message.type}: {message.text}")
