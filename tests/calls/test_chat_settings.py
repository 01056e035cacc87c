from __future__ import annotations

from typing import Any

import pytest

from pybatcher import InvalidRequestError
from pybatcher.calls.call import chat_call, prompt_call
from pybatcher.calls.chat_settings import CHAT_OPTIONS, ChatSettings, settings_of

MESSAGES = [{"role": "user", "content": "Hi"}]


def test_variables_of_the_template_are_those_that_are_given() -> None:
    assert ChatSettings().template_variables() == {}
    given = ChatSettings(
        enable_thinking=False,
        reasoning_effort="low",
        chat_template_kwargs={"date": "today", "enable_thinking": True},
    )
    assert given.template_variables() == {
        "date": "today",
        "enable_thinking": False,
        "reasoning_effort": "low",
    }


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"enable_thinking": 1}, "enable_thinking is 1"),
        ({"reasoning_effort": "x" * 65}, "reasoning_effort is"),
        ({"chat_template_kwargs": "x"}, "chat_template_kwargs is 'x'"),
        ({"chat_template_kwargs": {1: 2}}, "chat_template_kwargs is dict with the field 1"),
    ],
)
def test_bad_variables(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidRequestError) as raised:
        ChatSettings(**options).template_variables()
    assert str(raised.value).startswith(message)


def test_limits_and_flags() -> None:
    assert ChatSettings().reasoning_budget() is None
    assert ChatSettings(max_reasoning_tokens=7).reasoning_budget() == 7
    assert ChatSettings(parallel_tool_calls=False).is_parallel() is False
    for bad in (0, -1, 1.5, "7", True, 2**40):
        with pytest.raises(InvalidRequestError, match="max_reasoning_tokens is"):
            ChatSettings(max_reasoning_tokens=bad).reasoning_budget()  # type: ignore[arg-type]
    with pytest.raises(InvalidRequestError, match="parallel_tool_calls is"):
        ChatSettings(parallel_tool_calls="no").is_parallel()  # type: ignore[arg-type]


def test_options_of_a_chat_are_told_from_those_of_sampling() -> None:
    options = dict.fromkeys(CHAT_OPTIONS, None) | {"seed": 3, "priority": 2}
    call = chat_call(MESSAGES, None, options)
    assert isinstance(call.chat, ChatSettings)
    assert (call.sampling, call.priority) == ({"seed": 3}, 2)
    prompt = prompt_call("Hi", None, {"seed": 3, "output": [1], "timeout": 2.0})
    assert (prompt.chat, prompt.output, prompt.timeout) == (None, [1], 2.0)
    for name in CHAT_OPTIONS:
        with pytest.raises(InvalidRequestError, match=f"{name} is an option of chats"):
            prompt_call("Hi", None, {name: None})


def test_settings_go_with_messages_only() -> None:
    assert settings_of("Hi", {}) is None
    assert settings_of([1, 2], {}) is None
    assert settings_of(MESSAGES, {"tools": []}) == ChatSettings(tools=[])
    with pytest.raises(InvalidRequestError, match="'tools' goes with messages"):
        settings_of("Hi", {"tools": []})
    with pytest.raises(InvalidRequestError, match="unknown option 'seed'"):
        settings_of(MESSAGES, {"seed": 1})
