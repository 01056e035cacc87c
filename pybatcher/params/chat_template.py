"""`read_chat_template`: the option `chat_template`, which is Jinja source or a file with it."""

from __future__ import annotations

import os
import stat

from ..errors import ConfigError
from ..errors.checks import OPTION, plain_text, short

__all__ = ["is_jinja", "read_chat_template"]

_FIELD = "chat_template"
_WANTED = "a Jinja template, which has {{ or {%, or the path of a file with one"
_MOST_BYTES = 2**20


def is_jinja(text: str) -> bool:
    """Return whether a text is a template, and no path of one."""
    return "{{" in text or "{%" in text


def read_chat_template(value: object) -> str:
    """Return the source of a template. value: the source, or the path of a UTF-8 file.

    Raises ConfigError for anything else, and for a file that cannot be read or has no template.
    """
    with OPTION.reading(_FIELD, value, _WANTED):
        text = plain_text(value)
        if text is not None and is_jinja(text):
            return OPTION.text(_FIELD, text, _WANTED, most=_MOST_BYTES)
        if text is None and isinstance(value, os.PathLike):
            text = plain_text(os.fspath(value))
        if not text or "\0" in text or "\n" in text:
            raise OPTION.bad(_FIELD, value, _WANTED)
        os.fsencode(text)
    path = os.path.expanduser(text)
    try:
        source = _read(path).decode("utf-8")
    except OSError as error:
        why = error.strerror or str(error)
    except UnicodeDecodeError as error:
        why = f"it is not UTF-8: {error.reason} at byte {error.start}"
    else:
        if path.lower().endswith(".json"):
            why = "a JSON file is no template; give the text of its field chat_template"
        elif is_jinja(source):
            return source
        else:
            why = "it has neither {{ nor {%, and so is no Jinja template"
    raise ConfigError(f"{_FIELD} is the file {short(path)}: {why}", field=_FIELD) from None


def _read(path: str) -> bytes:
    """Return the content of a regular file. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
    with open(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError("it is no regular file")
        data = file.read(_MOST_BYTES + 1)
    if len(data) > _MOST_BYTES:
        raise OSError(f"it has more than {_MOST_BYTES} bytes")
    return data
