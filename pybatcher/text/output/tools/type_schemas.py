"""`SchemaBuilder`: JSON schemas of Python's types."""

from __future__ import annotations

import collections.abc
import dataclasses
import enum
import types
import typing
from typing import Any

import typing_extensions

from ....errors import InvalidRequestError
from ....errors.checks import short
from ...plain_values import PlainReader

__all__ = ["SchemaBuilder"]

Schema = dict[str, Any]

_MAX_DEPTH = 24
_PLAIN: dict[Any, Schema] = {
    Any: {},
    object: {},
    str: {"type": "string"},
    int: {"type": "integer"},
    float: {"type": "number"},
    bool: {"type": "boolean"},
    None: {"type": "null"},
    type(None): {"type": "null"},
    list: {"type": "array"},
    tuple: {"type": "array"},
    dict: {"type": "object"},
}
_UNIONS = (typing.Union, types.UnionType)
_LISTS = (list, collections.abc.Sequence, collections.abc.Iterable, collections.abc.Collection)
_SETS = (set, frozenset, collections.abc.Set)
_MAPPINGS = (dict, collections.abc.Mapping, collections.abc.MutableMapping)
_LITERALS = (typing.Literal, typing_extensions.Literal)
_QUALIFIERS = (
    typing.Required,
    typing.NotRequired,
    typing_extensions.ReadOnly,
    typing.Final,
    typing.ClassVar,
)


class SchemaBuilder:
    """Makes JSON schemas of the types of one function's parameters.

    Supported are str, int, float, bool, None, Any, Optional and unions, Literal, enums, lists,
    tuples, sets, mappings, TypedDict, dataclasses, NewType and Annotated, whose first text is the
    description. Other types need pydantic, which is used if it is installed.

    definitions: the targets of references `#/$defs/NAME` in schemas; they belong into the root.
    """

    def __init__(self) -> None:
        self.definitions: Schema = {}
        self._inside: list[Any] = []

    def schema(self, kind: Any, where: str) -> Schema:
        """Return the schema of a type. where: names it in errors. Raises InvalidRequestError."""
        if len(self._inside) > _MAX_DEPTH:
            raise InvalidRequestError(
                f"{where} is nested more than {_MAX_DEPTH} levels deep", field=where
            )
        try:
            if kind in _PLAIN:
                return dict(_PLAIN[kind])
        except TypeError:  # not hashable, so no type
            raise self._unknown(kind, where) from None
        if isinstance(kind, str):
            raise self._unknown(kind, where)
        if any(kind is one for one in self._inside):
            raise InvalidRequestError(
                f"{where} is {short(kind)}, which contains itself; give the tool as a dict with "
                "the schema of its parameters",
                field=where,
            )
        self._inside.append(kind)
        try:
            return self._composed(kind, where)
        finally:
            self._inside.pop()

    def _composed(self, kind: Any, where: str) -> Schema:
        origin, arguments = typing.get_origin(kind), typing.get_args(kind)
        if origin in _UNIONS:
            return _any_of([self.schema(one, where) for one in arguments])
        if origin in _LITERALS:
            return _enumeration(list(arguments), where)
        if origin is typing.Annotated:
            schema = self.schema(arguments[0], where)
            texts = [one for one in arguments[1:] if isinstance(one, str)]
            return {**schema, "description": texts[0]} if texts else schema
        if origin in _QUALIFIERS:
            return self.schema(arguments[0], where)
        if origin is tuple:
            return self._tuple(arguments, where)
        if origin in _LISTS:
            return {"type": "array", "items": self.schema(arguments[0], f"{where}[]")}
        if origin in _SETS:
            items = self.schema(arguments[0], f"{where}[]")
            return {"type": "array", "items": items, "uniqueItems": True}
        if origin in _MAPPINGS:
            if arguments[0] is not str:
                raise InvalidRequestError(
                    f"{where} is {short(kind)}; the keys of a mapping must be str", field=where
                )
            values = self.schema(arguments[1], f"{where}[]")
            return {"type": "object", "additionalProperties": values}
        if isinstance(kind, typing.NewType):
            return self.schema(kind.__supertype__, where)
        if isinstance(kind, type) and origin is None:
            return self._of_class(kind, where)
        return self._by_pydantic(kind, where)

    def _tuple(self, arguments: tuple[Any, ...], where: str) -> Schema:
        if len(arguments) == 2 and arguments[1] is ...:
            return {"type": "array", "items": self.schema(arguments[0], f"{where}[]")}
        items = [self.schema(one, f"{where}[{i}]") for i, one in enumerate(arguments)]
        length = len(items)
        schema: Schema = {"type": "array", "minItems": length, "maxItems": length}
        return {**schema, "prefixItems": items} if items else schema

    def _of_class(self, kind: type, where: str) -> Schema:
        if issubclass(kind, enum.Enum):
            return _enumeration([member.value for member in kind], where)
        if typing_extensions.is_typeddict(kind):
            return self._object(kind, where, _required_keys(kind, where))
        if dataclasses.is_dataclass(kind) and "__pydantic_fields__" not in vars(kind):
            required_fields = {
                field.name: field.default is field.default_factory is dataclasses.MISSING
                for field in dataclasses.fields(kind)
                if field.init
            }
            return self._object(kind, where, required_fields)
        if kind in _SETS:
            return {"type": "array", "uniqueItems": True}
        return self._by_pydantic(kind, where)

    def _object(self, kind: type, where: str, fields: dict[str, bool]) -> Schema:
        """Return the schema of an object. fields: names, and whether each is required."""
        hints = _hints(kind, where)
        return {
            "type": "object",
            "properties": {
                name: self.schema(hints.get(name, Any), f"{where}.{name}") for name in fields
            },
            "required": [name for name, needed in fields.items() if needed],
            "additionalProperties": False,
        }

    def _by_pydantic(self, kind: Any, where: str) -> Schema:
        try:
            from pydantic import TypeAdapter
        except ImportError:
            raise self._unknown(kind, where) from None
        try:
            made = TypeAdapter(kind).json_schema()
            schema = PlainReader("the schema is too large", most=2**14).mapping(made, where, 0)
        except InvalidRequestError:
            raise
        except Exception as error:  # from pydantic, or from the type's own code
            raise self._unknown(kind, where) from error
        for name, definition in schema.pop("$defs", {}).items():
            if self.definitions.setdefault(name, definition) != definition:
                raise InvalidRequestError(
                    f"{where} is {short(kind)}, and two different types are called {name}; give "
                    "one of them another name",
                    field=where,
                )
        return schema

    def _unknown(self, kind: object, where: str) -> InvalidRequestError:
        return InvalidRequestError(
            f"{where} is {short(kind)}, which has no JSON schema here; it must be made of plain "
            "types, enums, TypedDicts and dataclasses (other types need pydantic), or give the "
            "tool as a dict with the schema of its parameters",
            field=where,
        )


