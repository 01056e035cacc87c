"""The live view: figures that move, time lines, restarts; a feed that ends when nobody looks."""

from __future__ import annotations

import os
import re
import signal
import time
from pathlib import Path
from typing import Any

import httpx
from chromium import Watched
from page_server import Script, ServePage, page_served
from playwright.sync_api import Page, expect
from serving_doubles import Serving, serving

SERVE = ("--no-socket", "--http", "127.0.0.1:0", "--n-ctx", "16384")
TITLES = ["Throughput", "Requests", "Time to first token", "Time between tokens"]
TITLES += ["KV cache", "Prefix cache hits"]
SECRET = "a text of a request"


def generate(url: str, n_tokens: int = 20, key: str = "") -> None:
    body: dict[str, Any] = {"messages": [{"role": "user", "content": SECRET}]}
    body |= {"max_tokens": n_tokens, "ignore_eos": True}
    headers = {"x-api-key": key} if key else {}
    answer = httpx.post(f"{url}/v1/chat/completions", json=body, headers=headers, timeout=60)
    assert answer.status_code == 200


def fact(page: Page, name: str) -> Any:
    return page.locator(".facts div").filter(has_text=name).locator("dd")


def test_figures_plots_and_time_lines(watched: Watched, running: Serving) -> None:
    page = watched.open(f"{running.url}#live")
    assert (
        page.locator(".plot h3").evaluate_all("all => all.map((one) => one.firstChild.data)")
        == TITLES
    )
    expect(page.locator(".state")).to_contain_text("Requests are served")
    before = int((fact(page, "completed").text_content() or "").replace(",", ""))
    generate(running.url, 300)
    expect(fact(page, "completed")).to_have_text(f"{before + 1:,}")
    row = page.locator(".request").first
    expect(row).to_contain_text("length")
    expect(row.locator("dl")).to_contain_text("tokens300")
    assert row.locator(".decode i").count() > 10
    expect(page.get_by_role("img", name=re.compile(r"first token.*p50 \d"))).to_be_visible()
    throughput = page.locator(".plot").filter(has_text="Throughput").locator("path.line-0")
    # What was generated is seen for two minutes, from the next figures on: two neighbours differ.
    two_heights = r"[ ,]([\d.]+)L[\d.]+[ ,](?!\1(?![\d.]))"
    expect(throughput).to_have_attribute("d", re.compile(two_heights))
    assert SECRET not in page.content()
    page.locator(".plot svg").first.hover()
    expect(page.locator("line.cursor")).to_have_count(len(TITLES))


def test_without_requests_it_says_what_to_do(watched: Watched, serve_page: ServePage) -> None:
    url = serve_page()
    page = watched.open(f"{url}#live")
    expect(page.get_by_text("Requests appear here")).to_be_visible()
    expect(page.locator(".timelines code")).to_contain_text(f"curl {url}v1/chat/completions")


def test_a_restart_is_marked(watched: Watched, tmp_path: Path) -> None:
    with serving(tmp_path, *SERVE, "--drain-timeout", "10") as running:
        page = watched.open(f"{running.url}#live")
        expect(fact(page, "restarts")).to_have_text("0")
        os.kill(running.worker_pid, signal.SIGKILL)
        expect(fact(page, "restarts")).to_have_text("1")
        expect(page.locator("line.restart")).to_have_count(len(TITLES))
        expect(page.locator(".state")).to_contain_text("worker restarts: 1")
        expect(page.locator(".facts .notable")).to_have_count(1)
        watched.may_fail = ("net::",)
        running.process.send_signal(signal.SIGTERM)
        assert running.wait() == 0
        assert "were not finished" not in running.said()  # it waited for no watcher


