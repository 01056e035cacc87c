"""`GrammarRules`: the text of a grammar in the Lark syntax of llguidance, rule by rule."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

from ....errors import InvalidRequestError
from ...grammars.usable_schemas import usable_schema

__all__ = ["ANY_TEXT", "BLANKS", "GrammarRules"]

ANY_TEXT = "/(?s:.*)/"
BLANKS = r"/\n{0,2}/"

# Without bounds on blanks, a model may write them without end. The separators are expressions. \u
# is excluded, as it would give names a second spelling.
_LAYOUT = {
    "whitespace_flexible": False,
    "item_separator": ", ?",
    "key_separator": ": ?",
    "json_allowed_escapes": 'nrbtf\\"',
}


class GrammarRules:
    """Collects rules; methods return a reference for use in another rule.

    special_tokens: ids of those markers that are special tokens of the tokenizer. A special token
        has no text for a grammar: it must be named by its id.
    """

    def __init__(self, special_tokens: Mapping[str, int]) -> None:
        self._special = dict(special_tokens)
        self._where, self._is_strict = "tools", True
        self._rules: dict[str, str] = {}
        self._names: dict[tuple[str, str], str] = {}
        longest_first = sorted(self._special, key=lambda text: (-len(text), text))
        self._split = re.compile("|".join(map(re.escape, longest_first))) if longest_first else None

    def text(self, start: str) -> str:
        """Return the grammar. start: its first rule."""
        lines = [f"start: {start}", *(f"{name}: {body}" for name, body in self._rules.items())]
        return "%llguidance {}\n" + "\n".join(lines) + "\n"

    def rule(self, body: str, *, options: str = "") -> str:
        """Add a rule, unless it exists; return its name."""
        known = self._names.get((body, options))
        if known is not None:
            return known
        name = self._names[body, options] = f"r{len(self._rules)}"
        self._rules[name + options] = body
        return name

    def reserve(self) -> str:
        """Return the name of a rule whose body `define` sets later."""
        name = f"r{len(self._rules)}"
        self._rules[name] = ""
        return name

    def define(self, name: str, body: str) -> None:
        """Set the body of a reserved rule, or of one with a name of its own."""
        self._rules[name] = body

    def literal(self, text: str) -> str:
        """Return exactly this text, with its special tokens as such; "" for no text."""
        parts = []
        position = 0
        for found in self._split.finditer(text) if self._split else ():
            parts.append(_quoted(text[position : found.start()]))
            parts.append(f"<[{self._special[found.group()]}]>")
            position = found.end()
        parts.append(_quoted(text[position:]))
        return " ".join(filter(None, parts))

    def is_special(self, marker: str) -> bool:
        """Return whether a marker is a special token."""
        return marker in self._special

    def until(self, marker: str) -> str:
        """Return any text up to a marker, and the marker."""
        if marker in self._special:
            return f"{self.rule('/(?s:.*)/')} {self.literal(marker)}"
        return self.rule(f"/(?s:.*){_escaped(marker)}/", options="[lazy]")

    def one_of(self, alternatives: Iterable[str]) -> str:
        """Return a rule for one of the alternatives."""
        return self.rule(" | ".join(dict.fromkeys(alternatives)))

    def begin_arguments(self, where: str, *, is_strict: bool) -> None:
        """Begin the arguments of a tool, whose schema `json` enforces fully or as far as it can.

        where: the name of the tool in errors.
        """
        self._where, self._is_strict = where, is_strict

    def json(self, schema: Mapping[str, Any], place: str = "") -> str:
        """Return the JSON of arguments.

        place: the place of the schema in the tool's parameters, for errors. Raises
        InvalidRequestError for an unsupported schema of a strict tool.
        """
        try:
            made = usable_schema(json.dumps({**schema}), loose=not self._is_strict)
        except InvalidRequestError as error:
            said = str(error).removeprefix("json_schema")
            raise InvalidRequestError(
                f"{self._where}.parameters{place}{said}; or leave out strict of the tool, so that "
                "less is enforced",
                field=self._where,
            ) from None
        return self.strict_json(made, _LAYOUT)

    def strict_json(self, schema: str, layout: Mapping[str, Any]) -> str:
        """Return JSON that follows a schema from `usable_schema`, in a layout of llguidance."""
        return self.rule("%json " + json.dumps({**json.loads(schema), "x-guidance": layout}))


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False) if text else ""


def _escaped(text: str) -> str:
    """Return a regular expression, between slashes, that matches exactly this text."""
    return re.escape(text).replace("/", "\\/").replace("\n", "n").replace("\\ ", " ")
