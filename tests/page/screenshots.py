"""Draw the page as docs/http.md shows it: `make screenshots`.

    python tests/page/screenshots.py docs/images          # the pictures of the documentation
    python tests/page/screenshots.py FOLDER --all         # every view, size and colour scheme

The answers are those of the shipped model; a load is made for the live view, and its worker killed.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import shutil
import signal
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
from chat_page import ChatPage
from chromium import open_chromium
from PIL import Image
from playwright.sync_api import Browser, Page, expect
from serving_doubles import Serving, serving

SIZES = {1440: 900, 768: 1000, 360: 740}
SCHEMES = ("light", "dark")
DOCUMENTED = [("chat", 1440, "light"), ("live", 1440, "dark")]
DOCUMENTED += [("form", 360, "dark"), ("live", 768, "light")]
N_COLOURS = 160
SCHEMA = {
    "title": "An animal",
    "type": "object",
    "properties": {
        "animal": {"enum": ["fox", "owl", "bear", "hare"]},
        "colour": {"enum": ["red", "brown", "grey", "white"]},
        "legs": {"enum": [2, 4]},
        "friendly": {"type": "boolean"},
        "sound": {"type": "string", "maxLength": 12},
    },
    "required": ["animal", "colour", "legs", "friendly", "sound"],
    "additionalProperties": False,
}


@contextmanager
def load(url: str) -> Iterator[None]:
    """Have requests of different lengths come and go while the block runs."""
    ended = threading.Event()
    texts = ["Tell me a story about a fox.", "What is 2 plus 3?", "Tell me a story about an owl."]

    def ask(number: int) -> None:
        for i in itertools.count():
            body = {"messages": [{"role": "user", "content": texts[(i + number) % len(texts)]}]}
            more = {"max_tokens": 60 + 90 * ((i + number) % 7), "ignore_eos": True, "seed": i}
            try:
                httpx.post(f"{url}/v1/chat/completions", json={**body, **more}, timeout=120)
            except httpx.HTTPError:
                return
            if ended.wait(0.3 + 0.4 * ((i * number) % 4)):
                return

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        ended.set()
        for thread in threads:
            thread.join()


def open_page(browser: Browser, url: str, width: int, scheme: str) -> Page:
    size: Any = {"width": width, "height": SIZES[width]}
    page = browser.new_context(viewport=size, color_scheme=scheme).new_page()  # type: ignore[arg-type]
    page.goto(url)
    return page


def draw_chat(page: Page) -> None:
    chat = ChatPage(page)
    chat.option("Seed", "11")
    page.evaluate(
        "for (const one of document.querySelectorAll('#settings details')) one.open = false"
    )
    chat.ask("What is 2 plus 3?")
    chat.option("Answers side by side", "2")
    page.get_by_label("Show how likely each token was").check()
    narrow = "document.querySelectorAll('#settings details').forEach((one) => one.open = false);"
    page.evaluate(narrow + "options.open = innerWidth > 1120")
    chat.ask("Tell me a story about a fox.")
    page.locator(".tokens").last.scroll_into_view_if_needed()
    page.locator(".tokens").first.locator(".token").nth(4).hover()
    expect(page.locator(".several .detail").first).to_be_visible()


def draw_form(page: Page) -> None:
    chat = ChatPage(page)
    chat.option("Seed", "5")
    chat.option("The answer is one instance of it", json.dumps(SCHEMA, indent=2))
    close = "for (const one of document.querySelectorAll('details')) one.open = false;"
    page.evaluate(close + "options.open = innerWidth > 1120")
    chat.ask("Describe an animal.")


def main() -> None:
    """Draw the pictures into a folder."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--all", action="store_true")
    asked = parser.parse_args()
    asked.folder.mkdir(parents=True, exist_ok=True)
    wanted = DOCUMENTED
    if asked.all:
        wanted = list(itertools.product(("chat", "form", "live"), SIZES, SCHEMES))
    path = os.environ.get("PYBATCHER_CHROMIUM") or shutil.which("chromium")
    assert path is not None
    with tempfile.TemporaryDirectory() as folder, open_chromium(path) as browser:
        arguments = ("--no-socket", "--http", "127.0.0.1:0", "--n-ctx", "16384")
        with serving(Path(folder), *arguments, "--n-parallel", "4") as running:
            draw_all(browser, running, wanted, asked.folder)


def draw_all(
    browser: Browser, running: Serving, wanted: list[tuple[str, int, str]], folder: Path
) -> None:
    live = []
    for view, width, scheme in wanted:
        page = open_page(browser, running.url, width, scheme)
        if view == "live":
            page.goto(f"{running.url}#live")
            live.append((page, folder / f"page-live-{width}-{scheme}.png"))
            continue
        (draw_chat if view == "chat" else draw_form)(page)
        save(page, folder / f"page-{view}-{width}-{scheme}.png")
        page.context.close()
    if live:
        expect(live[0][0].locator(".state")).to_contain_text("Requests are served")
        with load(running.url):
            live[0][0].wait_for_timeout(45_000)
            os.kill(running.worker_pid, signal.SIGKILL)
            live[0][0].wait_for_timeout(50_000)
            for page, path in live:
                save(page, path)
                page.context.close()


def save(page: Page, path: Path) -> None:
    """Save a picture with few colours, so that it is small."""
    page.screenshot(path=path)
    with Image.open(path) as image:
        image.convert("RGB").quantize(N_COLOURS).save(path, optimize=True)
    print(f"{path}: {path.stat().st_size // 1024} KiB")


if __name__ == "__main__":
    main()
