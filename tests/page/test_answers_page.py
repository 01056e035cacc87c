"""Answers: several side by side, tokens in colours, forms that fill, texts that look like HTML."""

from __future__ import annotations

import json
from typing import Any

from chat_page import ChatPage, plain
from chromium import Watched
from page_server import Script, ServePage, chunk
from playwright.sync_api import expect
from serving_doubles import Serving

HOSTILE = '<script>window.taken=1</script><img src=x onerror="window.taken=1"><b>bold</b>'


def test_several_answers_side_by_side(watched: Watched, running: Serving) -> None:
    page = watched.open(running.url)
    chat = ChatPage(page)
    chat.option("Answers side by side", "3")
    chat.ask("Tell me a story about a fox.")
    choices = page.locator(".choice")
    expect(choices).to_have_count(3)
    texts = [plain(text) for text in page.locator(".choice .markdown").all_inner_texts()]
    assert len(set(texts)) == 3
    boxes = [choices.nth(i).bounding_box() for i in range(3)]
    assert len({box["y"] for box in boxes if box}) == 1
    assert len({box["x"] for box in boxes if box}) == 3
    chat.button("Select").nth(0).click()  # that of the second: the first is selected
    expect(choices.nth(1)).to_have_class("choice chosen")
    chat.option("Answers side by side", "")
    chat.ask("And then?")
    assert watched.sent[0]["n"] == 3
    assert plain(watched.sent[1]["messages"][1]["content"]) == texts[1]


def test_tokens_have_colours_for_who_points_at_them(watched: Watched, running: Serving) -> None:
    page = watched.open(running.url)
    page.get_by_label("Show how likely each token was").check()
    chat = ChatPage(page)
    chat.option("Temperature", "0")  # each token is one of its five likeliest
    text = chat.ask("Tell me a story about a fox.")
    tokens = page.locator(".token")
    assert plain("".join(tokens.all_text_contents())) == text
    colours = """() => {
        const all = [...document.querySelectorAll(".token")].slice(0, 9);
        const found = new Set(all.map((one) => getComputedStyle(one).backgroundColor)).size;
        return found >= %d && found <= %d;
    }"""
    page.mouse.move(1, 1)
    page.wait_for_function(colours % (1, 1))
    tokens.nth(1).hover()
    page.wait_for_function(colours % (3, 9))
    detail = page.locator(".detail")
    expect(detail.locator(".likely")).to_have_count(5)
    expect(detail.locator(".taken")).to_have_count(1)
    expect(detail.locator(".taken .figure")).to_contain_text("%")
    page.mouse.move(1, 1)
    expect(detail).to_be_hidden()
    page.locator(".tokens").focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    expect(tokens.nth(1)).to_have_class("token looked-at")
    expect(detail).to_be_visible()


SCHEMA: dict[str, Any] = {
    "title": "An animal",
    "type": "object",
    "properties": {
        "name": {"enum": ["fox", "owl", "bear"]},
        "friendly": {"type": "boolean"},
        "legs": {"enum": [2, 4]},
        "home": {
            "type": "object",
            "properties": {"place": {"$ref": "#/$defs/place"}},
            "required": ["place"],
            "additionalProperties": False,
        },
        "meals": {
            "type": "array",
            "items": {"type": "string", "maxLength": 4},
            "minItems": 2,
            "maxItems": 2,
        },
    },
    "required": ["name", "friendly", "legs", "home", "meals"],
    "additionalProperties": False,
    "$defs": {"place": {"type": "string", "maxLength": 6}},
}


def test_a_form_fills_while_the_answer_comes(watched: Watched, serve_page: ServePage) -> None:
    value = {"name": "owl", "friendly": True, "legs": 2, "home": {"place": "a <b>"}}
    value["meals"] = ["x", "yy"]
    text = json.dumps(value)
    script = Script([*(chunk(letter) for letter in text), chunk(reason="stop")])
    script.hold_at = text.index("place") + len('place": "a')
    url = serve_page(script)
    page = watched.open(url)
    chat = ChatPage(page)
    chat.option("The answer is one instance of it", json.dumps(SCHEMA))
    chat.send("Go on")
    form = page.get_by_role("group", name="An animal")
    expect(form.get_by_role("img", name="name: owl")).to_be_visible()
    expect(form.get_by_label("place")).to_have_value("a")
    expect(form.locator(".being-written")).to_have_text("place")
    expect(form.get_by_text("Entries appear here")).to_be_visible()
    script.go_on.set()
    chat.ended()
    expect(form.get_by_role("img", name="friendly: true")).to_be_visible()
    expect(form.get_by_role("img", name="legs: 2")).to_be_visible()
    expect(form.get_by_label("place")).to_have_value("a <b>")
    expect(form.get_by_label("1", exact=True)).to_have_value("x")
    expect(form.get_by_label("2", exact=True)).to_have_value("yy")
    expect(form.locator(".being-written")).to_have_count(0)
    assert watched.sent[0]["response_format"]["json_schema"]["schema"] == SCHEMA


