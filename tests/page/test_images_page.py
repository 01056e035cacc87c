"""Images of a chat: chosen, pasted and dropped; shown, sent, removed, saved; hidden elsewhere."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest
from chat_page import ChatPage
from chromium import Watched
from page_server import Script, ServePage, chunk
from playwright.sync_api import Page, expect

PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)
URL = "data:image/png;base64," + base64.b64encode(PNG).decode()
PART = {"type": "image_url", "image_url": {"url": URL}}
FILE: Any = {"name": "dot.png", "mimeType": "image/png", "buffer": PNG}
ANSWERS = [chunk("A dot."), chunk(reason="stop")]


def open_with_images(watched: Watched, serve_page: ServePage, script: Script) -> ChatPage:
    """Open the page of a model that takes images."""
    chat = ChatPage(watched.open(serve_page(script, takes_images=True)))
    expect(chat.button("Add images")).to_be_visible()
    return chat


def waiting(page: Page) -> Any:
    return page.get_by_role("list", name="Images of the message").get_by_role("listitem")


def give(page: Page, event: str, target: str, *names: str) -> None:
    """Give files to the page, as a person who pastes or drops them."""
    page.evaluate(
        """([event, target, names, data]) => {
            const bytes = Uint8Array.from(atob(data), (one) => one.charCodeAt(0));
            const transfer = new DataTransfer();
            for (const name of names) {
                const type = name.endsWith(".png") ? "image/png" : "image/svg+xml";
                transfer.items.add(new File([bytes], name, { type }));
            }
            const options = { bubbles: true, cancelable: true };
            const made = event === "paste"
                ? new ClipboardEvent(event, { ...options, clipboardData: transfer })
                : new DragEvent(event, { ...options, dataTransfer: transfer });
            document.querySelector(target).dispatchEvent(made);
        }""",
        [event, target, names, base64.b64encode(PNG).decode()],
    )


def test_images_are_shown_and_sent_with_their_message(
    watched: Watched, serve_page: ServePage
) -> None:
    chat = open_with_images(watched, serve_page, Script(ANSWERS))
    page = chat.page
    with page.expect_file_chooser() as choosing:
        chat.button("Add images").click()
    choosing.value.set_files([FILE, {**FILE, "name": "other.png"}])
    expect(waiting(page)).to_have_count(2)
    chat.button("Remove other.png").click()
    expect(waiting(page)).to_have_count(1)
    expect(page.get_by_role("img", name="dot.png")).to_be_visible()
    assert chat.ask("What is it?") == "A dot."
    expect(waiting(page)).to_have_count(0)
    expect(page.locator(".question").get_by_role("img", name="Image 1")).to_be_visible()
    text = {"type": "text", "text": "What is it?"}
    assert watched.sent[-1]["messages"] == [{"role": "user", "content": [PART, text]}]
    assert page.locator(".question img").evaluate("(one) => one.naturalWidth") == 1
    chat.ask("And its colour?")
    assert [one["content"] for one in watched.sent[-1]["messages"]] == [
        [PART, text],
        "A dot.",
        "And its colour?",
    ]
    page.reload()
    expect(page.locator(".question img")).to_have_count(1)


def test_images_are_pasted_and_dropped(watched: Watched, serve_page: ServePage) -> None:
    chat = open_with_images(watched, serve_page, Script(ANSWERS))
    give(chat.page, "paste", "#message", "a.png")
    expect(waiting(chat.page)).to_have_count(1)
    give(chat.page, "dragover", "#log", "b.png")
    give(chat.page, "drop", "#log", "b.png", "c.svg")
    expect(waiting(chat.page)).to_have_count(2)
    expect(chat.page.get_by_role("alert").filter(has_text="c.svg is no PNG")).to_be_visible()
    chat.button("Send").click()  # without a text
    assert chat.ended() == "A dot."
    assert watched.sent[-1]["messages"] == [{"role": "user", "content": [PART, PART]}]


def test_an_edited_question_keeps_its_images(watched: Watched, serve_page: ServePage) -> None:
    chat = open_with_images(watched, serve_page, Script(ANSWERS))
    chat.page.locator("#image-files").set_input_files([FILE])
    expect(waiting(chat.page)).to_have_count(1)
    chat.ask("One")
    chat.button("Edit").click()
    chat.page.get_by_label("Your message").fill("Two")
    chat.button("Send again").click()
    chat.ended()
    (message,) = watched.sent[-1]["messages"]
    assert message["content"] == [PART, {"type": "text", "text": "Two"}]


def test_files_of_conversations_have_the_images(
    watched: Watched, serve_page: ServePage, tmp_path: Path
) -> None:
    chat = open_with_images(watched, serve_page, Script(ANSWERS))
    page = chat.page
    page.locator("#image-files").set_input_files([FILE])
    expect(waiting(page)).to_have_count(1)
    chat.ask("One")
    paths = []
    for button in ("Save as JSON", "Save as Markdown"):
        with page.expect_download() as loading:
            chat.button(button).click()
        paths.append(tmp_path / loading.value.suggested_filename)
        loading.value.save_as(paths[-1])
    assert f"## You\n\n![Image 1]({URL})\n\nOne\n" in paths[1].read_text()
    told = json.loads(paths[0].read_text())
    told["messages"][0]["images"] += ["https://example.org/a.png", 5, None, "data:text/html,x"]
    paths[0].write_text(json.dumps(told))
    chat.button("New chat").click()
    page.locator("#chat-file").set_input_files(paths[0])
    expect(page.locator(".question img")).to_have_count(1)


def test_images_too_large_to_be_kept_are_told(watched: Watched, serve_page: ServePage) -> None:
    chat = open_with_images(watched, serve_page, Script(ANSWERS))
    large = {**FILE, "buffer": PNG + bytes(6 * 2**20)}
    chat.page.locator("#image-files").set_input_files([large])
    expect(waiting(chat.page)).to_have_count(1)
    chat.ask("One")
    chat.page.reload()
    expect(chat.page.locator(".question")).to_contain_text("1 of its images were too large")
    assert chat.questions == ["One"]


def test_a_refused_image_is_told(watched: Watched, serve_page: ServePage) -> None:
    watched.may_fail = ("413",)
    script = Script(ANSWERS)
    script.status, script.message = 413, "the body has more than 16777216 bytes"
    chat = open_with_images(watched, serve_page, script)
    chat.page.locator("#image-files").set_input_files([FILE])
    expect(waiting(chat.page)).to_have_count(1)
    chat.send("One")
    expect(chat.page.locator(".answer")).to_contain_text("more than 16777216 bytes")


@pytest.mark.parametrize("event", ["paste", "drop"])
def test_models_without_images_have_no_place_for_them(
    watched: Watched, serve_page: ServePage, event: str
) -> None:
    chat = ChatPage(watched.open(serve_page(Script(ANSWERS))))
    expect(chat.button("Add images")).to_be_hidden()
    give(chat.page, event, "#message", "a.png")
    expect(waiting(chat.page)).to_have_count(0)
