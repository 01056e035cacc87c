"""Conversations as files: saved, opened again, and refused if they are anything else."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from chat_page import ChatPage
from chromium import Watched
from page_server import Script, ServePage, chunk
from playwright.sync_api import Page, expect


def saved(page: Page, button: str, folder: Path) -> Path:
    with page.expect_download() as loading:
        page.get_by_role("button", name=button, exact=True).click()
    path = folder / loading.value.suggested_filename
    loading.value.save_as(path)
    return path


def open_file(page: Page, path: Path) -> None:
    page.locator("#chat-file").set_input_files(path)


def test_a_conversation_is_saved_and_opened_again(
    watched: Watched, serve_page: ServePage, tmp_path: Path
) -> None:
    call = {"index": 0, "id": "c", "function": {"name": "look", "arguments": "{}"}}
    script = Script(
        [chunk(reasoning_content="Let me\nsee."), chunk("Some **text**."), chunk(reason="stop")],
        [chunk("I look."), chunk(tool_calls=[call]), chunk(reason="tool_calls")],
        [chunk("Again."), chunk(reason="stop")],
    )
    url = serve_page(script)
    page = watched.open(url)
    expect(page.get_by_role("button", name="Save as JSON")).to_be_hidden()
    chat = ChatPage(page)
    chat.ask("One <b>")
    chat.ask("Two")
    as_text = saved(page, "Save as Markdown", tmp_path)
    assert as_text.suffix == ".md"
    call_text = json.dumps({"name": "look", "arguments": "{}", "result": ""}, indent=2)
    assert as_text.read_text() == (
        "## You\n\nOne <b>\n\n## The model\n\n> Let me\n> see.\n\nSome **text**.\n\n"
        f"## You\n\nTwo\n\n## The model\n\nI look.\n\n```json\n{call_text}\n```\n"
    )
    as_json = saved(page, "Save as JSON", tmp_path)
    before = page.locator("#log").inner_html()
    chat.button("New chat").click()
    open_file(page, as_json)
    expect(page.locator(".answer")).to_have_count(2)
    assert page.locator("#log").inner_html() == before
    other = watched.open(url)
    open_file(other, as_json)
    expect(other.locator(".answer")).to_have_count(2)
    ChatPage(other).ask("Three")
    told = [(one["role"], one["content"]) for one in watched.sent[-1]["messages"]]
    assert told == [
        ("user", "One <b>"),
        ("assistant", "Some **text**."),
        ("user", "Two"),
        ("assistant", "I look."),
        ("tool", ""),
        ("user", "Three"),
    ]


FORMAT = {"format": "pybatcher conversation", "version": 1}


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("no JSON", "not JSON"),
        ("[]", "no conversation"),
        ("null", "no conversation"),
        (json.dumps({**FORMAT, "version": 2, "messages": []}), "no conversation"),
        (json.dumps({**FORMAT, "messages": {}}), "no conversation"),
        (json.dumps({**FORMAT, "messages": [None]}), "Message 1 of the file"),
        (json.dumps({**FORMAT, "messages": [{"role": "system"}]}), "Message 1 of the file"),
        (
            json.dumps(
                {**FORMAT, "messages": [{"role": "assistant", "request": {}, "choices": []}]}
            ),
            "Message 1 of the file",
        ),
    ],
)
def test_other_files_are_refused(
    watched: Watched, serve_page: ServePage, tmp_path: Path, content: str, problem: str
) -> None:
    url = serve_page(Script([chunk("Hello")]))
    page = watched.open(url)
    chat = ChatPage(page)
    chat.ask("Hi")
    path = tmp_path / "file.json"
    path.write_text(content)
    open_file(page, path)
    expect(page.get_by_role("alert").filter(has_text=problem)).to_be_visible()
    assert chat.questions == ["Hi"]


def test_values_of_odd_types_do_no_harm(
    watched: Watched, serve_page: ServePage, tmp_path: Path
) -> None:
    odd: list[Any] = [None, True, 1, -1, 1e300, "x", [], [[]], {}, {"a": 1}]
    names = ("chosen", "state", "error", "usage", "times")
    inner = ("text", "reasoning", "calls", "tokens", "reason")
    messages: list[Any] = []
    for value in odd:
        choice = dict.fromkeys(inner, value)
        messages.append({"role": "user", "text": value})
        answer = {"role": "assistant", "request": {}, "choices": [choice, value]}
        messages.append({**answer, **dict.fromkeys(names, value)})
    path = tmp_path / "odd.json"
    path.write_text(json.dumps({**FORMAT, "messages": messages}))
    url = serve_page(Script([chunk("Hello"), chunk(reason="stop")]))
    page = watched.open(url)
    chat = ChatPage(page)
    open_file(page, path)
    expect(page.locator(".answer")).to_have_count(len(odd))
    page.reload()
    expect(page.locator(".answer")).to_have_count(len(odd))
    assert chat.ask("Hi") == "Hello"
