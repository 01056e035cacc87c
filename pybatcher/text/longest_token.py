"""`longest_token`: the most bytes of text that one token can represent."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from .decoding import BYTE_ALPHABET

if TYPE_CHECKING:
    from tokenizers import Tokenizer as Backend

__all__ = ["ANY_LENGTH", "definition_of", "longest_token"]

ANY_LENGTH = 1024
"""The most bytes that one token is assumed to represent if a tokenizer sets no limit.

Such a tokenizer may drop characters, or have one token for any run of unknown ones. A text of which
more is dropped is no prompt that a model was made for.
"""

_SHRINKING = {
    "ByteLevel": 1,
    "Lowercase": 3,
    "NFC": 9,
    "NFD": 3,
    "NFKC": 12,
    "NFKD": 4,
    "Prepend": 1,
}
"""The factor by which a text may be longer than its normalized form, in bytes of UTF-8.

No character decomposes into less than a third of its bytes (a quarter with the compatibility
forms), and none is less than a third of the characters that it is composed of.
"""


def longest_token(backend: Backend) -> int:
    """Return a number of bytes that no token exceeds. Scans the whole vocabulary, so it is slow."""
    settings = json.loads(definition_of(backend))
    shrinking = _shrinking(settings["normalizer"])
    longest = max(map(_n_bytes, backend.get_vocab(with_added_tokens=True)), default=1)
    if shrinking is None or not _keeps_all(settings):
        return max(longest, ANY_LENGTH)
    return max(longest, 1) * shrinking


def definition_of(backend: Backend) -> str:
    """Return a tokenizer in the JSON of tokenizer.json. Slow.

    A tokenizer with a normaliser in Python cannot be written; it has its JSON as an attribute.
    """
    return getattr(backend, "definition", None) or backend.to_str()


def _n_bytes(token: str) -> int:
    """Return the length in UTF-8; at least the bytes of a token in GPT-2's alphabet."""
    return len(token) if token.isascii() else len(token.encode("utf-8", "surrogatepass"))


def _shrinking(normalizer: dict[str, Any] | None) -> int | None:
    """Return the factor by which a normalizer may shorten a text; None without a limit."""
    if normalizer is None:
        return 1
    kind = normalizer["type"]
    if kind == "Sequence":
        factor = 1
        for part in normalizer["normalizers"]:
            one = _shrinking(part)
            if one is None:
                return None
            factor *= one
        return factor
    if kind == "Replace":
        pattern, content = normalizer["pattern"].get("String"), normalizer["content"]
        if not pattern or not content:
            return None
        return max(1, -(-len(pattern.encode()) // len(content.encode())))
    return _SHRINKING.get(kind)


def _keeps_all(settings: dict[str, Any]) -> bool:
    """True if no character of a normalized text is dropped, and unknown ones are not joined."""
    if any(token["lstrip"] or token["rstrip"] for token in settings["added_tokens"]):
        return False  # such a token absorbs all spaces beside it
    model = settings["model"]
    if model["type"] != "BPE":
        return False
    pre_tokenizers = _parts(settings["pre_tokenizer"])
    if not all(_keeps_text(part) for part in pre_tokenizers):
        return False
    if model["byte_fallback"]:
        return all(f"<0x{byte:02X}>" in model["vocab"] for byte in range(256))
    if any(part["type"] == "ByteLevel" for part in pre_tokenizers):
        return all(character in model["vocab"] for character in BYTE_ALPHABET)
    return model["unk_token"] is not None and not model["fuse_unk"]


def _parts(pre_tokenizer: dict[str, Any] | None) -> list[dict[str, Any]]:
    if pre_tokenizer is None:
        return []
    if pre_tokenizer["type"] == "Sequence":
        return [part for one in pre_tokenizer["pretokenizers"] for part in _parts(one)]
    return [pre_tokenizer]


def _keeps_text(pre_tokenizer: dict[str, Any]) -> bool:
    """True for a pre-tokenizer that only cuts."""
    kind = pre_tokenizer["type"]
    if kind in ("Split", "Punctuation"):
        return bool(pre_tokenizer["behavior"] != "Removed")
    return kind in ("ByteLevel", "Digits", "Metaspace", "UnicodeScripts")
