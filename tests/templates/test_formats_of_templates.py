"""The family of each real template, and turns that come back as the parser reads them."""

from __future__ import annotations

from typing import Any

import pytest
from real_templates import (
    CONTENT,
    REASONING,
    TEMPLATES,
    TOOLS,
    TURNS,
    Turn,
    response_format,
    turn_of,
)
from response_texts import fed, joined, whole_text

from pybatcher.text.output import (
    FORMATS,
    ParsedResponse,
    ResponseFormat,
    ResponseParser,
    read_tools,
    schemas_of,
)

FAMILIES = {
    "apriel": "Apriel-1.6-15b-Thinker-fixed unsloth-Apriel-1.5",
    "deepseek": """
        deepseek-ai-DeepSeek-R1-Distill-Llama-8B deepseek-ai-DeepSeek-R1-Distill-Qwen-32B
        llama-cpp-deepseek-r1 tool_chat_template_deepseekr1 tool_chat_template_deepseekv3
    """,
    "deepseek_v31": "deepseek-ai-DeepSeek-V3.1 tool_chat_template_deepseekv31",
    "function_gemma": "tool_chat_template_functiongemma",
    "functionary": "meetkai-functionary-medium-v3.1",
    "gemma3": "google-gemma-2-2b-it tool_chat_template_gemma3_pythonic",
    "gemma4": """
        google-gemma-4-31B-it google-gemma-4-31B-it-interleaved tool_chat_template_gemma4
    """,
    "glm": """
        GLM-4.6 GLM-4.7-Flash Spark2.5 inclusionai-ling-3.0-flash poolside-Laguna-S-2.1
        poolside-Laguna-XS-2.1 poolside-Laguna-XS.2 tool_chat_template_glm4
    """,
    "granite": "ibm-granite-granite-3.3-2B-Instruct tool_chat_template_granite",
    "granite4": "ibm-granite-granite-4.0 ibm-granite-granite-4.1",
    "harmony": "openai-gpt-oss-120b",
    "hermes": """
        Bielik-11B-v3.0-Instruct MiMo-VL NousResearch-Hermes-2-Pro-Llama-3-8B-tool_use
        NousResearch-Hermes-3-Llama-3.1-8B-tool_use Qwen-QwQ-32B Qwen-Qwen2.5-7B-Instruct
        Qwen-Qwen3-0.6B Reka-Edge tool_chat_template_hermes
    """,
    "internlm2": "tool_chat_template_internlm2_tool",
    "lfm2": "LFM2-8B-A1B LFM2.5-8B-A1B",
    "llama3": """
        fireworks-ai-llama-3-firefunction-v2 meta-llama-Llama-3.1-8B-Instruct
        meta-llama-Llama-3.2-3B-Instruct meta-llama-Llama-3.3-70B-Instruct
        tool_chat_template_llama3.1_json tool_chat_template_llama3.2_json
        tool_chat_template_llama3.2_pythonic tool_chat_template_llama4_json
        tool_chat_template_llama4_pythonic tool_chat_template_toolace tool_chat_template_xlam_llama
    """,
    "mistral": """
        Mistral-Small-3.2-24B-Instruct-2506 mistralai-Ministral-3-14B-Reasoning-2512
        unsloth-mistral-Devstral-Small-2507
    """,
    "mistral_json": """
        mistralai-Mistral-Nemo-Instruct-2407 tool_chat_template_mistral tool_chat_template_mistral3
        tool_chat_template_mistral_parallel
    """,
    "nemotron": "NVIDIA-Nemotron-Nano-v2",
    "qwen_xml": """
        NVIDIA-Nemotron-3-Nano-30B-A3B-BF16 Qwen3-Coder Qwen3.5-4B StepFun3.5-Flash
        tool_chat_template_qwen3coder
    """,
    "seed_oss": "ByteDance-Seed-OSS",
    "smollm3": "HuggingFaceTB-SmolLM3-3B",
    "tool_calls": "MiniMax-M1 tool_chat_template_hunyuan_a13b",
    # Without calls of their own, or with calls as bare JSON.
    "generic": """
        LFM2.5-Instruct llama-cpp-rwkv-world microsoft-Phi-3.5-mini-instruct template_alpaca
        template_chatglm template_chatglm2 template_chatml template_falcon template_falcon_180b
        template_inkbot template_teleflm tool_chat_template_phi4_mini tool_chat_template_xlam_qwen
    """,
}

# Of families that have no format here: what they write is text.
_UNKNOWN = """
    Apertus-8B-Instruct Cohere2MoE CohereForAI-c4ai-command-r-plus-tool_use
    CohereForAI-c4ai-command-r7b-12-2024-tool_use GigaChat3-10B-A1.8B GigaChat3.1-10B-A1.8B
    Kimi-K2-Instruct Kimi-K2-Thinking Kimi-K3 MiniMax-M2 MiniMax-M3 deepseek-ai-DeepSeek-V3.2
    deepseek-ai-DeepSeek-V4 deepseek-ai-DeepSeek-V4-Flash-0731 meetkai-functionary-medium-v3.2
    moonshotai-Kimi-K2 muse-glimmer openbmb-MiniCPM5-1B tencent-Hy3 tool_chat_template_apertus
    tool_chat_template_granite_20b_fc tool_chat_template_muse_glimmer upstage-Solar-Open-100B
"""
UNKNOWN = _UNKNOWN.split()

NO_QUOTES = "the template writes texts without quotes, or with quotes that it does not escape"
BARE = "nothing opens a call here, so that only the start of a response can be one"
CALLING = ("call", "calls", "content and call", "reasoning and calls", "all")

