"""Grammars of tool calls in the syntax of a family, and of text followed by calls."""

from __future__ import annotations

import json
from collections.abc import Sequence

from ..formats.formats import DEEPSEEK_SEPARATOR, CallSyntax, ResponseFormat
from ..tools.tools import ToolSpec
from .argument_grammar import (
    ARG_KEYS,
    OPTIONAL_LINE_END,
    XML_PARAMETERS,
    gemma_arguments,
    tagged_parameters,
)
from .grammar_rules import ANY_TEXT, BLANKS, GrammarRules

__all__ = ["calls_of", "opening", "text_and_calls"]

_MISTRAL_ID = "/[A-Za-z0-9]{9}/"


def opening(syntax: CallSyntax) -> str:
    """Return the text that begins a call."""
    return syntax.around[0] + (syntax.opens[0] if syntax.opens else "")


def text_and_calls(rules: GrammarRules, syntax: CallSyntax, calls: str) -> str:
    """Return any text, and calls after it."""
    begin = opening(syntax)
    if not begin:
        text = f'{ANY_TEXT} & ~/\\[?\\{{"{syntax.name_keys[0]}"(?s:.*)/'
        rules.define("TEXT", text)
        return f"(TEXT | {calls})"
    marker = syntax.around[0] or begin
    rest = rules.literal(begin.removeprefix(marker))
    return f"({rules.until(marker)} {rest} {calls} {BLANKS})? {rules.rule(ANY_TEXT)}"


def calls_of(
    rules: GrammarRules, format: ResponseFormat, tools: Sequence[ToolSpec], *, parallel: bool
) -> str:
    """Return calls of the tools, after the text that opens the first one."""
    syntax, has_ids = format.calls[0], format.call_ids == "mistral"

    def one_call(before: str = "") -> str:
        return rules.one_of(_call(rules, syntax, tool, before, has_ids=has_ids) for tool in tools)

    one = one_call()
    before, after = rules.literal(syntax.lead), rules.literal(syntax.tail)
    closed = rules.literal(syntax.closes[0]) if syntax.closes else ""
    end = rules.literal(syntax.around[1])
    if syntax.listed:
        more = f'(", " {one})*' if parallel else ""
        before = f"{before}?" if before else ""
        return f'{before} "[" {one} {more} "]" {closed} {end}'
    block = f"{before} {one} {after} {closed}"
    between = rules.literal(syntax.between)
    if between and syntax.between.isspace():
        between = f"{between}?"
    opened = rules.literal(syntax.opens[0]) if syntax.opens else ""
    more = f"({between} {opened} {block})*" if parallel else ""
    if not syntax.opens:  # JSON may be a list too, whose beginning must be one token of the lexer
        more_listed = f'(", " {one})*' if parallel else ""
        return f'({block} {more} | {one_call("[")} {more_listed} "]")'
    return f"{block} {more} {end}"


def _call(
    rules: GrammarRules, syntax: CallSyntax, tool: ToolSpec, before: str, *, has_ids: bool
) -> str:
    """Return a call. before: a text that JSON begins with."""
    form = syntax.forms[0]
    if form == "xml":
        parameters = tagged_parameters(rules, tool.parameters, XML_PARAMETERS)
        begin = rules.literal(f"<function={tool.name}>")
        return f'{begin} {OPTIONAL_LINE_END} {parameters} "</function>"'
    if form == "arg_keys":
        parameters = tagged_parameters(rules, tool.parameters, ARG_KEYS)
        return f"{rules.literal(tool.name)} {OPTIONAL_LINE_END} {parameters}"
    if form == "gemma":
        arguments = gemma_arguments(rules, tool.parameters, syntax.quote)
        return f"{rules.literal(f'call:{tool.name}')} {arguments}"
    arguments = rules.json(tool.parameters)
    if form == "mistral":
        call_id = f"({rules.literal('[CALL_ID]')} {_MISTRAL_ID})?"
        return f"{rules.literal(tool.name)} {call_id} {rules.literal('[ARGS]')} {arguments}"
    if form == "function_json":
        return f'{rules.literal(tool.name + ">")} {arguments} "</function>"'
    if form == "deepseek_bare":
        return f"{rules.literal(tool.name + DEEPSEEK_SEPARATOR)} {arguments}"
    if form == "deepseek":
        begin = f"function{DEEPSEEK_SEPARATOR}{tool.name}\n```json\n"
        return f"{rules.literal(begin)} {arguments} {rules.literal(chr(10) + '```')}"
    keys = syntax.arguments_keys[: 1 if syntax.opens else None]
    name = f"{json.dumps(syntax.name_keys[0])}: {json.dumps(tool.name)}"
    begin = rules.one_of(rules.literal(f"{before}{{{name}, {json.dumps(key)}: ") for key in keys)
    call_id = f'(", \\"id\\": \\"" {_MISTRAL_ID} "\\"")?' if has_ids else ""
    return f'{begin} {arguments} {call_id} "}}"'
