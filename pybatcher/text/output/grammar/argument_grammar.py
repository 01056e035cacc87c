"""Grammars of arguments in other syntaxes than JSON: XML parameters, and Gemma's."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..read.argument_values import ALL_TYPES, allowed_types, resolve
from .grammar_rules import GrammarRules

__all__ = [
    "ARG_KEYS",
    "OPTIONAL_LINE_END",
    "XML_PARAMETERS",
    "ParameterTags",
    "gemma_arguments",
    "tagged_parameters",
]

Schema = Mapping[str, Any]

OPTIONAL_LINE_END = r"/\n?/"

_INTEGER = "/-?(0|[1-9][0-9]*)/"
_NUMBER = r"/-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][-+]?[0-9]+)?/"
_KEY = "/[A-Za-z0-9_-]+/"
_BOOLEAN = "/[Tt]rue|[Ff]alse/"  # some templates write values of mappings in Python's notation
_MAX_DEPTH = 16
_DEFINITIONS = ("$defs", "definitions")


@dataclass(frozen=True)
class ParameterTags:
    """The tags around the values of parameters.

    Line ends beside the tags are the model's choice: templates of one family differ in them.

    key_open, key_close: texts around the key; then comes the value.
    value_close: text after the value.
    """

    key_open: str
    key_close: tuple[str, ...]
    value_close: str
    value_line_ends: bool


XML_PARAMETERS = ParameterTags("<parameter=", (">",), "</parameter>", value_line_ends=True)
ARG_KEYS = ParameterTags(
    "<arg_key>", ("</arg_key>", "<arg_value>"), "</arg_value>", value_line_ends=False
)


def tagged_parameters(rules: GrammarRules, schema: Schema, tags: ParameterTags) -> str:
    """Return the parameters of a tool, in the order of its schema.

    A text ends at the end of its parameter; values of other types are JSON that follows their
    schema.
    """
    properties = _properties(schema)
    key_open = rules.literal(tags.key_open)
    key_close = f" {OPTIONAL_LINE_END} ".join(map(rules.literal, tags.key_close))
    if not properties:
        if schema.get("additionalProperties") is False or "properties" in schema:
            return ""
        text = rules.until(tags.value_close)
        return f"({key_open} {_KEY} {key_close} {text} {OPTIONAL_LINE_END})*"
    required = _required(schema)
    parts = []
    for key in properties:
        value = _tagged_value(rules, key, schema, tags)
        body = f"{key_open} {rules.literal(key)} {key_close} {value} {OPTIONAL_LINE_END}"
        parts.append(body if key in required else f"({body})?")
    return " ".join(parts)


def _tagged_value(rules: GrammarRules, key: str, root: Schema, tags: ParameterTags) -> str:
    """Return the value of a parameter and the tag after it."""
    wanted = root["properties"][key]
    line_end = OPTIONAL_LINE_END if tags.value_line_ends else ""
    end = f"{line_end} {rules.literal(tags.value_close)}"
    values = wanted.get("enum") if isinstance(wanted, Mapping) else None
    if isinstance(values, list) and values and all(isinstance(one, str) for one in values):
        alternatives = rules.one_of(rules.literal(one) or '""' for one in values)
        return f"{line_end} {alternatives} {end}"
    types = allowed_types(wanted, root)
    if types == {"boolean"} and "enum" not in wanted and "const" not in wanted:
        return f"{line_end} {_BOOLEAN} {end}"
    if "string" in types or not _stands_alone(wanted):
        return rules.until(tags.value_close)
    definitions = {word: root[word] for word in _DEFINITIONS if word in root}
    value = rules.json({**wanted, **definitions}, f".properties.{key}")
    return f"{line_end} {value} {end}"


def _stands_alone(schema: object, depth: int = 0) -> bool:
    """Return whether a schema means the same outside of its tool: it refers to definitions only."""
    if depth > 2 * _MAX_DEPTH:
        return False
    if isinstance(schema, Mapping):
        reference = schema.get("$ref", "#/$defs/")
        begins = tuple(f"#/{word}/" for word in _DEFINITIONS)
        known = isinstance(reference, str) and reference.startswith(begins)
        return known and all(_stands_alone(one, depth + 1) for one in schema.values())
    if isinstance(schema, list):
        return all(_stands_alone(one, depth + 1) for one in schema)
    return True


def gemma_arguments(rules: GrammarRules, schema: Schema, quote: str) -> str:
    """Return the arguments of a tool in Gemma's syntax: keys in their order, texts in `quote`.

    Types, enums, required and optional members, and contents of lists and objects are enforced;
    other keywords of a schema are not.
    """
    return _GemmaValues(rules, schema, quote).members(schema, 0)


class _GemmaValues:
    def __init__(self, rules: GrammarRules, root: Schema, quote: str) -> None:
        self._rules, self._root = rules, root
        self._quote = rules.literal(quote)
        self._text = f"{self._quote} {rules.until(quote)}"
        self._any = ""
        self._references: dict[str, str] = {}

    def members(self, schema: Schema, depth: int) -> str:
        """Return an object, in braces."""
        properties = _properties(schema)
        if not properties:
            return '"{" "}"' if depth == 0 and "properties" in schema else self._any_object()
        required = _required(schema)
        first, rest = '""', '""'  # the remaining members: without and with others before them
        for key in sorted(properties, key=str.lower, reverse=True):
            member = f"{self._rules.literal(f'{key}:')} {self.value(properties[key], depth + 1)}"
            here, more = f"{member} {rest}", f'"," {member} {rest}'
            if key not in required:
                here, more = f"{here} | {first}", f"{more} | {rest}"
            first, rest = self._rules.rule(here), self._rules.rule(more)
        return f'"{{" {first} "}}"'

    def value(self, wanted: Any, depth: int) -> str:
        """Return a value that has one of the types of its schema."""
        if not isinstance(wanted, Mapping) or depth > _MAX_DEPTH:
            return self._any_value()
        values = wanted.get("enum", [wanted["const"]] if "const" in wanted else None)
        if isinstance(values, list) and values:
            return self._rules.one_of(map(self._exactly, values))
        if isinstance(wanted.get("$ref"), str):
            return self._reference(wanted["$ref"], depth)
        alternatives = wanted.get("anyOf", wanted.get("oneOf"))
        if isinstance(alternatives, list) and alternatives:
            return self._rules.one_of([self.value(one, depth + 1) for one in alternatives])
        types = allowed_types(wanted, self._root)
        if types == ALL_TYPES:
            return self._any_value()
        return self._rules.one_of([self._of_type(kind, wanted, depth) for kind in sorted(types)])

    def _reference(self, reference: str, depth: int) -> str:
        """Return the rule of a reference, which may be to a schema that contains it."""
        if reference not in self._references:
            name = self._references[reference] = self._rules.reserve()
            self._rules.define(name, self.value(resolve(reference, self._root), depth + 1))
        return self._references[reference]

    def _of_type(self, kind: str, schema: Schema, depth: int) -> str:
        if kind == "array":
            item = self.value(schema.get("items"), depth + 1)
            return self._rules.rule(f'"[" ({item} ("," {item})*)? "]"')
        if kind == "object":
            return self._rules.rule(self.members(schema, depth))
        plain = {"integer": _INTEGER, "number": _NUMBER, "null": '"null"'}
        if kind in plain:
            return plain[kind]
        return self._rules.rule('"true" | "false"' if kind == "boolean" else self._text)

    def _exactly(self, value: Any) -> str:
        if isinstance(value, str):
            return f"{self._quote} {self._rules.literal(value)} {self._quote}"
        if isinstance(value, bool):
            return f'"{str(value).lower()}"'
        if value is None:
            return '"null"'
        return f'"{value}"' if isinstance(value, (int, float)) else self._any_value()

    def _any_value(self) -> str:
        if not self._any:
            self._any = self._rules.reserve()
            kinds = ["array", "boolean", "null", "number", "string"]
            known = " | ".join(self._of_type(kind, {}, _MAX_DEPTH) for kind in kinds)
            self._rules.define(self._any, f"{known} | {self._any_object()}")
        return self._any

    def _any_object(self) -> str:
        member = f'{_KEY} ":" {self._any_value()}'
        return f'"{{" ({member} ("," {member})*)? "}}"'


def _properties(schema: Schema) -> dict[str, Any]:
    properties = schema.get("properties")
    return dict(properties) if isinstance(properties, Mapping) else {}


def _required(schema: Schema) -> frozenset[str]:
    required = schema.get("required")
    return frozenset(required) if isinstance(required, list) else frozenset()
