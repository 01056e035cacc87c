"""The answers of this server go back to each real template, in the forms of all three APIs."""

from __future__ import annotations

from typing import Any

import pytest
from real_templates import (
    CALLS,
    CONTENT,
    REASONING,
    TEMPLATES,
    TOOLS,
    USER,
    chat_template,
    with_json_texts,
)

from pybatcher.errors import InvalidRequestError, ModelFormatError

AFTER = {"role": "user", "content": "And tomorrow?"}
CUT = {"name": "get_weather", "arguments": '{"city": "Paris", "days'}

# By name: the answer, and results of its calls. An answer has None beside calls in OpenAI's chats,
# and an empty text in the other two APIs.
ANSWERS: dict[str, dict[str, Any]] = {
    "text": {"content": CONTENT},
    "reasoning": {"content": CONTENT, "reasoning_content": REASONING},
    "call": {"content": None, "tool_calls": CALLS[:1]},
    "calls": {"content": None, "tool_calls": CALLS},
    "text and call": {"content": CONTENT, "tool_calls": CALLS[:1]},
    "reasoning and call": {
        "content": None,
        "reasoning_content": REASONING,
        "tool_calls": CALLS[:1],
    },
    "cut": {"content": None, "tool_calls": [{**CALLS[0], "function": CUT}]},
}


def chat_with(answer: dict[str, Any]) -> list[dict[str, Any]]:
    results = [
        {
            "role": "tool",
            "tool_call_id": call["id"],
            "name": call["function"]["name"],
            "content": "ok",
        }
        for call in answer.get("tool_calls", [])
    ]
    message = {"role": "assistant", **answer}
    if answer.get("tool_calls", [{}])[0].get("function") is not CUT:
        (message,) = with_json_texts([message])
    return [USER, message, *results] if results else [USER, message, AFTER]


def rendered(name: str, answer: dict[str, Any]) -> str | Exception:
    try:
        return chat_template(name).render(chat_with(answer), tools=TOOLS)
    except (InvalidRequestError, ModelFormatError) as error:
        return error


@pytest.mark.parametrize("name", TEMPLATES)
def test_an_answer_goes_back(name: str) -> None:
    """Where one call with a text goes back, all answers do, and the calls are in the prompt."""
    whole = rendered(name, ANSWERS["text and call"])
    several = chat_template(name).takes_several_calls()
    for label, answer in ANSWERS.items():
        if (label == "calls" and not several) or (isinstance(whole, Exception) and label != "text"):
            continue
        empty = {**answer, "content": answer["content"] or ""}
        texts = [rendered(name, one) for one in (answer, empty)]
        for text in texts:
            if name in REFUSED:
                continue
            assert isinstance(text, str), f"{label}: {text}"
            calls = answer.get("tool_calls", [])
            if calls and "Paris" in str(whole):
                assert "Paris" in text, label
            if label == "calls" and "Paris" in str(whole):
                assert "if a < b" in text.replace("\\u003c", "<")


REFUSED = {
    "llama-cpp-deepseek-r1": "a chat with tools: it writes a generator as JSON",
    "CohereForAI-c4ai-command-r-plus-tool_use": "another shape of tools",
    "fireworks-ai-llama-3-firefunction-v2": "a chat without the variable functions",
}


def test_templates_that_take_one_call_of_a_message() -> None:
    assert {name for name in TEMPLATES if not chat_template(name).takes_several_calls()} == {
        *("GigaChat3-10B-A1.8B", "GigaChat3.1-10B-A1.8B", "openai-gpt-oss-120b"),
        *("meta-llama-Llama-3.1-8B-Instruct", "meta-llama-Llama-3.2-3B-Instruct"),
        *("meta-llama-Llama-3.3-70B-Instruct", "tool_chat_template_llama3.1_json"),
        "tool_chat_template_llama3.2_json",
    }
