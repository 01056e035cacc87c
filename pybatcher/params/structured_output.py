"""`StructuredOutput`: the schema, regex or grammar of an output, and checks of its fields.

Only the values are checked here. The serving side, which has the model's tokenizer, finds out
whether a grammar compiles.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

from ..errors import InvalidRequestError, PybatcherError
from ..errors.checks import REQUEST, plain_text, short, type_name

__all__ = [
    "STRUCTURED_OUTPUT_FIELDS",
    "JsonSchema",
    "StructuredOutput",
    "StructuredOutputKind",
    "TooLargeError",
    "bounded_json",
    "check_choices",
    "check_grammar",
    "check_regex",
    "schema_text",
    "structured_output_of",
]

StructuredOutputKind = Literal["json_schema", "regex", "grammar", "choices", "json_object"]

STRUCTURED_OUTPUT_FIELDS: tuple[StructuredOutputKind, ...] = (
    "json_schema",
    "regex",
    "grammar",
    "choices",
    "json_object",
)
"""The fields of SamplingParams that structure an output; at most one may be set."""

_MOST_CHARACTERS = 2**20  # limit of a schema or a grammar, and of all choices together
_MOST_REGEX = 2**16
_MOST_CHOICES = 10_000
_SMALL = (bool, float)  # types with few characters


class StructuredOutput(NamedTuple):
    """The structure of an output: a JSON schema, a regex, a Lark grammar, or choices as JSON texts.

    source: the caller's option, if it is no field of `SamplingParams`.
    looser: the text of another form, for the case that the first cannot be compiled; "": none.
    """

    kind: StructuredOutputKind
    text: str
    source: str = ""
    looser: str = ""

    @property
    def field(self) -> str:
        """The name of the caller's option, for errors."""
        return self.source or self.kind


class JsonSchema(str):
    """The text of a JSON schema, and the Python type that it was made from.

    adapter: a pydantic `TypeAdapter` that parses outputs; None for a schema that was given as such.
    """

    __slots__ = ("adapter",)

    def __new__(cls, text: str, adapter: Any = None) -> JsonSchema:
        """Make an instance from the text of a JSON schema."""
        made = super().__new__(cls, text)
        made.adapter = adapter
        return made

    adapter: Any


def schema_text(value: object) -> JsonSchema:
    """Return the schema of a mapping, a JSON text, or a type that pydantic can read.

    Raises InvalidRequestError.
    """
    wanted = (
        "a JSON schema (a dict, or its JSON text of at most "
        f"{_MOST_CHARACTERS} characters), or a type that pydantic can read"
    )
    adapter = None
    with REQUEST.reading("json_schema", value, wanted):
        if isinstance(value, JsonSchema):
            return value
        text = given = plain_text(value)
        if text is None:
            if isinstance(value, Mapping):
                pairs = REQUEST.pairs("json_schema", value, _MOST_CHARACTERS, wanted)
                schema: object = dict(pairs)
            else:
                adapter = _adapter_of(value, wanted)
                schema = adapter.json_schema()
            text = _dumped(schema, value, wanted)
        if len(text) > _MOST_CHARACTERS:
            raise InvalidRequestError(
                f"json_schema has {len(text)} characters; it must have at most {_MOST_CHARACTERS}",
                field="json_schema",
            )
        REQUEST.unicode("json_schema", text)
        try:
            parsed = json.loads(text) if given is not None else schema
        except (ValueError, RecursionError) as error:
            raise InvalidRequestError(
                f"json_schema is {short(text)}, which is no JSON: {error}; it must be {wanted}",
                field="json_schema",
            ) from None
        if not isinstance(parsed, dict):
            raise REQUEST.bad("json_schema", value, wanted)
    return JsonSchema(text, adapter)


def _dumped(schema: object, value: object, wanted: str) -> str:
    try:
        return bounded_json(schema, _MOST_CHARACTERS)
    except TooLargeError as error:
        raise InvalidRequestError(
            f"json_schema is {short(value)}, which is too large: {error}; it must be {wanted}",
            field="json_schema",
        ) from None
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidRequestError(
            f"json_schema is {short(value)}, which cannot be written as JSON: {error}; it must "
            f"be {wanted}",
            field="json_schema",
        ) from None


