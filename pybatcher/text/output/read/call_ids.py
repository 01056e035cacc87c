"""Ids of calls, which are the same ones for the same prefix."""

from __future__ import annotations

import hashlib
import string
from typing import Literal

__all__ = ["call_id"]

_ALPHABET = string.digits + string.ascii_uppercase + string.ascii_lowercase
_MISTRAL_LENGTH = 9


def call_id(style: Literal["prefixed", "mistral"], prefix: str, index: int) -> str:
    """Return the id of the call at `index`.

    style: "prefixed": the prefix and the index; "mistral": nine letters and digits made from the
        two, as the chat templates of Mistral demand.
    """
    if style == "prefixed":
        return f"{prefix}{index}"
    text = f"{prefix}{index}".encode("utf-8", "surrogatepass")
    number = int.from_bytes(hashlib.sha256(text).digest())
    letters = []
    for _ in range(_MISTRAL_LENGTH):
        number, letter = divmod(number, len(_ALPHABET))
        letters.append(_ALPHABET[letter])
    return "".join(letters)
