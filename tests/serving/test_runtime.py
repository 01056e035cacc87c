"""A model opened with another chat template, and chats with tools that a template ignores."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any, Literal

import pytest
from small_sidecar import sidecar

from pybatcher import Batcher, BlockingBatcher, Client, ConfigError, ModelFormatError
from pybatcher.testing import fake_batcher

PLAIN = (
    "{{ bos_token }}{% for m in messages %}{{ '<|' + m.role + '|>' + m.content + '<|end|>' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)
STRICT = (  # as Gemma's: no system message, and roles must alternate
    "{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('Conversation roles must alternate') }}{% endif %}"
    "{{ '<start_of_turn>' + m.role + '\n' + m.content | trim + '<end_of_turn>\n' }}{% endfor %}"
)
USER = {"role": "user", "content": "What is the weather in Rome?"}
OPTIONS: dict[str, Any] = {"n_ctx": 2048, "n_threads": 1}


def weather(city: Literal["Rome", "Oslo"]) -> str:
    """Tell the weather."""
    return f"{city}: sun"


async def prompt_of(batcher: Any, messages: list[Any], **options: Any) -> str:
    text: str = await batcher.detokenize(await batcher.tokenize(messages, **options))
    return text


async def test_a_model_calls_tools_that_its_template_ignores(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "plain.jinja"
    file.write_text(PLAIN)
    async with (
        Batcher(chat_template=file, **OPTIONS) as batcher,
        sidecar(tmp_path / "s", batcher),
        Client(tmp_path / "s") as client,
    ):
        for way in (batcher, client):
            info = await way.model_info()
            assert (info.chat_template, info.takes_tools) == (PLAIN, False)
            assert not info.takes_thinking
            made = await way.chat(
                [USER], tools=[weather], tool_choice="required", max_tokens=100, seed=1
            )
            (call,) = made.tool_calls[:1]
            assert call.name == "weather"
            assert call.arguments["city"] in ("Rome", "Oslo")
            result = {"role": "tool", "tool_call_id": call.id, "content": "Rome: sun"}
            shown = await prompt_of(way, [USER, made.message, result], tools=[weather])
            assert shown.count("# Tools") == 1
            assert '{"name": "weather", "description": "Tell the weather.", "param' in shown
            assert f"<|assistant|>{call.raw.strip()}" in shown
            end = "<|user|><tool_response>\nRome: sun\n</tool_response><|end|><|assistant|>"
            assert shown.endswith(end)
    warned = [one.getMessage() for one in caplog.records if one.levelno == logging.WARNING]
    assert [text[:40] for text in warned] == ["the model's chat template ignores tools:"]


async def test_the_place_of_the_tools_is_one_that_the_template_shows() -> None:
    tools = {"tools": [weather]}
    async with fake_batcher(chat_template=PLAIN, system_prompt="Be kind.") as batcher:
        shown = await prompt_of(batcher, [USER], **tools)
        assert shown.startswith("<|system|>Be kind.\n\n# Tools\n")
        assert await prompt_of(batcher, [USER], **tools, tool_choice="none") == await prompt_of(
            batcher, [USER]
        )
    async with fake_batcher(chat_template=STRICT) as batcher:
        shown = await prompt_of(batcher, [USER], **tools)
        assert shown.startswith("<start_of_turn>user\n# Tools\n")
        assert shown.endswith(f"\n\n{USER['content']}<end_of_turn>\n")
        call = {"name": "weather", "arguments": '{"city": "Rome"}'}
        chat: list[Any] = [
            USER,
            {"role": "assistant", "content": None, "tool_calls": [{"function": call}] * 2},
            {"role": "tool", "content": "sun"},
            {"role": "tool", "content": "rain"},
            {"role": "user", "content": "And?"},
        ]
        for options in (tools, {}):  # without tools the turns are shown too
            shown = await prompt_of(batcher, chat, **options)
            assert shown.count('{"name": "weather", "parameters": {"city": "Rome"}}') == 2
            assert shown.endswith("rain\n</tool_response>\n\nAnd?<end_of_turn>\n")


async def test_a_template_that_shows_tools_gets_them_itself(
    caplog: pytest.LogCaptureFixture,
) -> None:
    template = "{% for m in messages %}{{ m.role }}:{{ m.content }};{% endfor %}"
    template += "{% for t in tools or [] %}{{ t.function.name }}{% endfor %}"
    turns: list[Any] = [USER, {"role": "tool", "content": "sun"}]
    async with fake_batcher(chat_template=template) as batcher:
        shown = await prompt_of(batcher, turns, tools=[weather])
        assert shown == f"user:{USER['content']};tool:sun;weather"
    assert not caplog.records


async def test_what_switches_no_reasoning_is_warned_of_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with fake_batcher(chat_template=PLAIN + "{{ reasoning_effort }}") as batcher:
        for _ in range(2):
            await batcher.tokenize([USER], enable_thinking=False, reasoning_effort="low")
            await batcher.tokenize([USER], chat_template_kwargs={"enable_thinking": True})
    (record,) = caplog.records
    assert record.getMessage().startswith(
        "enable_thinking has no effect: the model's chat template"
    )


async def test_a_template_that_is_wrong_is_a_typed_error(tmp_path: Path) -> None:
    for template, said in (
        ("{% if %}", "chat_template: not a valid template"),
        ("{{ x }}" + " " * 2**17, "chat_template: stopped: it has 131079 characters"),
    ):
        with pytest.raises(ConfigError, match=said) as caught:
            await Batcher(chat_template=template, **OPTIONS).start()
        assert caught.value.field == "chat_template"
    for wrong in (tmp_path / "missing", "missing.jinja", 5):
        with pytest.raises(ConfigError, match=r"^chat_template is"):
            BlockingBatcher(chat_template=wrong, **OPTIONS)  # type: ignore[arg-type]


HOSTILE = (
    "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}{{ tools }}",
    "{% set ns = namespace(x='ab') %}{% for i in range(99) %}{% set ns.x = ns.x + ns.x %}"
    "{% endfor %}{{ ns.x }}{{ tools }}{{ enable_thinking }}",
    "{{ ''.__class__.__mro__ }}{{ tools }}",
    "{{ raise_exception('never') }}{{ tools }}",
)


@pytest.mark.parametrize("template", HOSTILE, ids=range(len(HOSTILE)))
async def test_a_hostile_template_harms_chats_only(template: str) -> None:
    async with Batcher(chat_template=template, **OPTIONS) as batcher:
        with pytest.raises((ModelFormatError, ValueError), match=r"chat.template"):
            await batcher.chat([USER], tools=[weather], enable_thinking=True, max_tokens=1)
        assert (await batcher.model_info()).takes_tools
        assert (await batcher.generate("a", max_tokens=1)).token_ids
