"""`fields_named`: errors of calls, told with the names that fields have in a request. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from ...errors import PybatcherError
from .event_stream import event
from .http_error import HttpError, http_error

__all__ = ["PART", "fields_named", "named_error", "renamed", "text_names"]

Names = Callable[[], Mapping[str, str]]
"""Returns the fields of a request by arguments of the call, their items, or members of items.

Members of messages can be fields of their parts.
"""

PART = re.compile(r"\w+\[\d+\]\.content\[\d+\]\.\w+")
"""A field of a part of a message."""
_ARGUMENT = re.compile(r"\w+")
_ITEM = re.compile(r"\w+\[\d+\]")
_MEMBER = re.compile(r"\w+\[\d+\]\.\w+")


@contextmanager
def fields_named(names: Names) -> Iterator[None]:
    """Raise errors of the calls within as HttpErrors that name the fields of the request."""
    try:
        yield
    except PybatcherError as error:
        raise renamed(http_error(error), names()) from error


def named_error(names: Mapping[str, str]) -> Callable[[HttpError], bytes]:
    """Return a function that makes the last event of a stream, in the form of OpenAI's API."""
    return lambda error: event(renamed(error, names).body())


def renamed(error: HttpError, names: Mapping[str, str]) -> HttpError:
    """Return an error whose field has the name that is known for it, or for a whole it is in.

    The place at the beginning of the message gets its name in the same way: it may be within the
    field.
    """
    own = _own_name(error.param or "", names)
    if own is None:
        return error
    return error.of_field(own, _own_name(error.message, names) or error.message)


def _own_name(place: str, names: Mapping[str, str]) -> str | None:
    """Return a text with its first words, a place in a call, as a request names it."""
    for pattern in (PART, _MEMBER, _ITEM, _ARGUMENT):
        found = pattern.match(place)
        if found is not None and (name := names.get(found[0])) is not None:
            return name + place[found.end() :]
    return None


def text_names(fields: Mapping[str, object]) -> dict[str, str]:
    """Return the names of the texts of a call, which are those of these fields one after another.

    fields: the value of each, by name: one text, or one list of token ids, or a list of several.
        They have been read, so that the first item tells the kind of all.
    """
    names: list[str] = []
    for name, value in fields.items():
        count = None
        if isinstance(value, list) and not (value and type(value[0]) is int):
            count = len(value)
        names += [name] if count is None else [f"{name}[{i}]" for i in range(count)]
    return {f"texts[{i}]": name for i, name in enumerate(names)}
