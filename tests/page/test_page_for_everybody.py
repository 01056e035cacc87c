"""Keys, keyboards, small screens, light and dark, names of all that can be used."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from chat_page import ChatPage
from chromium import Watched
from page_server import Script, ServePage, chunk
from playwright.sync_api import Page, expect

LONG_WORD = "https://example.invalid/" + "x" * 400

# Text, by what it is, on what it stands on; sizes below 24 px need 4.5 to 1 (WCAG 2.2, 1.4.3).
PAIRS = [
    ("--text", "--ground"),
    ("--text", "--surface"),
    ("--text", "--accent-soft"),
    ("--muted", "--ground"),
    ("--muted", "--surface"),
    ("--muted", "--raised"),
    ("--accent", "--surface"),
    ("--accent", "--accent-soft"),
    ("--on-accent", "--accent"),
    ("--bad", "--surface"),
    ("--bad", "--bad-soft"),
]
EDGES = [("--edge", "--surface"), ("--edge", "--ground"), ("--accent", "--ground")]


# -- keys ---------------------------------------------------------------------------------------


def test_a_key_is_asked_for_and_kept_for_the_tab(watched: Watched, serve_page: ServePage) -> None:
    watched.may_fail = ("401",)
    url = serve_page(Script([chunk("Hello")]), api_keys=["right"])
    page = watched.open(url)
    dialog = page.get_by_role("dialog")
    expect(dialog).to_be_visible()
    field = page.get_by_label("API key")
    expect(field).to_be_focused()
    expect(field).to_have_attribute("type", "password")
    for wrong in ("wrong", "schlüssel"):
        field.fill(wrong)
        field.press("Enter")
        expect(page.get_by_text("This key is not known here.")).to_be_visible()
    field.fill("right")
    field.press("Enter")
    expect(dialog).to_be_hidden()
    assert ChatPage(page).ask("Hi") == "Hello"
    page.goto(f"{url}#live")
    expect(page.locator(".state")).to_contain_text("Requests are served")
    page.reload()
    expect(page.locator(".state")).to_contain_text("Requests are served")
    expect(dialog).to_be_hidden()
    assert "right" not in page.url
    assert page.evaluate("Object.values(localStorage).join().includes('right')") is False
    other = watched.open(url)
    expect(other.get_by_role("dialog")).to_be_visible()
    other.get_by_role("button", name="Not now").click()
    expect(other.get_by_role("dialog")).to_be_hidden()


# -- the keyboard -------------------------------------------------------------------------------


def test_all_can_be_done_with_the_keyboard(watched: Watched, serve_page: ServePage) -> None:
    script = Script([chunk("One")], [chunk("Two")], [chunk("Three")])
    url = serve_page(script)
    page = watched.open(url)
    chat = ChatPage(page)
    expect(chat.message).to_be_focused()
    page.keyboard.type("First line")
    page.keyboard.press("Shift+Enter")
    page.keyboard.type("second line")
    page.keyboard.press("Enter")
    assert chat.ended() == "One"
    assert chat.questions == ["First line\nsecond line"]
    expect(chat.message).to_be_focused()
    go_to(page, lambda: chat.button("Retry"), "Shift+Tab")
    page.keyboard.press("Enter")
    expect(chat.said).to_have_text("Two")
    chat.ended()
    chat.message.focus()
    go_to(page, lambda: chat.button("Edit"), "Shift+Tab")
    page.keyboard.press("Enter")
    page.keyboard.type(" more")
    page.keyboard.press("Enter")
    expect(chat.said).to_have_text("Three")
    page.reload()
    ChatPage(page)
    page.locator("body").press("Shift+Tab")
    seen = [name_of(page) for _ in range(40) if page.keyboard.press("Tab") is None]
    for name in ("Skip to the message", "Chat", "Live", "Colours: Auto", "Message", "Options"):
        assert name in seen, (name, seen)


def go_to(page: Page, wanted: Callable[[], object], key: str) -> None:
    """Press a key until an element has the focus, which has to be seen."""
    for _ in range(30):
        page.keyboard.press(key)
        if wanted().evaluate("one => one === document.activeElement"):  # type: ignore[attr-defined]
            outline = "getComputedStyle(document.activeElement).outlineStyle"
            assert page.evaluate(outline) == "solid"
            return
    raise AssertionError("it is out of reach")


def name_of(page: Page) -> str:
    found: str = page.evaluate(
        """() => {
            const one = document.activeElement;
            const label = one.getAttribute("aria-label") ?? one.labels?.[0]?.textContent;
            return (label ?? one.textContent).trim();
        }"""
    )
    return found


# -- sizes --------------------------------------------------------------------------------------


@pytest.mark.parametrize("width", [320, 360, 768])
def test_nothing_is_wider_than_the_screen(
    watched: Watched, serve_page: ServePage, width: int
) -> None:
    script = Script([chunk(f"Look at {LONG_WORD} "), chunk(reasoning_content=LONG_WORD)])
    url = serve_page(script, names=("a/model/with/" + "a-long-name" * 5,))
    page = watched.open(url, width=width, height=700)
    chat = ChatPage(page)
    chat.ask(f"What is {LONG_WORD}?")
    assert overflow(page) == []
    expect(chat.message).to_be_in_viewport()
    expect(chat.button("Send")).to_be_in_viewport()
    page.get_by_text("Options", exact=True).click()
    chat.option("System prompt", "Be brief.")
    assert overflow(page) == []
    page.goto(f"{url}#live")
    expect(page.locator(".state")).to_contain_text("Requests are served")
    assert overflow(page) == []


def overflow(page: Page) -> list[str]:
    """The elements that begin or end beyond the screen, or have text that does."""
    found: list[str] = page.evaluate(
        """() => {
            const width = document.documentElement.clientWidth;
            const root = document.scrollingElement;
            const beyond = [...document.querySelectorAll("body *")].filter((one) => {
                if (!one.checkVisibility()) return false;
                if (one.closest("code, pre, .hidden-label, .skip")) return false;
                const { left, right } = one.getBoundingClientRect();
                return right > width + 0.5 || left < -0.5;
            });
            const told = beyond.map((one) => `${one.localName}.${one.className}`);
            return root.scrollWidth > width ? ["the page", ...told] : told;
        }"""
    )
    return found


# -- colours ------------------------------------------------------------------------------------


def contrast(page: Page, one: str, other: str) -> float:
    """The contrast of two colours, by WCAG 2.2."""
    found: float = page.evaluate(
        """([one, other]) => {
            const probe = document.createElement("p");
            document.body.append(probe);
            const light = (name) => {
                probe.style.color = `var(${name})`;
                const parts = getComputedStyle(probe).color.match(/[\\d.]+/g).slice(0, 3);
                const [r, g, b] = parts.map(Number).map((part) => part / 255)
                    .map((part) =>
                        part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4);
                return 0.2126 * r + 0.7152 * g + 0.0722 * b;
            };
            const [low, high] = [light(one), light(other)].sort((a, b) => a - b);
            probe.remove();
            return (high + 0.05) / (low + 0.05);
        }""",
        [one, other],
    )
    return found


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_colours_can_be_told_apart(watched: Watched, serve_page: ServePage, scheme: str) -> None:
    url = serve_page()
    page = watched.open(url, color_scheme=scheme)
    found = {pair: contrast(page, *pair) for pair in PAIRS}
    assert {pair: ratio for pair, ratio in found.items() if ratio < 4.5} == {}
    edges = {pair: contrast(page, *pair) for pair in EDGES}
    assert {pair: ratio for pair, ratio in edges.items() if ratio < 3} == {}


def test_light_and_dark_can_be_chosen(watched: Watched, serve_page: ServePage) -> None:
    ground = "getComputedStyle(document.documentElement).backgroundColor"
    url = serve_page()
    page = watched.open(url, color_scheme="light")
    light = page.evaluate(ground)
    button = page.get_by_role("button", name=re.compile("Colours"))
    button.click()
    assert page.evaluate(ground) == light
    button.click()
    dark = page.evaluate(ground)
    assert dark != light
    page.reload()
    assert page.evaluate(ground) == dark
    button.click()
    expect(button).to_have_text("Auto")
    page.emulate_media(color_scheme="dark")
    assert page.evaluate(ground) == dark


# -- names --------------------------------------------------------------------------------------


def test_all_that_can_be_used_has_a_name(watched: Watched, serve_page: ServePage) -> None:
    url = serve_page(Script([chunk("Hello"), chunk(reasoning_content="Hm")]))
    for view in ("", "#live"):
        page = watched.open(url + view)
        if not view:
            ChatPage(page).ask("Hi")
            page.evaluate("document.querySelectorAll('details').forEach((one) => one.open = true)")
        nameless = page.evaluate(
            """() => [...document.querySelectorAll(
                    "input, select, textarea, button, a, summary, svg, [role]")]
                .filter((one) => one.checkVisibility())
                .filter((one) => !["status", "alert"].includes(one.role))
                .filter((one) => {
                    const by = one.getAttribute("aria-labelledby");
                    const label = by === null ? null : document.getElementById(by);
                    const labels = [label, ...one.labels ?? []].filter((one) => one !== null);
                    const name = one.getAttribute("aria-label") ??
                        labels.map((label) => label.textContent).join("");
                    const isField = one.matches("input, select, textarea, svg");
                    return (name + (isField ? "" : one.textContent)).trim() === "";
                })
                .map((one) => one.outerHTML.slice(0, 200))"""
        )
        assert nameless == []
        assert page.evaluate("document.documentElement.lang") == "en"
        assert page.locator("main:visible").count() == 1
        assert page.locator("h1").count() == 1
        ids = page.evaluate("[...document.querySelectorAll('[id]')].map((one) => one.id)")
        assert len(ids) == len(set(ids))
