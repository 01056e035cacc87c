"""`response_grammar`: a grammar of responses with reasoning, tool calls and structured output."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence

from ....errors import InvalidRequestError
from ....params import StructuredOutput
from ...grammars.compiler import JSON_LAYOUT
from ...grammars.usable_schemas import usable_schema
from ..formats.formats import DEEPSEEK_SEPARATOR, CallSyntax, ResponseFormat
from ..tools.tool_choice import ToolChoice
from ..tools.tools import ToolSpec
from .argument_grammar import (
    ARG_KEYS,
    OPTIONAL_LINE_END,
    XML_PARAMETERS,
    gemma_arguments,
    tagged_parameters,
)
from .grammar_rules import ANY_TEXT, BLANKS, GrammarRules

__all__ = ["response_grammar"]

_MISTRAL_ID = "/[A-Za-z0-9]{9}/"
_OF_HARMONY_CALLS = ("<|call|>", "<|channel|>", "<|constrain|>", "<|message|>")
_ARGUMENTS = frozenset(
    {
        *("$dynamicRef", "$ref", "additionalProperties", "allOf", "anyOf", "const"),
        *("dependencies", "dependentSchemas", "enum", "if", "minProperties", "not", "oneOf"),
        *("patternProperties", "propertyNames", "unevaluatedProperties"),
    }
)
"""The keywords of a schema that can describe arguments besides its properties."""


def text_and_calls(rules: GrammarRules, syntax: CallSyntax, calls: str) -> str:
    """Return any text, and calls after it."""
    begin = syntax.opening
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
    rules.begin_arguments(tool.where, is_strict=tool.strict)
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
    arguments = _json_arguments(rules, tool)
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


def _json_arguments(rules: GrammarRules, tool: ToolSpec) -> str:
    """Return the JSON of a tool's arguments. A tool that describes no argument takes none."""
    schema = tool.parameters
    if not (schema.get("properties") or schema.get("required") or _ARGUMENTS & schema.keys()):
        return rules.literal("{}")
    return rules.json(tool.parameters)


def response_grammar(
    format: ResponseFormat,
    tools: Sequence[ToolSpec],
    choice: ToolChoice,
    *,
    form: StructuredOutput | None = None,
    parallel: bool = True,
    in_reasoning: bool = False,
    may_reason: bool = True,
    max_reasoning_tokens: int | None = None,
    special_tokens: Mapping[str, int] | None = None,
    has_free_calls: bool = False,
) -> str:
    """Return a grammar for llguidance, in Lark syntax, of the allowed responses.

    choice: "required": reasoning, if the format has it, then calls and nothing else; "auto": any
        text, in which text that begins like a call must be one; "none": any text without special
        tokens. The calls name the choice's tools.
    form: the structure of the text. With tools, a response has text or calls.
    parallel: several calls may follow each other.
    in_reasoning: the prompt ended inside reasoning. may_reason: otherwise, reasoning may come
        first.
    max_reasoning_tokens: tokens of reasoning after which its closing marker must come.
    special_tokens: ids of those `format.markers` that are tokens of their own.
    has_free_calls: the grammar of "none" also allows the special tokens of calls, in any order.

    The arguments follow the tools' schemas: fully if they are JSON, and by types and enums if a
        family writes them otherwise. Keywords that cannot be enforced are left out, unless the tool
        is strict. Raises InvalidRequestError for such a strict tool, for a format
        without calls, and for a limit of reasoning if the closing marker is no token.
    """
    rules = GrammarRules(special_tokens or {})
    chosen = () if choice.mode == "none" else choice.tools(tools)
    text = _form(rules, form)
    budget = "" if max_reasoning_tokens is None else f"[max_tokens={max_reasoning_tokens}]"
    if format.harmony:
        last = "" if choice.mode == "required" else text or rules.rule(ANY_TEXT)
        free = _any_text_with(rules, _OF_HARMONY_CALLS) if has_free_calls else ""
        return rules.text(
            _harmony(
                rules, chosen, last, in_reasoning, budget, is_form=form is not None, free_call=free
            )
        )
    think = _reasoning(rules, format, in_reasoning, may_reason, budget)
    if not chosen:
        of_reasoning = {marker for one in format.think for marker in (one.open, one.close)}
        of_calls = format.markers - of_reasoning if has_free_calls else frozenset()
        return rules.text(f"{think} {text or _any_text_with(rules, of_calls)}")
    if not format.calls:
        raise InvalidRequestError(
            f"tool_choice: the model's format ({format.name}) has no calls of tools, so that "
            "none can be required; tools must be left out",
            field="tool_choice",
        )
    syntax = format.calls[0]
    calls = calls_of(rules, format, chosen, parallel=parallel)
    only_calls = f"{rules.literal(syntax.opening)} {calls}"
    if choice.mode == "required":
        return rules.text(f"{think} {only_calls}")
    if text:
        return rules.text(f"{think} ({text} | {only_calls})")
    return rules.text(f"{think} {text_and_calls(rules, syntax, calls)}")