def test_a_form_of_the_model_itself(watched: Watched, running: Serving) -> None:
    page = watched.open(running.url)
    chat = ChatPage(page)
    chat.option("The answer is one instance of it", "{")
    chat.send("Describe an animal.")
    expect(page.get_by_text("This is no JSON yet")).to_be_visible()
    chat.option("The answer is one instance of it", json.dumps(SCHEMA))
    chat.ask("Describe an animal.")
    value = json.loads(page.locator(".raw .said").text_content() or "")
    form = page.get_by_role("group", name="An animal")
    expect(form.get_by_role("img", name=f"name: {value['name']}")).to_be_visible()
    expect(form.get_by_label("place")).to_have_value(value["home"]["place"])


def test_what_a_model_writes_is_never_html(watched: Watched, serve_page: ServePage) -> None:
    call = {"index": 0, "id": "1", "function": {"name": HOSTILE, "arguments": HOSTILE}}
    script = Script(
        [
            chunk(reasoning_content=HOSTILE),
            chunk(HOSTILE),
            chunk(tool_calls=[call]),
            chunk(reason="tool_calls"),
        ],
        [{"error": {"message": HOSTILE}}],
    )
    url = serve_page(script, names=(HOSTILE,))
    page = watched.open(url)
    chat = ChatPage(page)
    assert chat.ask(HOSTILE) == HOSTILE
    assert chat.questions == [HOSTILE]
    expect(page.locator(".thought .said")).to_have_text(HOSTILE)
    expect(page.locator(".call strong")).to_have_text(HOSTILE)
    expect(page.locator(".call pre")).to_have_text(HOSTILE)
    expect(page.locator("#model option")).to_have_text(HOSTILE)
    schema = {"title": HOSTILE, "type": "object", "properties": {HOSTILE: {"enum": [HOSTILE]}}}
    chat.option("The answer is one instance of it", json.dumps(schema))
    chat.send("Again")
    chat.ended("failed")
    expect(chat.answer.locator(".note")).to_contain_text(HOSTILE)
    expect(chat.answer.locator(".form")).to_contain_text(HOSTILE)
    page.reload()
    ChatPage(page)
    assert page.evaluate("window.taken") is None
    assert page.locator("main img, main b:not(.legend b), main script").count() == 0


def test_reasoning_and_calls_of_tools_are_apart(watched: Watched, serve_page: ServePage) -> None:
    function = {"name": "weather", "arguments": '{"city": '}
    rest = {"index": 0, "function": {"arguments": '"Rome"}'}}
    script = Script(
        [
            chunk(reasoning_content="Let me see. "),
            chunk(reasoning_content="Rome."),
            chunk("I will look."),
            chunk(tool_calls=[{"index": 0, "id": "call-1", "function": function}]),
            chunk(tool_calls=[rest]),
            chunk(reason="tool_calls"),
        ],
        [chunk("It is sunny.", reason="stop")],
    )
    url = serve_page(script)
    page = watched.open(url)
    chat = ChatPage(page)
    assert chat.ask("What is the weather in Rome?") == "I will look."
    expect(page.locator(".thought .said")).to_have_text("Let me see. Rome.")
    expect(page.locator(".call pre")).to_have_text('{\n  "city": "Rome"\n}')
    page.get_by_label("Result").fill("sunny")
    chat.button("Send the results").click()
    expect(page.locator(".answer")).to_have_count(2)
    assert chat.ended() == "It is sunny."
    _, own, result = watched.sent[1]["messages"]
    assert own["tool_calls"][0]["function"] == {
        "name": "weather",
        "arguments": '{"city": "Rome"}',
    }
    assert result == {"role": "tool", "tool_call_id": "call-1", "content": "sunny"}


def test_json_is_read_as_far_as_it_has_come(watched: Watched, serve_page: ServePage) -> None:
    values: list[Any] = [
        {"a": [1, -2.5e3, {"b": None}], "c": 'x\n"\\\u00e9\ud83d\ude00', "d": {}, "e": []},
        [[], [[]], "", True, False],
        "text",
        {"__proto__": {"x": 1}, "constructor": 2},
    ]
    texts = [json.dumps(value, indent=indent) for value in values for indent in (None, 1)]
    url = serve_page()
    page = watched.open(url)
    wrong = page.evaluate(
        """async (texts) => {
            const module = new URL("page/partial_json.js", document.baseURI).href;
            const { readPartial } = await import(module);
            const wrong = [];
            for (const text of texts) {
                const { value, path } = readPartial(text);
                const isSame = JSON.stringify(value) === JSON.stringify(JSON.parse(text));
                if (!isSame || path !== null) wrong.push(text);
                for (let i = 0; i < text.length; i++) readPartial(text.slice(0, i));
            }
            const cut = {
                '{"a": "x': '{"value":{"a":"x"},"path":["a"]}',
                '{"a": [1, 2': '{"value":{"a":[1,2]},"path":["a",1]}',
                '{"a": tru': '{"value":{},"path":["a"]}',
                "{'a'": '{"value":{},"path":[]}',
            };
            for (const [text, expected] of Object.entries(cut)) {
                if (JSON.stringify(readPartial(text)) !== expected) wrong.push(text);
            }
            if (readPartial("[".repeat(100000)).path === null) wrong.push("deep");
            return wrong;
        }""",
        texts,
    )
    assert wrong == []
