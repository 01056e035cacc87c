"""A chat: its answer comes, stops, is asked for again, goes on after a reload or a death."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import httpx
from chat_page import LONGER, ChatPage, plain
from chromium import Watched
from page_server import Script, ServePage, chunk, page_served
from playwright.sync_api import expect
from serving_doubles import Serving, serving

SERVE = ("--no-socket", "--http", "127.0.0.1:0", "--n-ctx", "16384")
STORY = "Tell me a story about a fox."


def answer_of(running: Serving, body: dict[str, Any]) -> str:
    """What the server says to the body of a page's request, all at once."""
    whole = {**body, "stream": False}
    found = httpx.post(f"{running.url}/v1/chat/completions", json=whole, timeout=60).json()
    return plain(found["choices"][0]["message"]["content"])


def begin(chat: ChatPage, worker: int) -> str:
    """Ask for a long answer and stop the worker in the middle of it; what is there by then."""
    os.kill(worker, signal.SIGSTOP)
    chat.send(STORY)
    while not chat.text:
        os.kill(worker, signal.SIGCONT)
        time.sleep(0.1)  # a tenth of what the answer takes the fastest machine
        os.kill(worker, signal.SIGSTOP)
        chat.page.wait_for_timeout(200)
    assert chat.answer.get_attribute("data-state") == "streaming"
    return chat.text


def test_an_answer_is_seen_while_it_comes(watched: Watched, running: Serving) -> None:
    page = watched.open(running.url, more=LONGER)
    chat = ChatPage(page)
    before = begin(chat, running.worker_pid)
    expect(chat.button("Stop")).to_be_visible()
    os.kill(running.worker_pid, signal.SIGCONT)
    text = chat.ended()
    assert text.startswith(before)
    assert len(text) > len(before)
    assert text == answer_of(running, watched.sent[0])
    expect(chat.button("Send")).to_be_visible()
    expect(page.get_by_role("status")).to_contain_text("1800 tokens")


def test_a_talk_goes_on_with_what_was_said(watched: Watched, running: Serving) -> None:
    chat = ChatPage(watched.open(running.url))
    first = chat.ask("What is 2 plus 3?")
    chat.option("System prompt", "Be brief.")
    chat.ask("And 4 plus 4?")
    assert [message["content"] for message in watched.sent[1]["messages"]] == [
        "Be brief.",
        "What is 2 plus 3?",
        first,
        "And 4 plus 4?",
    ]
    assert watched.sent[0]["seed"] != watched.sent[1]["seed"]


def test_stopping_hangs_up_and_keeps_the_text(watched: Watched, serve_page: ServePage) -> None:
    script = Script([chunk(f"word{i} ") for i in range(2000)], [chunk("anew")])
    script.pause = 0.01
    url = serve_page(script)
    chat = ChatPage(watched.open(url))
    chat.send("Go on")
    before = chat.has_begun()
    chat.page.keyboard.press("Escape")
    text = chat.ended("stopped")
    assert text.startswith(before)
    expect(chat.message).to_be_focused()
    expect(chat.note).to_have_text("Stopped.")
    while script.n_left == 0:
        chat.page.wait_for_timeout(20)
    assert chat.ask("And now?") == "anew"
    assert plain(watched.sent[1]["messages"][1]["content"]) == text


def test_the_button_stops_too(watched: Watched, serve_page: ServePage) -> None:
    script = Script([chunk("word ")] * 2000)
    script.pause = 0.01
    url = serve_page(script)
    chat = ChatPage(watched.open(url))
    chat.send("Go on")
    chat.has_begun()
    chat.button("Stop").click()
    chat.ended("stopped")


def test_retry_asks_the_same_with_another_seed(watched: Watched, running: Serving) -> None:
    chat = ChatPage(watched.open(running.url))
    chat.ask("What is 1 plus 1?")
    chat.ask(STORY)
    chat.button("Retry").click()
    expect(chat.page.locator(".answer")).to_have_count(2)
    text = chat.ended()
    one, again = watched.sent[1:]
    assert one["messages"] == again["messages"]
    assert one["seed"] != again["seed"]
    assert text == answer_of(running, again)


def test_a_question_can_be_changed(watched: Watched, running: Serving) -> None:
    chat = ChatPage(watched.open(running.url))
    chat.ask("What is 1 plus 1?")
    chat.ask(STORY)
    chat.button("Edit").first.click()
    area = chat.page.get_by_label("Your message")
    expect(area).to_be_focused()
    area.press("Escape")
    expect(area).to_have_count(0)
    assert len(chat.questions) == 2
    chat.button("Edit").first.click()
    area.fill("What is 2 plus 3?")
    area.press("Enter")
    text = chat.ended()
    assert chat.questions == ["What is 2 plus 3?"]
    assert [message["role"] for message in watched.sent[2]["messages"]] == ["user"]
    assert text == answer_of(running, watched.sent[2])


