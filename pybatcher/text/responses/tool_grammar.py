"""`tool_grammar`: a grammar of responses that call tools, in the model's own syntax."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence

from ...errors import InvalidRequestError
from .argument_grammar import (
    ARG_KEYS,
    OPTIONAL_LINE_END,
    XML_PARAMETERS,
    gemma_arguments,
    tagged_parameters,
)
from .formats import DEEPSEEK_SEPARATOR, CallSyntax, ResponseFormat
from .grammar_rules import GrammarRules
from .tool_choice import ToolChoice
from .tools import ToolSpec

__all__ = ["tool_grammar"]

_BLANKS = r"/\n{0,2}/"
_MISTRAL_ID = "/[A-Za-z0-9]{9}/"
_ANY_TEXT = "/(?s:.*)/"


def tool_grammar(
    format: ResponseFormat,
    tools: Sequence[ToolSpec],
    choice: ToolChoice,
    *,
    parallel: bool = True,
    in_reasoning: bool = False,
    special_tokens: Mapping[str, int] | None = None,
) -> str:
    """Return a grammar for llguidance, as Lark, of what a response may be.

    choice: "required": reasoning, where the format has it, then calls and nothing else; "auto": any
        text, in which what begins as a call has to be one. The calls name the choice's tools.
    parallel: more than one call may follow each other.
    in_reasoning: the prompt ended inside reasoning.
    special_tokens: ids of those of `format.markers` that are special tokens of the tokenizer.

    The arguments follow the tools' schemas: as llguidance reads them where they are JSON, by types
    and enums where a family writes them otherwise. Raises InvalidRequestError for a choice or a
    format without calls.
    """
    chosen = choice.tools(tools)
    if choice.mode == "none" or not chosen:
        raise InvalidRequestError(
            "tool_choice is 'none' or names no tool; a grammar of calls needs 'auto' or 'required' "
            "and at least one tool"
        )
    rules = GrammarRules(special_tokens or {})
    free = choice.mode == "auto"
    if format.harmony:
        return rules.text(_harmony(rules, chosen, free=free, in_reasoning=in_reasoning))
    if not format.calls:
        raise InvalidRequestError(
            f"tool_choice: the model's format ({format.name}) has no calls of tools, so that "
            "none can be required; tools must be left out"
        )
    syntax = format.calls[0]
    think = _reasoning(rules, format, in_reasoning)
    has_ids = format.call_ids == "mistral"

    def one_call(before: str = "") -> str:
        found = (_call(rules, syntax, tool, before, has_ids=has_ids) for tool in chosen)
        return rules.one_of(found)

    calls = _calls(rules, syntax, one_call, parallel=parallel)
    if not free:
        return rules.text(f"{think} {rules.literal(_opening(syntax))} {calls}")
    return rules.text(f"{think} {_mixed(rules, syntax, calls)}")


def _reasoning(rules: GrammarRules, format: ResponseFormat, in_reasoning: bool) -> str:
    if not format.think:
        return ""
    think = format.think[0]
    rest = f"{rules.until(think.close)} {_BLANKS}"
    if in_reasoning:
        return rest
    return f"({rules.literal(think.open)} {rest} | {rules.literal(think.close)} {_BLANKS})?"


def _opening(syntax: CallSyntax) -> str:
    """Return the text from which on a response is a call."""
    return syntax.around[0] + (syntax.opens[0] if syntax.opens else "")


def _mixed(rules: GrammarRules, syntax: CallSyntax, calls: str) -> str:
    """Return any text, and calls after it."""
    opening = _opening(syntax)
    if not opening:
        text = f'{_ANY_TEXT} & ~/\\[?\\{{"{syntax.name_keys[0]}"(?s:.*)/'
        rules.define("TEXT", text)
        return f"(TEXT | {calls})"
    marker = syntax.around[0] or opening
    rest = rules.literal(opening.removeprefix(marker))
    return f"({rules.until(marker)} {rest} {calls} {_BLANKS})? {rules.rule(_ANY_TEXT)}"


def _calls(
    rules: GrammarRules, syntax: CallSyntax, one_call: Callable[[str], str], *, parallel: bool
) -> str:
    """Return the calls, from behind the text that opens the first one.

    one_call: returns a call with a text before it.
    """
    one = one_call("")
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


def _harmony(
    rules: GrammarRules, tools: Sequence[ToolSpec], *, free: bool, in_reasoning: bool
) -> str:
    """Return messages of reasoning and comments, then a call; a final answer too if `free`."""
    next_message = rules.literal("<|start|>assistant")
    text = rules.until("<|end|>")
    channels = rules.one_of(
        rules.literal(f"<|channel|>{name}<|message|>") for name in ("analysis", "commentary")
    )
    calls = [
        f"{_harmony_header(rules, f'to=functions.{tool.name}')} {rules.json(tool.parameters)}"
        for tool in tools
    ]
    last = f"{rules.one_of(calls)} ({rules.literal('<|call|>')})?"
    if free:
        final = rules.literal("<|channel|>final<|message|>")
        last = f"({last} | {final} {rules.rule(_ANY_TEXT)})"
    begun = f"{text} {next_message}" if in_reasoning else ""
    return f"{begun} ({channels} {text} {next_message})* {last}"


def _harmony_header(rules: GrammarRules, recipient: str) -> str:
    """Return the header of a call. Models put the recipient behind the channel, the chat template
    before it.
    """
    behind = rules.literal(f"<|channel|>commentary {recipient} <|constrain|>json")
    before = rules.literal(f" {recipient}<|channel|>commentary json")
    return f"{rules.one_of([behind, before])} {rules.literal('<|message|>')}"
