"""How much longer a tokenizer makes a text, from its normalizer, post-processor and decoder.

The library ends the process if it finds no memory for a text, so a tokenizer that makes far more of
texts than any published one does is refused when it is read.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ...errors import ModelFormatError
from .gguf_pretokenizers import KNOWN_EXPRESSIONS

if TYPE_CHECKING:
    from tokenizers import Tokenizer as TokenizerBackend

__all__ = ["Growth", "check_growth", "growth_of"]

_MOST_STAGES = 256
_MOST_REPLACED = 64  # characters in place of one, by Replace and Prepend
_MOST_NORMALIZED = 4096  # ... by the whole normalizer
_MOST_DECODED = 64  # ... of a token, by the decoder
_LONGEST_PATTERN = 64  # a longer text counts as one of this length
_LONGEST_TOKEN = 8192  # characters, decoded
_MOST_SPECIAL = 1024  # token ids around a text
_MOST_COPIES = 4  # of the text itself, by the post-processor
_LONGEST_AFFIX = 64  # characters that are put to each character of a word
_LONGEST_WORD = 1024  # characters; the time of WordPiece is quadratic in it

_DECOMPOSING = {"NFD": 4, "NFC": 3, "NFKD": 18, "NFKC": 18}
_NORMALIZING = {"BertNormalizer": 4, "ByteLevel": 4, "Lowercase": 3}
_KEEPING = frozenset({"Nmt", "Strip", "StripAccents"})
_UNKNOWN = 18


@dataclass(frozen=True, slots=True)
class Growth:
    """Upper bounds of what a tokenizer makes of texts.

    normalized: the most characters that the normalizer makes of one, at any of its stages.
    work: the characters that all its stages together make of one.
    decoded: the most characters that the decoder makes of one character of a token.
    is_quick: False with a regular expression whose time may not be proportional to the text.
    """

    normalized: int = 1
    work: int = 1
    decoded: int = 1
    is_quick: bool = True


def growth_of(backend: TokenizerBackend) -> Growth:
    """Return the bounds of a tokenizer. Raises ModelFormatError for far too large ones."""
    known = getattr(backend, "definition", None)  # of one with a normalizer in Python
    of_normalizer = json.loads(known)["normalizer"] if known else _settings(backend.normalizer)
    normalizer = list(_stages(of_normalizer, "normalizer"))
    pre_tokenizer = list(_stages(_settings(backend.pre_tokenizer), "pre_tokenizer"))
    decoder = list(_stages(_settings(backend.decoder), "decoder"))
    normalized, work = _of_normalizer(normalizer)
    expressions = (
        stage.get("pattern", {}).get("Regex") for _, stage in (*normalizer, *pre_tokenizer)
    )
    return Growth(
        normalized,
        work,
        _of_decoder(decoder),
        all(each is None or _is_fast(each) for each in expressions),
    )


def check_growth(backend: TokenizerBackend, source: str) -> None:
    """Raise ModelFormatError, which names `source`, for a tokenizer that grows texts without need.

    Scans the whole vocabulary.
    """
    try:
        growth = growth_of(backend)
        _check_post_processor(_settings(backend.post_processor))
        _check_model(backend.model)
        longest = max(map(len, backend.get_vocab(with_added_tokens=True)), default=0)
        _limit("model.vocab", "a token has {} characters", longest * growth.decoded, _LONGEST_TOKEN)
    except ModelFormatError as error:
        raise ModelFormatError(f"{source}: {error}") from None


def _settings(part: Any) -> dict[str, Any] | None:
    """Return a part of a tokenizer as tokenizer.json has it; None if it is absent."""
    settings: dict[str, Any] | None = None if part is None else json.loads(part.__getstate__())
    return settings


_LISTS = {
    "normalizer": "normalizers",
    "pre_tokenizer": "pretokenizers",
    "decoder": "decoders",
    "post_processor": "processors",
}


def _stages(settings: dict[str, Any] | None, part: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the stages of a part, in order, each with its path in tokenizer.json."""
    stack = [] if settings is None else [(part, settings)]
    n_stages = 0
    while stack:
        path, stage = stack.pop()
        if stage["type"] == "Sequence":
            name = _LISTS[part]
            listed = [(f"{path}.{name}[{i}]", one) for i, one in enumerate(stage[name])]
            stack += reversed(listed)
            continue
        n_stages += 1
        _limit(part, "it has {} steps or more", n_stages, _MOST_STAGES)
        yield path, stage


