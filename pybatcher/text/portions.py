"""`Portions`: cuts a long text where a tokenizer is sure to cut it too.

Tokenised by portions, such a text gives the same tokens as a whole. This needs a tokenizer that
cuts a text into words by a known expression: byte-level BPE, as in GPT-2, Llama 3, Qwen 2 and 3.5,
Mistral and gpt-oss. For any other tokenizer a text is one portion.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from .longest_token import definition_of

if TYPE_CHECKING:
    from tokenizers import Tokenizer as Backend

__all__ = ["Portions"]

_CONTRACTION = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_SPACES = r"|\s*[\r\n]+|\s+(?!\S)|\s+"
_WORDS, _REST = r"|[^\r\n\p{L}\p{N}]?\p{L}+|", r"| ?[^\s\p{L}\p{N}]+[\r\n]*"
_WORDS_WITH_MARKS, _REST_WITH_MARKS = (
    r"|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|",
    r"| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*",
)
_UPPER, _LOWER = r"\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}", r"\p{Ll}\p{Lm}\p{Lo}\p{M}"


def _by_case(ending: str, digits: str) -> str:
    lead = r"[^\r\n\p{L}\p{N}]?"
    words = f"{lead}[{_UPPER}]*[{_LOWER}]+{ending}|{lead}[{_UPPER}]+[{_LOWER}]*{ending}"
    return words + digits + r"| ?[^\s\p{L}\p{N}]+[\r\n/]*" + _SPACES


_EXPRESSIONS = {
    _CONTRACTION + _WORDS + r"\p{N}" + _REST + _SPACES,
    _CONTRACTION + _WORDS + r"\p{N}{1,3}" + _REST + _SPACES,
    _CONTRACTION + _WORDS_WITH_MARKS + r"\p{N}" + _REST_WITH_MARKS + _SPACES,
    _by_case("", r"|\p{N}"),
    _by_case(f"{_CONTRACTION}?", r"|\p{N}{1,3}"),
}
"""The known expressions, in whose matches no space or line end follows a letter.

None looks further ahead than to the character after a run of spaces. So a match always ends between
a letter and a space, and the text before is cut the same whatever comes after. GPT-2's own
expression is of this kind too.
"""

_CUT = re.compile("[A-Za-z\u0430-\u044f\u3041-\u3096\u4e00-\u9fa5](?=[ \n])")
"""A letter before a space or a line end. No normal form joins these to the text before them."""


class Portions:
    """Cuts texts for one tokenizer. `is_exact`: False if each text is one portion."""

    def __init__(self, backend: Backend) -> None:
        self.is_exact = _is_known(json.loads(definition_of(backend)))
        self._around = _special_tokens_around(backend) if self.is_exact else None
        self.is_exact = self._around is not None

    @property
    def around(self) -> tuple[list[int], list[int]]:
        """The special tokens before and after a text."""
        assert self._around is not None
        return self._around

    def of(self, text: str, size: int) -> Iterator[str]:
        """Yield consecutive parts of `text`, each of `size` characters or a few more."""
        start = 0
        while self.is_exact and len(text) - start > size:
            cut = _CUT.search(text, start + size)
            if cut is None:
                break
            yield text[start : cut.end()]
            start = cut.end()
        yield text[start:]


def _is_known(settings: dict[str, Any]) -> bool:
    model, normalizer = settings["model"], settings["normalizer"]
    return (
        model["type"] == "BPE"
        and not model["dropout"]
        and (normalizer is None or normalizer["type"] == "NFC")
        and settings["truncation"] is None
        and settings["padding"] is None
        and all(map(_is_found_anywhere, settings["added_tokens"]))
        and _cuts_before_spaces(settings["pre_tokenizer"])
    )


def _is_found_anywhere(added: dict[str, Any]) -> bool:
    """True for a token that is found in any context, and that has no space in it."""
    depends = added["lstrip"] or added["rstrip"] or added["single_word"]
    return not depends and not re.search(r"\s", added["content"])


def _cuts_before_spaces(pre_tokenizer: dict[str, Any] | None) -> bool:
    if pre_tokenizer is None:
        return False
    is_list = pre_tokenizer["type"] == "Sequence"
    parts = pre_tokenizer["pretokenizers"] if is_list else [pre_tokenizer]
    cuts = False
    for part in parts:
        kind = part["type"]
        if kind == "Split":
            known = part["pattern"].get("Regex") in _EXPRESSIONS
            if not known or part["behavior"] != "Isolated" or part["invert"]:
                return False
            cuts = True
        elif kind == "ByteLevel":
            if part["add_prefix_space"]:
                return False
            cuts = cuts or part["use_regex"]
        elif kind != "Digits":
            return False
    return cuts


def _special_tokens_around(backend: Backend) -> tuple[list[int], list[int]] | None:
    """Return the special tokens before and after any text; None if they cannot be determined."""
    alone, full = (
        backend.encode_batch_fast(["a"], add_special_tokens=special)[0].ids
        for special in (False, True)
    )
    places = [i for i in range(len(full)) if full[i : i + len(alone)] == alone]
    if not alone or len(places) != 1:
        return None
    return full[: places[0]], full[places[0] + len(alone) :]