def test_time_lines_are_told_to_their_own_key(watched: Watched, tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.touch(mode=0o600)
    keys.write_text("first\nsecond\n")
    watched.may_fail = ("401",)
    with serving(tmp_path, *SERVE, "--api-key-file", str(keys)) as running:
        pages = {}
        for key in ("first", "second"):
            page = pages[key] = watched.open(f"{running.url}#live")
            page.get_by_label("API key").fill(key)
            page.keyboard.press("Enter")
            expect(fact(page, "completed")).to_have_text("0")
        generate(running.url, key="second")
        generate(running.url, key="second")
        for key, n_rows in (("first", 0), ("second", 2)):
            expect(fact(pages[key], "completed")).to_have_text("2")
            expect(pages[key].locator(".request")).to_have_count(n_rows)
        watched.close()


def test_it_shows_what_happened_before_it_was_opened(
    watched: Watched, serve_page: ServePage
) -> None:
    """All rows and plots are there with the first frame, which is the only one here."""
    url = serve_page()
    body = {"prompt": "Hi", "max_tokens": 21, "ignore_eos": True}
    for _ in range(3):
        assert httpx.post(f"{url}v1/completions", json=body, timeout=60).status_code == 200
        time.sleep(1.2)  # the server keeps a state a second
    page = watched.open(f"{url}#live")
    rows = page.locator(".request")
    expect(rows).to_have_count(3)
    expect(rows.first).to_contain_text("tokens21")
    line = page.locator(".plot").filter(has_text="Throughput").locator("path.line-0")
    begins = re.match(r"M([\d.]+) ", line.get_attribute("d") or "")
    width = float(page.locator(".plot svg").first.get_attribute("width") or 0)
    assert begins is not None
    now = width - 8  # the margin of a plot
    assert float(begins[1]) < now - 5, "it begins seconds ago, and not at the right end"


def test_the_feed_ends_when_nobody_looks_and_plots_outlive_a_reload(
    watched: Watched, running: Serving
) -> None:
    page = watched.open(running.url)
    asked: list[str] = []
    ended: list[str] = []
    page.on("request", lambda one: asked.append(one.url) if "/live" in one.url else None)
    page.on("requestfailed", lambda one: ended.append(one.url) if "/live" in one.url else None)
    expect(page.locator("#model option")).not_to_have_count(0)
    page.wait_for_timeout(300)
    assert asked == []
    page.get_by_role("link", name="Live").click()
    expect(page.locator(".state")).to_contain_text("Requests are served")  # the feed has begun
    generate(running.url, 23)
    expect(page.locator(".request").first).to_contain_text("tokens23")
    assert len(asked) == 1
    page.get_by_role("link", name="Chat").click()
    expect(page.get_by_label("Message", exact=True)).to_be_visible()
    while not ended:
        page.wait_for_timeout(20)
    page.get_by_role("link", name="Live").click()
    n_rows = page.locator(".request").count()
    generate(running.url, 24)
    page.reload()
    expect(page.locator(".request").first).to_contain_text("tokens24")
    expect(page.locator(".request")).to_have_count(min(n_rows + 1, 16))
    assert all(SECRET not in one for one in asked)


def test_a_server_that_is_gone_is_said(watched: Watched) -> None:
    watched.may_fail = ("ERR_CONNECTION", "ERR_INCOMPLETE", "net::")
    with page_served() as url:
        page = watched.open(f"{url}#live")
        expect(page.locator(".state")).to_contain_text("Requests are served")
    expect(page.get_by_text("The server cannot be reached. This page tries again")).to_be_visible()


def test_a_plot_has_a_name_before_it_is_drawn(watched: Watched, serve_page: ServePage) -> None:
    url = serve_page(Script())
    page = watched.open(url)
    name = page.evaluate(
        """async () => {
            const { Plot } = await import("./page/live/plots.js");
            const lines = [{ key: "used", name: "in use" }];
            const plot = new Plot({ title: "KV cache", unit: "% of its blocks", lines });
            return plot.svg.getAttribute("aria-label");
        }"""
    )
    assert name == "KV cache, % of its blocks"


def test_parts_of_a_time_line_are_as_long_as_what_they_show(
    watched: Watched, serve_page: ServePage
) -> None:
    url = serve_page(Script())
    page = watched.open(url)
    widths = page.evaluate(
        """async () => {
            const { Timelines } = await import("./page/live/timeline.js");
            const lines = new Timelines();
            document.body.append(lines.element);
            lines.draw([{ id: 1, when: 9, reason: "length", prompt: 5, cached: 0, generated: 3,
                queued: 1, ttft: 3, total: 8, itl: 2, slowest: 4, tokens: [1, 0, 2],
                preemptions: 0 }], 10);
            const parts = [...lines.element.querySelectorAll(".bar-line > span")];
            return parts.map((one) => [one.className, one.style.width]);
        }"""
    )
    assert widths == [["queued", "12.5%"], ["prefill", "25%"], ["decode", "62.5%"]]
