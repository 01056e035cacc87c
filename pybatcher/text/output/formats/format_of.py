"""`format_of`: finds the output format of a model from its checkpoint."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from .formats import DEEPSEEK_SEPARATOR, FORMATS, ResponseFormat
from .own_template import read_own_template

__all__ = ["format_of"]

# Formats by characteristic texts, all of which must occur; the first line that fits decides.
# Markers that only one family has stand before those that many share.
_RECOGNISED: tuple[tuple[tuple[str, ...], str], ...] = (
    (("<|channel|>", "<|message|>"), "harmony"),
    (("<|tool_call>", "<tool_call|>"), "gemma4"),
    (("<|channel>thought",), "gemma4"),
    (("<start_function_call>",), "function_gemma"),
    ((DEEPSEEK_SEPARATOR, "```json"), "deepseek"),
    ((DEEPSEEK_SEPARATOR,), "deepseek_v31"),
    (("<seed:tool_call>",), "seed_oss"),
    (("<arg_key>",), "glm"),
    (("<TOOLCALL>",), "nemotron"),
    (("[BEGIN FINAL RESPONSE]", "<tool_calls>"), "apriel"),
    (("<tool_calls>",), "tool_calls"),
    (("<|tool_call_start|>",), "lfm2"),
    (("<|tool_list_start|>",), "lfm2"),
    (("<|action_start|>",), "internlm2"),
    (("]<]minimax[>[",), "generic"),  # it also contains <tool_call>, with another meaning
    (("[TOOL_CALLS]", "[ARGS]"), "mistral"),
    (("[TOOL_CALLS]",), "mistral_json"),
    (("<function=", "<parameter="), "qwen_xml"),
    (("<|start_of_role|>", "<tool_call>"), "granite4"),
    (("<|start_of_role|>",), "granite"),
    (("<|tool_call|>",), "granite"),
    (("<function=", "<|python_tag|>"), "functionary"),
    ((">>>all",), "generic"),
    (("xml_tools", "/no_think"), "smollm3"),
    (("SmolLM", "/no_think"), "smollm3"),
    (("<tool_call>",), "hermes"),
    (("<|python_tag|>",), "llama3"),
    (("<|start_header_id|>",), "llama3"),
    (("<|header_start|>",), "llama3"),
    (("<start_of_turn>",), "gemma3"),
)

_BY_MODEL_TYPE = {
    "gpt_oss": "harmony",
    "gemma2": "gemma3",
    "gemma3": "gemma3",
    "gemma3_text": "gemma3",
    "gemma4": "gemma4",
    "gemma4_text": "gemma4",
    "deepseek_v3": "deepseek",
    "granite": "granite",
    "granitemoe": "granite",
    "granitemoehybrid": "granite4",
    "lfm2": "lfm2",
    "lfm2_moe": "lfm2",
    "llama4": "llama3",
    "mistral": "mistral_json",
    "mistral3": "mistral",
    "ministral3": "mistral",
    "qwen2": "hermes",
    "qwen3": "hermes",
    "qwen3_moe": "hermes",
    "qwen3_5": "qwen_xml",
    "qwen3_5_moe": "qwen_xml",
    "qwen3_next": "hermes",
    "smollm3": "smollm3",
}


def format_of(
    chat_template: str | None,
    model_type: str | None = None,
    own_template: Mapping[str, Any] | None = None,
) -> ResponseFormat:
    """Return the format that a model writes.

    chat_template: the Jinja source, recognised by characteristic texts.
    model_type: field of config.json; it decides if the chat template has nothing characteristic.
    own_template: the tokenizer's `response_template` (or `response_schema`), which has precedence:
        it is used directly if it can be read, else recognised by the same texts.

    Never raises; an unknown model has the format "generic".
    """
    template = chat_template or ""
    own = read_own_template(own_template)
    family = _recognise(_texts_of(own_template)) if own_template else ""
    family = family or _recognise(template) or _BY_MODEL_TYPE.get(model_type or "", "")
    if own is None:
        return FORMATS[family or "generic"]
    return _with_mistral_ids(_with_layout(own, FORMATS[family or "generic"]), template)


def _recognise(text: str) -> str:
    """Return the name of the format whose characteristic texts a text has, or ""."""
    for texts, name in _RECOGNISED:
        if all(one in text for one in texts):
            return name
    return ""


def _texts_of(template: object) -> str:
    """Return a template as one text, without the backslashes of its regular expressions."""
    try:
        text = json.dumps(template, ensure_ascii=False, default=str)
    except (ValueError, TypeError, RecursionError):
        return ""
    return text.replace("\\", "")


def _with_layout(own: ResponseFormat, family: ResponseFormat) -> ResponseFormat:
    """Return the tokenizer's own format, completed by the family's where it is silent.

    The completion is the blanks that the model writes beside markers, if both have the same
    markers.
    """
    calls = []
    for syntax in own.calls:
        known = [one for one in family.calls if set(one.opens) & set(syntax.opens)]
        if known and known[0].listed == syntax.listed:
            layout = known[0]
            syntax = replace(syntax, lead=layout.lead, tail=layout.tail, between=layout.between)
        calls.append(syntax)
    return replace(own, calls=tuple(calls))


def _with_mistral_ids(own: ResponseFormat, template: str) -> ResponseFormat:
    return replace(own, call_ids="mistral") if "[TOOL_CALLS]" in template else own
