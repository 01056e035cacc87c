"""Responses as models of each family write them, and what is in them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from pybatcher.text.output.formats.formats import FORMATS
from pybatcher.text.output.read.deltas import (
    ContentDelta,
    Delta,
    MarkupDelta,
    ReasoningDelta,
    ToolCallArguments,
    ToolCallEnded,
    ToolCallRejected,
)
from pybatcher.text.output.read.parser import ResponseParser

BAR, BLOCK = "\uff5c", "\u2581"


def deepseek(words: str) -> str:
    return f"<{BAR}tool{BLOCK}{words.replace(' ', BLOCK)}{BAR}>"


@dataclass(frozen=True)
class Case:
    """A response: its text, and what a parser has to find."""

    format: str
    text: str
    content: str = ""
    reasoning: str = ""
    calls: Sequence[tuple[str, dict[str, Any]]] = field(default_factory=list)
    in_reasoning: bool = False


PARIS = ("get_weather", {"city": "Paris", "days": 3})
OSLO = ("get_weather", {"city": "Oslo", "days": 1})
CODE = ("run", {"code": 'if a < b:\n    print("</tool_call>")', "check": True, "tags": ["x", None]})

CASES = [
    Case("hermes", "Just an answer.\n\nWith <b>tags</b>.", "Just an answer.\n\nWith <b>tags</b>."),
    Case(
        "hermes",
        '<think>\nThe user wants weather.\n</think>\n\n<tool_call>\n{"name": "get_weather", '
        '"arguments": {"city": "Paris", "days": 3}}\n</tool_call>\n<tool_call>\n{"name": '
        '"get_weather", "arguments": {"city": "Oslo", "days": 1}}\n</tool_call>',
        reasoning="The user wants weather.",
        calls=[PARIS, OSLO],
    ),
    Case(
        "hermes",
        'Let me look.\n<tool_call>{"arguments": {"code": "if a < b:\\n    print(\\"</tool_call>\\'
        '")", "check": true, "tags": ["x", null]}, "name": "run"}</tool_call>\n\nDone.',
        "Let me look.\n\nDone.",
        calls=[CODE],
    ),
    Case(
        "hermes",
        '<tool_call>{"name": "ping"}</tool_call><tool_call>{"name": "get_weather", "arguments": '
        '"{\\"city\\": \\"Paris\\", \\"days\\": 3}"}</tool_call>',
        calls=[("ping", {}), PARIS],
    ),
    Case(
        "qwen_xml",
        "They ask for both.\n</think>\n\nI will look.\n\n<tool_call>\n<function=get_weather>\n"
        "<parameter=city>\nParis\n</parameter>\n<parameter=days>\n3\n</parameter>\n</function>\n"
        "</tool_call>\n<tool_call>\n<function=run>\n<parameter=code>\nif a < b:\n"
        '    print("</tool_call>")\n</parameter>\n<parameter=check>\ntrue\n</parameter>\n'
        '<parameter=tags>\n["x", null]\n</parameter>\n</function>\n</tool_call>',
        "I will look.",
        "They ask for both.",
        [PARIS, CODE],
        in_reasoning=True,
    ),
    Case(
        "qwen_xml",
        "<function=ping>\n</function>\n</tool_call>",
        calls=[("ping", {})],
    ),
    Case(
        "llama3",
        '{"name": "get_weather", "parameters": {"city": "Paris", "days": 3}}; '
        '{"type": "function", "name": "get_weather", "parameters": {"city": "Oslo", "days": 1}}',
        calls=[PARIS, OSLO],
    ),
    Case(
        "llama3",
        '<|python_tag|>{"type": "function", "function": {"name": "get_weather", "parameters": '
        '{"city": "Paris", "days": 3}}}<|eom_id|>',
        calls=[PARIS],
    ),
    Case(
        "llama3",
        "[get_weather(city='Paris', days=3), get_weather(city=\"Oslo\", days=1)]",
        calls=[PARIS, OSLO],
    ),
    Case(
        "llama3",
        '<|python_tag|>brave_search.call(query="say \\"hi\\"")',
        calls=[("brave_search", {"query": 'say "hi"'})],
    ),
    Case("llama3", ' {"answer": {"name": "x"}}', '{"answer": {"name": "x"}}'),
    Case("llama3", "[1] is a source, [2](b) too", "[1] is a source, [2](b) too"),
    Case(
        "mistral",
        "[THINK]Two of them.[/THINK]Sure.[TOOL_CALLS]get_weather[ARGS]"
        '{"city": "Paris", "days": 3}[TOOL_CALLS]get_weather[CALL_ID]aB3dE6gH9[ARGS]'
        '{"city": "Oslo", "days": 1}',
        "Sure.",
        "Two of them.",
        [PARIS, OSLO],
    ),
    Case(
        "mistral_json",
        '[TOOL_CALLS] [{"name": "get_weather", "arguments": {"city": "Paris", "days": 3}}, '
        '{"name": "get_weather", "arguments": {"city": "Oslo", "days": 1}, "id": "aB3dE6gH9"}]',
        calls=[PARIS, OSLO],
    ),
    Case(
        "harmony",
        "<|channel|>analysis<|message|>Need the weather.<|end|><|start|>assistant<|channel|>"
        "commentary<|message|>I look it up.<|end|><|start|>assistant<|channel|>commentary "
        'to=functions.get_weather <|constrain|>json<|message|>{"city":"Paris","days":3}<|call|>',
        "I look it up.",
        "Need the weather.",
        [PARIS],
    ),
    Case(
        "harmony",
        ' to=functions.get_weather<|channel|>commentary json<|message|>{"city":"Oslo","days":1}'
        "<|call|>",
        calls=[OSLO],
    ),
    Case(
        "harmony",
        "so it is.<|end|><|start|>assistant<|channel|>final<|message|>Yes, < no.<|return|>",
        "Yes, < no.",
        "so it is.",
        in_reasoning=True,
    ),
    Case("harmony", "No channels at all.", "No channels at all."),
    Case(
        "gemma3",
        '```tool_code\nprint(get_weather(city="Paris", days=3))\n```',
        calls=[PARIS],
    ),
    Case(
        "gemma3",
        '```json\n{"name": "get_weather", "parameters": {"city": "Oslo", "days": 1}}\n```',
        calls=[OSLO],
    ),
    Case(
        "generic",
        '```json\n{"name": "get_weather", "parameters": {"city": "Oslo", "days": 1}}\n```',
        calls=[OSLO],
    ),
    Case("generic", '```json\n{"name": "Ada"}\n```', '```json\n{"name": "Ada"}\n```'),
    Case("gemma3", 'So:\n```json\n{"name": "Ada"}\n```', 'So:\n```json\n{"name": "Ada"}\n```'),
    Case(
        "gemma4",
        '<|channel>thought\nWeather.<channel|>Yes.<|tool_call>call:get_weather{city:<|"|>Paris'
        '<|"|>,days:3}<tool_call|><|tool_call>call:run{code:<|"|>if a < b:\n    '
        'print("</tool_call>")<|"|>,check:true,tags:[<|"|>x<|"|>,null]}<tool_call|>',
        "Yes.",
        "Weather.",
        [PARIS, CODE],
    ),
    Case(
        "gemma4",
        '<|tool_call>call:put{to:{"a":{x:-1.5,<|"|>y<|"|>:[]}},mode:fast}<tool_call|>',
        calls=[("put", {"to": {"a": {"x": -1.5, "y": []}}, "mode": "fast"})],
    ),
    Case(
        "function_gemma",
        "<start_function_call>call:get_weather{city:<escape>Paris<escape>,days:3}"
        "<end_function_call>",
        calls=[PARIS],
    ),
    Case(
        "deepseek",
        f"Both.\n</think>\n\n{deepseek('calls begin')}{deepseek('call begin')}function"
        f'{deepseek("sep")}get_weather\n```json\n{{"city": "Paris", "days": 3}}\n```'
        f"{deepseek('call end')}\n{deepseek('call begin')}get_weather{deepseek('sep')}"
        f'{{"city": "Oslo", "days": 1}}{deepseek("call end")}{deepseek("calls end")}',
        reasoning="Both.",
        calls=[PARIS, OSLO],
        in_reasoning=True,
    ),
    Case(
        "granite",
        '<|tool_call|>[{"name": "get_weather", "arguments": {"city": "Paris", "days": 3}}, '
        '{"name": "get_weather", "arguments": {"city": "Oslo", "days": 1}}]',
        calls=[PARIS, OSLO],
    ),
    Case("granite", "<think>Hm.</think><response>Yes.</response>", "Yes.", "Hm."),
    Case(
        "granite4",
        '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris", "days": 3}}\n'
        "</tool_call>",
        calls=[PARIS],
    ),
    Case(
        "smollm3",
        '<think>\nHm.\n</think>\n<tool_call>{"name": "get_weather", "arguments": '
        '{"city": "Paris", "days": 3}}</tool_call>',
        reasoning="Hm.",
        calls=[PARIS],
    ),
    Case(
        "generic",
        '{"name": "get_weather", "arguments": {"city": "Paris", "days": 3}}',
        calls=[PARIS],
    ),
    Case(
        "glm",
        "\n<think>Hm.</think>\nI look.\n<tool_call>get_weather\n<arg_key>city</arg_key>\n"
        "<arg_value>Paris</arg_value>\n<arg_key>days</arg_key>\n<arg_value>3</arg_value>\n</tool_call>\n"
        "<tool_call>run<arg_key>code</arg_key><arg_value>if a < b:\n    print(\"</tool_call>\")"
        "</arg_value><arg_key>check</arg_key><arg_value>true</arg_value><arg_key>tags</arg_key>"
        '<arg_value>["x", null]</arg_value></tool_call><tool_call>ping</tool_call>',
        "I look.",
        "Hm.",
        [PARIS, CODE, ("ping", {})],
    ),
    Case("glm", "The <tool_call>get_weather tag", "The <tool_call>get_weather tag"),
    Case(
        "glm",
        "<tool_call>f<arg_key>a</arg_key><arg_value>1</arg_value><arg_key>b</arg_key></tool_call>",
        "<tool_call>f<arg_key>a</arg_key><arg_value>1</arg_value><arg_key>b</arg_key></tool_call>",
    ),
    Case(
        "deepseek_v31",
        f"{deepseek('calls begin')}{deepseek('call begin')}get_weather{deepseek('sep')}"
        f'{{"city": "Oslo", "days": 1}}{deepseek("call end")}{deepseek("calls end")}',
        calls=[OSLO],
    ),
    Case(
        "functionary",
        'Sure.<function=get_weather>{"city": "Paris", "days": 3}</function><function=ping>{}'
        "</function>",
        "Sure.",
        calls=[PARIS, ("ping", {})],
    ),
    Case(
        "seed_oss",
        "<seed:think>\nHm.\n</seed:think>\n<seed:tool_call>\n<function=get_weather>\n"
        "<parameter=city>Paris</parameter>\n<parameter=days>3</parameter>\n</function>\n"
        "</seed:tool_call>",
        reasoning="Hm.",
        calls=[PARIS],
    ),
    Case(
        "nemotron",
        '<TOOLCALL>[{"name": "get_weather", "arguments": {"city": "Paris", "days": 3}}]</TOOLCALL>',
        calls=[PARIS],
    ),
    Case(
        "tool_calls",
        'Yes.\n<tool_calls>\n{"name": "get_weather", "arguments": {"city": "Paris", "days": 3}}\n'
        '{"name": "ping", "arguments": {}}\n</tool_calls>\nSo.',
        "Yes.\nSo.",
        calls=[PARIS, ("ping", {})],
    ),
    Case(
        "tool_calls",
        '<tool_calls>{"name": "ping"}\n{"name": 1}</tool_calls>',
        '{"name": 1}',
        calls=[("ping", {})],
    ),
    Case(
        "lfm2",
        "<|tool_call_start|>[get_weather(city='Paris', days=3), ping()]<|tool_call_end|>Done.",
        "Done.",
        calls=[PARIS, ("ping", {})],
    ),
    Case(
        "internlm2",
        'Sure.<|action_start|><|plugin|>\n{"name": "get_weather", "parameters": {"city": "Oslo", '
        '"days": 1}}<|action_end|>',
        "Sure.",
        calls=[OSLO],
    ),
    Case(
        "apriel",
        '\nHm.\n[BEGIN FINAL RESPONSE]\nYes.\n<tool_calls>[{"name": "ping", "arguments": {}}]'
        "</tool_calls>",
        "Yes.",
        "Hm.",
        [("ping", {})],
        in_reasoning=True,
    ),
    Case("glm", "</think>\nYes, </think>.", "Yes, </think>."),
    # What is no call is text.
    Case("hermes", "a <tool_call> is a tag", "a <tool_call> is a tag"),
    Case("hermes", '<tool_call>{"name": "x", "arguments": {"a": 1', '<tool_call>{"name": "x", '
         '"arguments": {"a": 1'),
    Case(
        "hermes",
        '<tool_call>{"name": "x" oops}</tool_call> then <tool_call>{"name": "ping"}</tool_call>',
        '<tool_call>{"name": "x" oops}</tool_call> then',
        calls=[("ping", {})],
    ),
    Case("hermes", '<tool_call>{"name": "a b"}', '<tool_call>{"name": "a b"}'),
    Case("hermes", "<think>\nnever closed \n", "", "never closed \n"),
    Case("hermes", "A \n<tool_call> \nis a tag \n", "A \n<tool_call> \nis a tag \n"),
    Case("hermes", '\n\n<tool_call>{"name": "ping"}</tool_call>\n', calls=[("ping", {})]),
    Case(
        "hermes",
        'A \n<tool_call>{"name": "ping"}</tool_call>\n <tool_call>{"name": 1}</tool_call> \n',
        'A\n <tool_call>{"name": 1}</tool_call> \n',
        calls=[("ping", {})],
    ),
    Case("gemma4", "A \n<|channel>thought\nhm \n<channel|>\nB ", "A \nB ", "hm"),
    Case("hermes", "About <think>: a tag", "About <think>: a tag"),
    Case("qwen_xml", "<function=x>\n<parameter=a>\n1", "<function=x>\n<parameter=a>\n1"),
    Case("mistral", "[TOOL_CALLS]x[ARGS]no", "[TOOL_CALLS]x[ARGS]no"),
    Case("harmony", "<|channel|>final<|message|>cut", "cut"),
    Case("harmony", "<|channel|>final", "<|channel|>final"),
    Case("gemma4", "<|tool_call>call:x{a:<|", "<|tool_call>call:x{a:<|"),
]  # fmt: skip


def parser_of(case: Case, **options: Any) -> ResponseParser:
    return ResponseParser(FORMATS[case.format], in_reasoning=case.in_reasoning, **options)


def fed(parser: ResponseParser, pieces: Iterable[str]) -> list[Delta]:
    """All deltas of a response that comes in these pieces."""
    deltas = [delta for piece in pieces for delta in parser.feed(piece)]
    return deltas + parser.finish()


def joined(deltas: Iterable[Delta]) -> list[Delta]:
    """The deltas with neighbours of one kind made one."""
    found: list[Any] = []
    for delta in deltas:
        last = found[-1] if found else None
        if type(delta) is type(last) and hasattr(delta, "text"):
            if isinstance(delta, (ContentDelta, ReasoningDelta, MarkupDelta)):
                found[-1] = type(delta)(last.text + delta.text)
                continue
            if isinstance(delta, ToolCallArguments):
                assert delta.index == last.index
                found[-1] = ToolCallArguments(delta.index, last.text + delta.text)
                continue
        found.append(delta)
    return found


def whole_text(deltas: Iterable[Delta]) -> str:
    """The text that deltas come from."""
    parts = []
    for delta in deltas:
        if isinstance(delta, ToolCallEnded):
            parts.append(delta.call.raw)
        elif isinstance(delta, (ContentDelta, ReasoningDelta, MarkupDelta, ToolCallRejected)):
            parts.append(delta.text)
    return "".join(parts)