def _any_text_with(rules: GrammarRules, markers: Collection[str]) -> str:
    """Return any text, with those of the markers in it that are special tokens."""
    text = rules.rule(ANY_TEXT)
    special = [rules.literal(one) for one in sorted(markers) if rules.is_special(one)]
    return f"{text} ({rules.one_of(special)} {text})*" if special else text


def _form(rules: GrammarRules, form: StructuredOutput | None) -> str:
    """Return the rule of a structured output; "" for any text."""
    if form is None:
        return ""
    match form.kind:
        case "regex":
            return rules.rule(f"/{_between_slashes(form.text)}/")
        case "grammar":
            return rules.rule(f"%lark {{\n{form.text}\n}}")
        case "choices":
            texts = " | ".join(json.dumps(one, ensure_ascii=False) for one in json.loads(form.text))
            rules.define("CHOICE", texts)
            return "CHOICE"
        case _:
            schema = usable_schema(form.text or '{"type": "object"}')
            return rules.strict_json(schema, JSON_LAYOUT)


def _between_slashes(regex: str) -> str:
    """Return a regular expression in Lark's notation between slashes."""
    parts, escaped = [], False
    for letter in regex:
        said = {"\n": "n", "\r": "r", "\t": "t"}.get(letter)
        if said is not None:
            letter = said if escaped else f"\\{said}"
        elif letter == "/" and not escaped:
            letter = "\\/"
        escaped = letter == "\\" and not escaped
        parts.append(letter)
    return "".join(parts)


def _reasoning(
    rules: GrammarRules, format: ResponseFormat, inside: bool, may_begin: bool, budget: str
) -> str:
    if not format.think or not (inside or may_begin):
        return ""
    think = format.think[0]
    rest = f"{_reasoned(rules, think.close, budget)} {BLANKS}"
    if inside:
        return rest
    return f"({rules.literal(think.open)} {rest} | {rules.literal(think.close)} {BLANKS})?"


def _reasoned(rules: GrammarRules, close: str, budget: str) -> str:
    """Return text up to its closing marker, and the marker."""
    if not budget:
        return rules.until(close)
    if not rules.is_special(close):
        raise InvalidRequestError(
            f"max_reasoning_tokens: the model ends its reasoning with {close!r}, which is no token "
            "of its tokenizer, so that its length cannot be limited; leave it out",
            field="max_reasoning_tokens",
        )
    return f"{rules.rule(ANY_TEXT, options=budget)} {rules.literal(close)}"


def _harmony(
    rules: GrammarRules,
    tools: Sequence[ToolSpec],
    final: str,
    in_reasoning: bool,
    budget: str,
    *,
    is_form: bool,
    free_call: str,
) -> str:
    """Return messages of reasoning and comments, then a call or a final answer.

    final: the rule of the answer; "" if there is none and a call is required. is_form: it is a
        structured output, of which comments would become a part. free_call: the rule of a call of
        any tool from its name on; "" if there is none.
    """
    next_message = rules.literal("<|start|>assistant")
    text = _reasoned(rules, "<|end|>", budget)
    names = ("analysis",) if is_form else ("analysis", "commentary")
    channels = rules.one_of(rules.literal(f"<|channel|>{name}<|message|>") for name in names)
    last = []
    for tool in tools:
        rules.begin_arguments(tool.where, is_strict=tool.strict)
        begin = _harmony_header(rules, f"to=functions.{tool.name}")
        end = rules.literal("<|call|>")
        last.append(f"{begin} {_json_arguments(rules, tool)} ({end})?")
    if free_call:
        begins = ("<|channel|>commentary to=functions.", " to=functions.")
        last.append(f"{rules.one_of(map(rules.literal, begins))} {free_call}")
    if final:
        last.append(f"{rules.literal('<|channel|>final<|message|>')} {final}")
    begun = f"{text} {next_message}" if in_reasoning else ""
    again = "?" if budget else "*"
    return f"{begun} ({channels} {text} {next_message}){again} {rules.one_of(last)}"


def _harmony_header(rules: GrammarRules, recipient: str) -> str:
    """Return the header of a call. Models put the recipient after the channel, the chat template
    before it.
    """
    behind = rules.literal(f"<|channel|>commentary {recipient} <|constrain|>json")
    before = rules.literal(f" {recipient}<|channel|>commentary json")
    return f"{rules.one_of([behind, before])} {rules.literal('<|message|>')}"
