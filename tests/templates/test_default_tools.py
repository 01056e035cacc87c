"""Real templates that ignore tools: tools, calls and results are in their prompts nevertheless."""

from __future__ import annotations

import pytest
from real_templates import CALLS, SPECIAL_TOKENS, TEMPLATES, TOOLS, USER, response_format

from pybatcher.text import ChatTemplate
from pybatcher.text.output import DefaultTools

IGNORE_TOOLS = {
    *("HuggingFaceTB-SmolLM3-3B", "deepseek-ai-DeepSeek-R1-Distill-Llama-8B"),
    *("deepseek-ai-DeepSeek-R1-Distill-Qwen-32B", "deepseek-ai-DeepSeek-V3.1"),
    *("google-gemma-2-2b-it", "llama-cpp-deepseek-r1", "llama-cpp-rwkv-world"),
    *("microsoft-Phi-3.5-mini-instruct", "template_alpaca", "template_chatglm"),
    *("template_chatglm2", "template_chatml", "template_falcon", "template_falcon_180b"),
    *("template_inkbot", "template_teleflm"),
    "fireworks-ai-llama-3-firefunction-v2",  # it needs the variable functions
}
SHOW_CALLS = {name for name in IGNORE_TOOLS if "deepseek" in name}
RESULTS = [
    {"role": "tool", "tool_call_id": call["id"], "name": "x", "content": f"result {i}"}
    for i, call in enumerate(CALLS)
]
TURNS = [USER, {"role": "assistant", "content": None, "tool_calls": CALLS}, *RESULTS, USER]


def template_of(name: str) -> ChatTemplate:
    return ChatTemplate(
        TEMPLATES[name].read_text(),
        special_tokens=SPECIAL_TOKENS,
        default_tools=DefaultTools(response_format(name)),
    )


def test_templates_that_ignore_tools() -> None:
    assert {name for name in TEMPLATES if not template_of(name).takes_tools()} == IGNORE_TOOLS


@pytest.mark.parametrize("name", sorted(IGNORE_TOOLS & TEMPLATES.keys()))
def test_a_chat_with_tools_is_in_the_prompt(name: str) -> None:
    if "firefunction" in name:
        return
    prompt = template_of(name).render(TURNS, tools=TOOLS)
    assert prompt.count("You may call these functions.") == 1
    for shown in ("get_weather", "Its <city>.", "Paris <é>", "result 0", "result 1"):
        assert shown in prompt, shown
    assert ("<tool_response>" in prompt.split("result 0")[0].rsplit("Sun or rain?", 1)[1]) is (
        name not in SHOW_CALLS
    )
