"""Against transformers' parser of responses, with the response templates that it brings along.

Where the two differ, the case says why. The blanks at both ends of the content are not compared:
here the text of an answer stays as it is, there it is stripped.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import pytest

from pybatcher.text.output import format_of, parse_response, read_tools, schemas_of

oracle = pytest.importorskip("transformers.utils.chat_parsing")
with warnings.catch_warnings(action="ignore"):
    serving = pytest.importorskip("transformers.cli.serving.utils")

Parts = tuple[str, str, list[tuple[str, Any]]]


def _tool(name: str, **properties: str) -> dict[str, Any]:
    schemas = {key: {"type": kind} for key, kind in properties.items()}
    return {
        "type": "function",
        "function": {
            "name": name,
            "description": "A tool.",
            "parameters": {"type": "object", "properties": schemas},
        },
    }


TOOLS = [
    _tool("get_weather", city="string", days="integer"),
    _tool("run", code="string", check="boolean", tags="array"),
]
OWN = {
    "own": {
        "start_anchor": "<bot>",
        "fields": {
            "thinking": {"open": "<hm>", "close": "</hm>"},
            "tool_calls": {
                "open": ["<do>", "<act>"],
                "close": "</do>",
                "repeats": True,
                "content": "json",
                "transform": {"type": "function", "function": "{content}"},
            },
            "content": {"content": "text"},
        },
    },
    "own_list": {
        "start_anchor": "<bot>",
        "fields": {
            "tool_calls": {
                "open": "[CALLS]",
                "close": "[/CALLS]",
                "content": "json",
                "transform_each": True,
                "transform": {
                    "type": "function",
                    "function": {"name": "{tool}", "arguments": "{input}"},
                },
            },
            "content": {},
        },
    },
    "own_dotted": {
        "start_anchor": "<bot>",
        "fields": {
            "tool_calls": {
                "open_pattern": r"\s*<\|act\|>\s*",
                "close_pattern": r"\s*(?:<\|done\|>|<\|end\|>)",
                "repeats": True,
                "content": "json",
                "transform": {
                    "type": "function",
                    "function": {"name": "{content.tool}", "arguments": "{content.input}"},
                },
            },
            "content": {"close_pattern": r"<\|eos\|>$"},
        },
    },
}


@dataclass(frozen=True)
class Case:
    """An output, and why it is read otherwise than by transformers; "" where it is not."""

    template: str
    text: str
    why: str = ""
    prefill: str = ""


REJECTED = "a call that is none is text here, and an error there"
LAST = "all of the content stays; there the last piece of it replaces the others"
START = "reasoning comes first in a response, so that a text about its marker stays a text"
JSON_TYPES = "arguments in JSON are passed on as they come, with the types that the model wrote"
LOST = "there a call that is cut off, or has no parameter, is one without arguments"
BARE_WORD = "a text that the model did not quote is one here, and an error there"

HERMES = (
    '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris", "days": 3}}\n</tool_call>'
)
XML = (
    "<tool_call>\n<function=get_weather>\n<parameter=city>\nParis\n</parameter>\n<parameter=days>"
    "\n3\n</parameter>\n</function>\n</tool_call>"
)
XML_RUN = (
    "<tool_call>\n<function=run>\n<parameter=code>\nif a:\n  b()\n</parameter>\n<parameter=check>"
    '\nTrue\n</parameter>\n<parameter=tags>\n["x"]\n</parameter>\n</function>\n</tool_call>'
)
GEMMA = '<|tool_call>call:get_weather{city:<|"|>Paris<|"|>,days:3}<tool_call|>'
GEMMA_RUN = (
    '<|tool_call>call:run{check:true,code:<|"|>if a < b: {x}, "y"<|"|>,tags:[<|"|>x<|"|>]}'
    "<tool_call|>"
)
ACT = '<act>{"name": "get_weather", "arguments": {"city": "Paris", "days": 3}}</do>'
LIST = '[CALLS][{"tool": "run", "input": {"check": true}}, {"tool": "run", "input": {}}][/CALLS]'
DOTTED = '<|act|>{"tool": "run", "input": {"check": true}}'

CASES = [
    Case("qwen3", "Yes.\n\nNo."),
    Case("qwen3", "  Yes.  \n"),
    Case("qwen3", "<think>\nHm.\n</think>\n\nYes."),
    Case("qwen3", "<think>\n\n</think>\n\nYes."),
    Case("qwen3", "\nHm.\n</think>\n\nYes.", prefill="<think>"),
    Case("qwen3", "<think>never closed"),
    Case("qwen3", "a </think> b"),
    Case("qwen3", HERMES),
    Case("qwen3", f"<think>\nHm.\n</think>\n\nLet me.\n{HERMES}\n{HERMES}"),
    Case("qwen3", f"{HERMES}\nafter"),
    Case("qwen3", '<tool_call>{"arguments": {"code": "é\\n</x>"}, "name": "run"}</tool_call>'),
    Case("qwen3", f"before {HERMES} after", LAST),
    Case("qwen3", f"a\n{HERMES}\nb\n{HERMES}\nc", LAST),
    Case("qwen3", "About <think>: a tag", START),
    Case("qwen3", '<tool_call>\n{"name": oops}\n</tool_call>', REJECTED),
    Case("qwen3", '<tool_call>\n{"name": "get_weather"', REJECTED),
    Case("qwen3", "A <tool_call> tag", REJECTED),
    Case("qwen3", "x<tool_call></tool_call>", REJECTED),
    Case(
        "qwen3",
        '<tool_call>{"name": "run", "arguments": {"check": "true"}}</tool_call>',
        JSON_TYPES,
    ),
    Case("qwen3", '<tool_call>{"name": "run"}</tool_call>', "no arguments are {} here, not None"),
    Case("qwen3_5", "Yes."),
    Case("qwen3_5", "\nHm.\n</think>\n\nYes.", prefill="<think>\n"),
    Case("qwen3_5", f"Hm.\n</think>\n\n{XML}", prefill="<think>\n"),
    Case("qwen3_5", f"{XML}\n{XML_RUN}"),
    Case("qwen3_5", f"Let me.\n\n{XML}"),
    Case("qwen3_5", f"{XML} after"),
    Case("qwen3_5", "<tool_call>\n<function=run>\n<parameter=code>\n1", LOST),
    Case("qwen3_5", "<tool_call>\n<function=run>\nParis\n</function>\n</tool_call>", LOST),
    Case("gemma4", "Yes."),
    Case("gemma4", "<|channel>thought\nHm.\n<channel|>Yes."),
    Case("gemma4", GEMMA + GEMMA_RUN),
    Case("gemma4", f"<|channel>thought\nHm.\n<channel|>{GEMMA_RUN}"),
    Case("gemma4", f"Let me.{GEMMA}"),
    Case("gemma4", f"{GEMMA}after"),
    Case("gemma4", '<|tool_call>call:run{tags:[],code:<|"|><|"|>}<tool_call|>'),
    Case("gemma4", "<|tool_call>call:run{}<tool_call|>"),
    Case("gemma4", '<|tool_call>call:run{check:<|"|>true<|"|>}<tool_call|>'),
    Case("gemma4", "<|tool_call>call:run{code:", REJECTED),
    Case("gemma4", "<|tool_call>call:run{code:oops}<tool_call|>", BARE_WORD),
    Case("own", "Yes."),
    Case("own", "<hm>Hm.</hm>Yes."),
    Case("own", f"<hm>Hm.</hm>{ACT}{ACT}"),
    Case("own", f"Let me.{ACT}"),
    Case("own", f"{ACT} after"),
    Case("own", "Hm.</hm>Yes.", prefill="<hm>"),
    Case("own", "<do>{}</do>", "a call without a name is text here"),
    Case("own", "<do>{</do>", REJECTED),
    Case("own", f"a{ACT}b", LAST),
    Case("own_list", "Yes."),
    Case("own_list", LIST),
    Case("own_list", f"Let me.\n{LIST}"),
    Case("own_list", "[CALLS][]", "a list without calls is text here"),
    Case("own_list", '[CALLS]{"tool": "run"}', "a call without the list around it is one here"),
    Case("own_list", '[CALLS]["run"]', REJECTED),
    Case("own_dotted", "Yes."),
    Case("own_dotted", f"{DOTTED}<|done|>\n{DOTTED}\n<|end|>"),
    Case("own_dotted", f"Let me.\n{DOTTED}<|end|>"),
    Case("own_dotted", "<|act|>1<|end|>", REJECTED),
]


def template_of(name: str) -> dict[str, Any]:
    if name in OWN:
        return OWN[name]
    known = getattr(serving, "_RESPONSE_TEMPLATE_FALLBACKS", {})
    found = next((one for types, one in known.items() if name in types), None)
    if found is None:
        pytest.skip("this version of transformers brings no such template along")
    return dict(found)


def prompt_of(template: dict[str, Any], prefill: str) -> str:
    anchor = template["start_anchor"]
    return "A question." + (anchor if isinstance(anchor, str) else anchor[0]) + prefill


def ours(template: dict[str, Any], case: Case) -> Parts:
    format = format_of(None, None, template)
    in_reasoning = format.opens_reasoning(prompt_of(template, case.prefill))
    schemas = schemas_of(read_tools(TOOLS))
    response = parse_response(case.text, format, schemas=schemas, in_reasoning=in_reasoning)
    calls = [(call.name, call.arguments) for call in response.tool_calls]
    return response.content.strip(), response.reasoning, calls


def theirs(template: dict[str, Any], case: Case) -> Parts | None:
    prompt = prompt_of(template, case.prefill)
    try:
        message = oracle.parse_response(case.text, template, prefix=prompt, tools=TOOLS)
    except (ValueError, KeyError):
        return None
    functions = [call["function"] for call in message.get("tool_calls", [])]
    reasoning = message.get("reasoning_content", message.get("thinking", ""))
    calls = [(one.get("name"), one.get("arguments")) for one in functions]
    return message.get("content", ""), reasoning, calls


@pytest.mark.parametrize("case", CASES, ids=[f"{i}-{c.template}" for i, c in enumerate(CASES)])
def test_reads_what_transformers_reads(case: Case) -> None:
    template = template_of(case.template)
    found, expected = ours(template, case), theirs(template, case)
    assert (found == expected) is (case.why == ""), (found, expected)
    if case.why == REJECTED:
        assert expected is None
        assert found == (case.text.strip(), "", [])


@pytest.mark.parametrize(
    ("name", "family"),
    [("qwen3", "own"), ("qwen3_5", "qwen_xml"), ("gemma4", "gemma4"), ("own_dotted", "own")],
)
def test_which_format_a_template_becomes(name: str, family: str) -> None:
    assert format_of(None, None, template_of(name)).name == family
