"""Real templates in the sandbox, against transformers' own renderer: the same text, to the byte."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
from real_templates import (
    CALLS,
    SPECIAL_TOKENS,
    TEMPLATES,
    TOOLS,
    TURNS,
    USER,
    chat_template,
    with_json_texts,
)
from transformers.utils.chat_template_utils import render_jinja_template

from pybatcher.errors import InvalidRequestError, ModelFormatError
from pybatcher.text.message_forms import MessageForms, message_forms_of
from pybatcher.text.sandbox import Sandbox

SYSTEM = {"role": "system", "content": "Be <b>terse</b> & kind.\n"}
RESULT = {"role": "tool", "tool_call_id": "abcdefgh1", "name": "get_weather", "content": "sunny"}
AFTER = {"role": "user", "content": "And  tomorrow? 日本"}

# Messages, and what else a call of `render` has.
CHATS: dict[str, tuple[list[dict[str, Any]], dict[str, Any]]] = {
    "question": ([USER], {}),
    "turns": ([USER, TURNS["content"], AFTER], {}),
    "system": ([SYSTEM, USER], {}),
    "tools": ([USER], {"tools": TOOLS}),
    "system and tools": ([SYSTEM, USER], {"tools": TOOLS}),
    "call": ([USER, TURNS["content and call"]], {"tools": TOOLS}),
    "calls": ([USER, TURNS["calls"]], {"tools": TOOLS}),
    "result": ([USER, TURNS["call"], RESULT], {"tools": TOOLS}),
    "results": (
        [USER, TURNS["calls"], RESULT, {**RESULT, "tool_call_id": CALLS[1]["id"], "name": "run"}],
        {"tools": TOOLS},
    ),
    "after a result": ([USER, TURNS["call"], RESULT, TURNS["content"], AFTER], {"tools": TOOLS}),
    "reasoning": ([USER, TURNS["reasoning"]], {}),
    "reasoning, calls": ([USER, TURNS["reasoning and calls"], RESULT], {"tools": TOOLS}),
    "thinking": ([USER], {"variables": {"enable_thinking": True}}),
    "no thinking": ([USER], {"variables": {"enable_thinking": False}}),
    "effort": ([USER], {"variables": {"reasoning_effort": "high"}}),
}

# Templates that take no such chat: neither here nor in transformers.
REFUSED = {
    "CohereForAI-c4ai-command-r-plus-tool_use": "a chat without tools",
    "NousResearch-Hermes-2-Pro-Llama-3-8B-tool_use": "a chat without tools",
    "NousResearch-Hermes-3-Llama-3.1-8B-tool_use": "a chat without tools",
    "tool_chat_template_functiongemma": "a chat without tools",
    "fireworks-ai-llama-3-firefunction-v2": "a chat without the variable functions",
}


def ours(name: str, chat: str, *, add: bool) -> str | Exception:
    messages, options = CHATS[chat]
    try:
        return chat_template(name).render(messages, add_generation_prompt=add, **options)
    except (InvalidRequestError, ModelFormatError) as error:
        return error


def theirs(name: str, chat: str, *, add: bool) -> str | Exception:
    messages, options = CHATS[chat]
    if wants_text(name):
        messages = with_json_texts(messages)
    if wants_null(name):
        messages = [
            {**one, "content": None} if one.get("tool_calls") and not one["content"] else one
            for one in messages
        ]
    try:
        rendered, _ = render_jinja_template(
            [messages],
            tools=options.get("tools"),
            chat_template=TEMPLATES[name].read_text(),
            add_generation_prompt=add,
            **SPECIAL_TOKENS,
            **options.get("variables", {}),
        )
    except Exception as error:  # of any type: the template's own code raised it
        return error
    return str(rendered[0])


@cache
def forms_of(name: str) -> MessageForms:
    sandbox = Sandbox(TEMPLATES[name].read_text())
    return message_forms_of(lambda values: sandbox.render({**SPECIAL_TOKENS, **values}))


def wants_text(name: str) -> bool:
    return forms_of(name).arguments == "text"


def wants_null(name: str) -> bool:
    return forms_of(name).beside_calls == (None,)


@pytest.mark.parametrize("name", TEMPLATES)
def test_renders_as_transformers_does(name: str) -> None:
    n_rendered = 0
    for chat in CHATS:
        for add in (True, False):
            before, found, after = (
                theirs(name, chat, add=add),
                ours(name, chat, add=add),
                theirs(name, chat, add=add),
            )
            if isinstance(found, Exception):
                assert isinstance(after, Exception), f"{chat}: {found}"
                continue
            assert found in (before, after), chat  # one of them, where it writes the day
            n_rendered += 1
    assert n_rendered >= (0 if "firefunction" in name else 1 if name in REFUSED else 10)


@pytest.mark.parametrize("name", TEMPLATES)
def test_a_question_is_refused_by_few(name: str) -> None:
    assert isinstance(ours(name, "question", add=True), Exception) is (name in REFUSED)


@pytest.mark.parametrize("name", TEMPLATES)
def test_arguments_may_be_json_texts(name: str) -> None:
    template = chat_template(name)
    for chat in ("call", "calls", "result"):
        messages, options = CHATS[chat]
        try:
            expected = template.render(messages, **options)
        except (InvalidRequestError, ModelFormatError):
            continue
        assert template.render(with_json_texts(messages), **options) == expected


def test_templates_of_which_arguments_are_texts() -> None:
    assert {name for name in TEMPLATES if wants_text(name)} == {
        "deepseek-ai-DeepSeek-R1-Distill-Llama-8B",
        "meetkai-functionary-medium-v3.2",
        "tool_chat_template_phi4_mini",
    }


def test_templates_that_show_calls_beside_null_alone() -> None:
    expected = {"deepseek-ai-DeepSeek-R1-Distill-Llama-8B"}
    assert {name for name in TEMPLATES if wants_null(name)} == expected


@pytest.mark.parametrize("name", TEMPLATES)
def test_arguments_that_are_no_json_are_never_the_templates_fault(name: str) -> None:
    template = chat_template(name)
    try:
        template.render([USER, TURNS["call"]], tools=TOOLS)
    except (InvalidRequestError, ModelFormatError):
        return
    call = {**CALLS[0], "function": {"name": "get_weather", "arguments": '{"city": "Pa'}}
    message = {**TURNS["call"], "tool_calls": [call]}
    try:
        template.render([USER, message], tools=TOOLS)
    except InvalidRequestError as error:
        said = str(error)
    else:
        return
    assert "arguments" in said


PARTS = [{"type": "text", "text": text} for text in ("Hello, ", " my\nworld ", "日本")]
OF_PARTS: dict[str, list[dict[str, Any]]] = {
    "user": [{"role": "user", "content": PARTS}],
    "system": [{"role": "system", "content": PARTS}, USER],
    "assistant": [USER, {"role": "assistant", "content": PARTS}, {**USER, "content": PARTS}],
}
# Templates that strip only some parts, or take parts from a user and lose them of an assistant.
OTHER_PARTS = {
    ("Apriel-1.6-15b-Thinker-fixed", "assistant"),
    ("unsloth-Apriel-1.5", "assistant"),
    ("unsloth-mistral-Devstral-Small-2507", "assistant"),
    ("tool_chat_template_gemma4", "system"),
    ("tool_chat_template_mistral3", "assistant"),
}


@pytest.mark.parametrize("name", TEMPLATES)
def test_text_parts_are_joined_as_by_transformers(name: str) -> None:
    for role, messages in OF_PARTS.items():
        try:
            rendered, _ = render_jinja_template(
                [messages],
                chat_template=TEMPLATES[name].read_text(),
                add_generation_prompt=True,
                **SPECIAL_TOKENS,
            )
        except Exception:  # of any type: the template takes only texts
            continue
        (text,) = rendered
        if "'text'" in text or '"text"' in text or "world" not in text:
            continue  # it writes parts in Python's notation, or loses them
        found = chat_template(name).render(messages)
        assert (found == text) is ((name, role) not in OTHER_PARTS), role