def _required_keys(kind: Any, where: str) -> dict[str, bool]:
    """Return the keys of a TypedDict, and whether each is required.

    Its own `__required_keys__` misses annotations that are evaluated lazily.
    """
    said = {typing.Required: True, typing.NotRequired: False}
    required: frozenset[str] = getattr(kind, "__required_keys__", frozenset())
    return {
        name: said.get(typing.get_origin(hint), name in required)
        for name, hint in _hints(kind, where).items()
    }


def _any_of(schemas: list[Schema]) -> Schema:
    """Return a schema of alternatives; by type names alone if these suffice."""
    if all(list(one) == ["type"] and isinstance(one["type"], str) for one in schemas):
        return {"type": [one["type"] for one in schemas]}
    return {"anyOf": schemas}


def _enumeration(values: list[Any], where: str) -> Schema:
    plain = [one.value if isinstance(one, enum.Enum) else one for one in values]
    for value in plain:
        if not (value is None or isinstance(value, (str, int, float, bool))) or not plain:
            raise InvalidRequestError(
                f"{where} has the value {short(value)}; it must be a text, a number, a truth value "
                "or None",
                field=where,
            )
    if not plain:
        raise InvalidRequestError(
            f"{where} is an enum without values; it must have at least one", field=where
        )
    kinds = {type(value) for value in plain}
    kind = _PLAIN.get(kinds.pop(), {}) if len(kinds) == 1 else {}
    return {**kind, "enum": plain}


def _hints(kind: Any, where: str) -> dict[str, Any]:
    try:
        return typing_extensions.get_type_hints(kind, include_extras=True)
    except Exception as error:  # an undefined name, or an error of code in an annotation
        raise InvalidRequestError(
            f"{where} has annotations that cannot be read ({type(error).__name__}: {error}); they "
            "must name types that its module knows",
            field=where,
        ) from error