# Turns that do not come back, and why.
LOST = {
    **{("tool_chat_template_llama3.2_pythonic", turn): NO_QUOTES for turn in CALLING},
    **{("tool_chat_template_toolace", turn): NO_QUOTES for turn in CALLING},
    **{("tool_chat_template_gemma3_pythonic", turn): "it leaves out commas" for turn in CALLING},
    ("tool_chat_template_llama4_pythonic", "calls"): NO_QUOTES,
    ("tool_chat_template_llama4_pythonic", "reasoning and calls"): NO_QUOTES,
    ("tool_chat_template_llama4_pythonic", "content and call"): BARE,
    ("tool_chat_template_llama4_pythonic", "all"): BARE,
    ("tool_chat_template_llama4_json", "content and call"): BARE,
    ("tool_chat_template_llama4_json", "all"): BARE,
    ("openai-gpt-oss-120b", "content and call"): "it writes content before a call as reasoning",
    **{
        ("NVIDIA-Nemotron-Nano-v2", turn): "it opens reasoning, and writes content into it"
        for turn in ("content", "content and call", "reasoning", "all")
    },
}
SCHEMAS = schemas_of(read_tools(TOOLS))
KNOWN = [name for name in TEMPLATES if name not in UNKNOWN]


def parts_of(response: ParsedResponse) -> tuple[str, str, list[tuple[str, dict[str, Any]]]]:
    """The parts, without the blanks with which a template begins and ends a turn."""
    calls = [(call.name, call.arguments) for call in response.tool_calls]
    return response.content.strip(), response.reasoning, calls


def written_parts(
    message: dict[str, Any], text: str
) -> tuple[str, str, list[tuple[str, dict[str, Any]]]]:
    """The parts of a message that its template has written; many leave some out."""
    functions = [call["function"] for call in message.get("tool_calls", [])]
    return (
        CONTENT if message["content"] and CONTENT in text else "",
        REASONING if "reasoning_content" in message and REASONING in text else "",
        [(one["name"], one["arguments"]) for one in functions if one["name"] in text],
    )


def begins_in_reasoning(format: ResponseFormat, turn: Turn) -> bool:
    """Whether the turn goes on with reasoning that only the prompt opens."""
    if not format.opens_reasoning(turn.prompt):
        return False
    return any(one.close in turn.text and one.open not in turn.text for one in format.think)


def parser_of(format: ResponseFormat, *, in_reasoning: bool) -> ResponseParser:
    return ResponseParser(format, schemas=SCHEMAS, in_reasoning=in_reasoning)


def test_every_template_has_a_family() -> None:
    named = [name for names in FAMILIES.values() for name in names.split()] + UNKNOWN
    assert sorted(named) == sorted(TEMPLATES)


@pytest.mark.parametrize("name", TEMPLATES)
def test_the_family_is_recognised(name: str) -> None:
    family = next((one for one, names in FAMILIES.items() if name in names.split()), "generic")
    assert response_format(name).name == family


@pytest.mark.parametrize("name", KNOWN)
def test_a_turn_comes_back(name: str) -> None:
    format = response_format(name)
    for label, message in TURNS.items():
        turn = turn_of(name, message)
        if turn is None:
            continue
        parser = parser_of(format, in_reasoning=begins_in_reasoning(format, turn))
        assert whole_text(fed(parser, [turn.text])) == turn.text
        came_back = parts_of(parser.response()) == written_parts(message, turn.text)
        assert came_back is ((name, label) not in LOST), f"{label}: {turn.text!r}"


@pytest.mark.parametrize("name", KNOWN)
def test_a_turn_comes_back_behind_what_the_prompt_writes_of_it(name: str) -> None:
    format = response_format(name)
    for label, message in TURNS.items():
        turn = turn_of(name, message)
        if turn is None or not turn.prefill or not turn.text.startswith(turn.prefill):
            continue
        rest = turn.text.removeprefix(turn.prefill)
        parser = parser_of(format, in_reasoning=format.opens_reasoning(turn.prompt))
        assert whole_text(fed(parser, [rest])) == rest
        if (name, label) not in LOST:
            assert parts_of(parser.response()) == written_parts(message, turn.text), label


@pytest.mark.parametrize("name", TEMPLATES)
def test_no_cut_changes_what_comes_back(name: str) -> None:
    format = response_format(name)
    for label, message in TURNS.items():
        turn = turn_of(name, message)
        if turn is None:
            continue
        in_reasoning = begins_in_reasoning(format, turn)
        whole = joined(fed(parser_of(format, in_reasoning=in_reasoning), [turn.text]))
        pieces = [list(turn.text)]
        if label in ("calls", "all"):
            cuts = range(1, len(turn.text))
            pieces += [[turn.text[:cut], turn.text[cut:]] for cut in cuts]
        for one in pieces:
            assert joined(fed(parser_of(format, in_reasoning=in_reasoning), one)) == whole, one


@pytest.mark.parametrize("name", [name for name in TEMPLATES if name in UNKNOWN])
def test_what_is_not_known_is_text(name: str) -> None:
    for message in TURNS.values():
        turn = turn_of(name, message)
        if turn is None:
            continue
        parser = parser_of(response_format(name), in_reasoning=False)
        assert whole_text(fed(parser, [turn.text])) == turn.text
        assert not parser.response().tool_calls


def test_each_format_is_read_in_a_real_turn() -> None:
    read = set()
    for name in KNOWN:
        turn = turn_of(name, TURNS["call"])
        if turn is not None and "get_weather" in turn.text and (name, "call") not in LOST:
            read.add(response_format(name).name)
    # SmolLM3's template writes no calls, and Gemma 3's broken ones.
    assert set(FORMATS) - read == {"smollm3", "gemma3"}