def _adapter_of(value: Any, wanted: str) -> Any:
    """Return pydantic's adapter of a type."""
    if isinstance(value, (int, float, bytes, bytearray, Sequence)):  # a list of types is no type
        raise REQUEST.bad("json_schema", value, wanted)
    try:
        from pydantic import TypeAdapter
    except ImportError:
        raise InvalidRequestError(
            f"json_schema is {short(value)}: to make a schema of a type, pydantic is needed: "
            "`pip install pydantic`; or give the schema as a dict",
            field="json_schema",
        ) from None
    try:
        return TypeAdapter(value)
    except PybatcherError:
        raise
    except Exception as error:
        raise InvalidRequestError(
            f"json_schema is {short(value)}, of which pydantic makes no schema "
            f"({type_name(error)}); it must be {wanted}",
            field="json_schema",
        ) from error


def check_regex(value: object) -> str:
    """Return a regex. Raises InvalidRequestError."""
    return _text("regex", value, _MOST_REGEX, "a regular expression in Rust's syntax")


def check_grammar(value: object) -> str:
    """Return the text of a grammar. Raises InvalidRequestError."""
    return _text("grammar", value, _MOST_CHARACTERS, "a grammar in llguidance's Lark syntax")


def _text(name: str, value: object, most: int, what: str) -> str:
    wanted = f"{what}, of 1 to {most} characters"
    text = REQUEST.text(name, value, wanted, may_be_empty=False)
    if len(text) > most:
        raise InvalidRequestError(
            f"{name} has {len(text)} characters; it must be {wanted}", field=name
        )
    return text


def check_choices(value: object) -> tuple[str, ...]:
    """Return the allowed texts of an output. Raises InvalidRequestError."""
    wanted = f"a list of 1 to {_MOST_CHOICES} texts, none empty or twice in it"
    items = REQUEST.items("choices", value, _MOST_CHOICES, wanted)
    choices = tuple(
        REQUEST.text(f"choices[{i}]", item, "a text that is not empty", may_be_empty=False)
        for i, item in enumerate(items)
    )
    if not choices or len(set(choices)) < len(choices):
        raise REQUEST.bad("choices", value, wanted)
    if (total := sum(map(len, choices))) > _MOST_CHARACTERS:
        raise InvalidRequestError(
            f"choices have {total} characters in all; they must have at most {_MOST_CHARACTERS}",
            field="choices",
        )
    return choices


def structured_output_of(params: Any) -> StructuredOutput | None:
    """Return the structure that the fields of `SamplingParams` request; None: any text.

    Raises InvalidRequestError if two of them are set.
    """
    given = [
        name for name in STRUCTURED_OUTPUT_FIELDS if getattr(params, name) not in (None, False)
    ]
    if not given:
        return None
    if len(given) > 1:
        raise InvalidRequestError(
            f"{given[0]} and {given[1]} are both given; an output has one form: leave one out"
        )
    (kind,) = given
    if kind == "choices":
        return StructuredOutput(kind, json.dumps(params.choices, ensure_ascii=False))
    return StructuredOutput(kind, "" if kind == "json_object" else str(getattr(params, kind)))


class TooLargeError(ValueError):
    """The text would exceed its limit of characters."""


def bounded_json(value: object, most: int) -> str:
    """Return a value as JSON of about `most` characters at the most.

    The contents of lists and dictionaries are read directly, whatever methods their classes
    override. A few objects that contain each other many times over reach the limit as early as many
    objects do. Raises TooLargeError, and the exceptions of `json.dumps` and of a value's own
    methods.
    """
    return json.dumps(_Copier(most).plain(value), ensure_ascii=False, allow_nan=False)


class _Copier:
    """Copies containers, and counts at least one character for each value."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._left = most

    def plain(self, value: Any) -> Any:
        """Return a dict or a list as one of its base class; any other value unchanged."""
        if isinstance(value, dict):
            self._spend(2 * dict.__len__(value))
            self._spend(sum(str.__len__(key) for key in dict.keys(value) if isinstance(key, str)))
            return {
                key: one if one is None or type(one) in _SMALL else self._item(one)
                for key, one in dict.items(value)
            }
        if isinstance(value, (list, tuple)):
            base: Any = list if isinstance(value, list) else tuple
            self._spend(base.__len__(value))
            return [self._item(one) for one in base.__iter__(value)]
        return value

    def _item(self, value: Any) -> Any:
        if isinstance(value, str):
            n_characters = str.__len__(value)
        elif isinstance(value, int):
            n_characters = int.bit_length(value) // 4  # its digits, or fewer
        else:
            return self.plain(value)
        if n_characters:
            self._spend(n_characters)
        return value

    def _spend(self, n_characters: int) -> None:
        self._left -= n_characters
        if self._left < 0:
            raise TooLargeError(f"it has more than {self._most} characters")