def _of_normalizer(stages: list[tuple[str, dict[str, Any]]]) -> tuple[int, int]:
    """Return the growth by all stages, and the sum of the growths after each."""
    total = replaced = 1
    work = 0
    decomposed = 1  # characters that the forms of Unicode have made of one by now
    for path, stage in stages:
        kind = stage["type"]
        if kind in ("Replace", "Prepend"):
            decomposed = 1
            own = _of_replace(stage) if kind == "Replace" else 1 + len(stage["prepend"])
            replaced *= own
            field = f"{path}.{'content' if kind == 'Replace' else 'prepend'}"
            _limit(field, _BECOMES, replaced, _MOST_REPLACED)
        elif kind == "Precompiled":
            decomposed = 1
            own = _longest_replacement(stage["precompiled_charsmap"])
        elif kind in _DECOMPOSING:
            own = -(-_DECOMPOSING[kind] // decomposed)
            decomposed *= own
        else:
            own = 1 if kind in _KEEPING else _NORMALIZING.get(kind, _UNKNOWN)
        total *= max(1, own)
        _limit(path, _BECOMES, total, _MOST_NORMALIZED)
        work += total
    return total, max(1, work)


def _of_decoder(stages: list[tuple[str, dict[str, Any]]]) -> int:
    total = 1
    for path, stage in stages:
        kind = stage["type"]
        if kind == "Replace":
            total *= _of_replace(stage)
        elif kind in ("BPEDecoder", "CTC"):  # an empty text may be replaced by a space
            total *= 1 if stage.get("suffix", stage.get("word_delimiter_token")) else 2
        _limit(f"{path}.content", _BECOMES, total, _MOST_DECODED)
    return total


def _of_replace(stage: dict[str, Any]) -> int:
    pattern, n_new = stage["pattern"], len(stage["content"])
    text = pattern.get("String")
    if text:
        return max(1, -(-n_new // min(len(text), _LONGEST_PATTERN)))
    if text is None and _is_never_empty(pattern["Regex"]):
        return max(1, n_new)
    return 1 + n_new


def _longest_replacement(charsmap: str) -> int:
    """Return the most characters that a character map of SentencePiece has for one.

    It is a trie, after its size in four bytes, and then the replacements, each ended by a zero.
    """
    try:
        packed = base64.b64decode(charsmap)
    except (binascii.Error, ValueError):
        return 1  # the library would not have read it
    replacements = packed[4 + int.from_bytes(packed[:4], "little") :]
    return max(len(each.decode("utf-8", "replace")) for each in replacements.split(b"\0"))


def _check_post_processor(settings: dict[str, Any] | None) -> None:
    copies, n_special = 1, 0
    for path, stage in _stages(settings, "post_processor"):
        if stage["type"] in ("BertProcessing", "RobertaProcessing"):
            n_special += 2
        elif stage["type"] == "TemplateProcessing":
            known = {name: len(one["ids"]) for name, one in stage["special_tokens"].items()}
            named = [
                item["SpecialToken"]["id"] for item in stage["single"] if "Sequence" not in item
            ]
            own = len(stage["single"]) - len(named)
            copies *= own
            n_special = n_special * own + sum(known.get(name, 0) for name in named)
        _limit(f"{path}.single", "it adds {} token ids to a text", n_special, _MOST_SPECIAL)
        _limit(f"{path}.single", "it has the text {} times", copies, _MOST_COPIES)


def _check_model(model: Any) -> None:
    for name in ("continuing_subword_prefix", "end_of_word_suffix"):
        affix = getattr(model, name, None) or ""
        _limit(f"model.{name}", "it has {} characters", len(affix), _LONGEST_AFFIX)
    longest = getattr(model, "max_input_chars_per_word", 0)
    _limit("model.max_input_chars_per_word", "it is {}", longest, _LONGEST_WORD)


_BECOMES = "one character may become {}"


def _limit(field: str, fault: str, value: int, most: int) -> None:
    if value > most:
        raise ModelFormatError(f"{field}: {fault.format(value)}; expected at most {most}")


_NAMED_SET = re.compile(r"\\[pPx]\{[^}]*\}")
_CHARACTER_SET = re.compile(r"\[\^?\]?(?:\\.|[^\[\]\\])*\]")
_ESCAPED = re.compile(r"\\[^bBAZzGKXRkg0-9]")


def _skeleton(expression: str) -> str:
    """Return an expression with one "." for each set of characters, without sets in sets."""
    for pattern in (_NAMED_SET, _CHARACTER_SET, _ESCAPED):
        expression = pattern.sub(".", expression)
    return expression


def _is_fast(expression: str) -> bool:
    """True for an expression of a published model, and for one with at most one repetition."""
    if expression in KNOWN_EXPRESSIONS:
        return True
    skeleton = _skeleton(expression)
    n_repetitions = sum(map(skeleton.count, "*+{"))
    return n_repetitions <= 1 and not set(skeleton) & set("()[]\\")


def _is_never_empty(expression: str) -> bool:
    """True if each match surely has a character: a sequence of characters that may be repeated."""
    skeleton = re.sub(r"\{[1-9][0-9]*(,[0-9]*)?\}|\+", "", _skeleton(expression))
    return bool(skeleton) and not set(skeleton) & set("()[]{}\\|*?^$")