def test_a_reload_in_mid_answer(watched: Watched, running: Serving) -> None:
    page = watched.open(running.url, more=LONGER)
    chat = ChatPage(page)
    seen = begin(chat, running.worker_pid)
    page.reload()
    os.kill(running.worker_pid, signal.SIGCONT)
    chat = ChatPage(page)
    partial = chat.ended("broken")
    assert chat.questions == [STORY]
    assert partial.startswith(seen[:20])
    chat.button("Continue").click()
    whole = chat.ended()
    assert whole.startswith(partial)
    assert len(whole) > len(partial)
    assert whole == answer_of(running, watched.sent[0])
    assert watched.sent[1] == watched.sent[0]
    chat.button("New chat").click()
    page.reload()
    expect(page.get_by_text("Ask the model something")).to_be_visible()


def test_going_on_never_takes_back_what_was_there(watched: Watched, serve_page: ServePage) -> None:
    words = [chunk(f"word{i} ") for i in range(60)]
    script = Script(words[:30], words)
    script.is_cut, script.pause = True, 0.002
    url = serve_page(script)
    chat = ChatPage(watched.open(url))
    chat.send("Go on")
    partial = chat.ended("broken")
    expect(chat.note).to_contain_text("The answer was cut: ")
    script.is_cut, script.pause = False, 0.01
    chat.page.evaluate(
        """() => {
            window.texts = [];
            new MutationObserver(() => window.texts.push(
                document.querySelector(".choice .markdown").innerText.trim()
            )).observe(document.body, {subtree: true, childList: true, characterData: true});
        }"""
    )
    chat.button("Continue").click()
    assert chat.ended() == " ".join(f"word{i}" for i in range(60))
    assert all(text.startswith(partial) for text in chat.page.evaluate("window.texts"))


def test_a_worker_that_is_killed_is_not_noticed(watched: Watched, tmp_path: Path) -> None:
    with serving(tmp_path, *SERVE) as running:
        chat = ChatPage(watched.open(running.url, more=LONGER))
        first = running.worker_pid
        begin(chat, first)
        os.kill(first, signal.SIGKILL)
        text = chat.ended()
        assert running.worker_pid != first
        assert text == answer_of(running, watched.sent[0])
        watched.close()


def test_what_the_server_refuses_is_said(watched: Watched, serve_page: ServePage) -> None:
    script = Script([chunk("better")])
    script.status, script.message = 429, "the queue is full"
    watched.may_fail = ("429",)
    url = serve_page(script)
    chat = ChatPage(watched.open(url))
    chat.send("Hi")
    chat.ended("failed")
    expect(chat.note).to_have_text("There is no answer: the queue is full.")
    script.status = 200
    chat.button("Retry").click()
    assert chat.ended() == "better"
    assert script.n_asked == 2


def test_an_error_in_mid_stream_is_said(watched: Watched, serve_page: ServePage) -> None:
    script = Script([chunk("some text"), {"error": {"message": "the engine failed"}}])
    url = serve_page(script)
    chat = ChatPage(watched.open(url))
    chat.send("Hi")
    assert chat.ended("broken") == "some text"
    expect(chat.note).to_have_text("The answer was cut: the engine failed.")


def test_a_server_that_is_gone(watched: Watched) -> None:
    watched.may_fail = ("ERR_CONNECTION",)
    with page_served(Script([chunk("Hello")])) as url:
        chat = ChatPage(watched.open(url))
        chat.ask("Hi")
    chat.send("Still there?")
    chat.ended("failed")
    expect(chat.note).to_contain_text("the server cannot be reached")
    assert chat.questions == ["Hi", "Still there?"]


def test_the_models_of_a_server_below_a_path(watched: Watched, serve_page: ServePage) -> None:
    url = serve_page(Script([chunk("Hello")]), below="/deep/llm", names=("one", "two"))
    page = watched.open(url)
    chat = ChatPage(page)
    page.get_by_role("combobox", name="Model").select_option("two")
    assert chat.ask("Hi") == "Hello"
    assert watched.sent[0]["model"] == "two"
    page.reload()
    expect(page.get_by_role("combobox", name="Model")).to_have_value("two")


def test_options_are_sent_and_kept_and_wrong_ones_are_not(
    watched: Watched, serve_page: ServePage
) -> None:
    url = serve_page(Script([chunk("Hello")]))
    page = watched.open(url)
    chat = ChatPage(page)
    for label, value in [("Temperature", "0.5"), ("Max tokens", "7"), ("Seed", "12")]:
        chat.option(label, value)
    chat.option("Stop texts", "a\nb")
    chat.ask("Hi")
    body = watched.sent[0]
    assert (body["temperature"], body["max_tokens"], body["seed"]) == (0.5, 7, 12)
    assert body["stop"] == ["a", "b"]
    assert "top_p" not in body
    page.reload()
    chat = ChatPage(page)
    chat.option("top_p", "7")
    chat.send("Again")
    expect(page.get_by_text("An option is not right")).to_be_visible()
    expect(page.get_by_text("From 0 to 1.")).to_be_visible()
    expect(page.get_by_label("top_p")).to_be_focused()
    assert len(watched.sent) == 1
    chat.button("Reset options").click()
    chat.ask("Again")
    assert "temperature" not in watched.sent[1]
