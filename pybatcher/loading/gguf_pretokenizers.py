"""Pre-tokenizers of byte-level BPE (how a text is split into words), by their GGUF names.

The regular expressions are those of the models' own tokenizer.json. A GGUF file has only a
name; names and meanings are llama.cpp's (src/llama-vocab.cpp).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tokenizers import Regex, normalizers, pre_tokenizers
from tokenizers.normalizers import Normalizer
from tokenizers.pre_tokenizers import PreTokenizer

__all__ = ["PRE_TOKENIZERS", "PreTokenization"]


@dataclass(frozen=True, slots=True)
class PreTokenization:
    """The steps of a tokenizer that a GGUF pre-tokenizer name stands for.

    make: makes the pre-tokenizer; its last stage is GPT-2's byte alphabet.
    nfc: normalise texts to Unicode NFC first.
    ignore_merges: a word that is in the vocabulary is one token, without merges.
    add_bos: begin a text with the BOS token where the file does not say.
    """

    make: Callable[[], PreTokenizer]
    nfc: bool = False
    ignore_merges: bool = False
    add_bos: bool = False

    def normalizer(self) -> Normalizer | None:
        """Return the normalizer; None where texts are not normalised."""
        return normalizers.NFC() if self.nfc else None


_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_WORDS = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_REST = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_LOWER, _UPPER = r"\p{Ll}\p{Lm}\p{Lo}\p{M}", r"\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}"
_TEKKEN = (
    rf"[^\r\n\p{{L}}\p{{N}}]?[{_UPPER}]*[{_LOWER}]+|[^\r\n\p{{L}}\p{{N}}]?[{_UPPER}]+[{_LOWER}]*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def _split(*expressions: str) -> Callable[[], PreTokenizer]:
    """Return a maker of a pre-tokenizer: splits by each expression in turn, then to bytes."""

    def make() -> PreTokenizer:
        cuts = [pre_tokenizers.Split(Regex(each), behavior="isolated") for each in expressions]
        to_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        return pre_tokenizers.Sequence([*cuts, to_bytes])

    return make


_LLAMA3 = PreTokenization(
    _split(rf"{_CONTRACTIONS}|{_WORDS}|\p{{N}}{{1,3}}|{_REST}"), ignore_merges=True, add_bos=True
)
_QWEN2 = _split(rf"{_CONTRACTIONS}|{_WORDS}|\p{{N}}|{_REST}")
_SMOLLM = PreTokenization(_split(r"\p{N}", _GPT2))
_OF_GPT2 = PreTokenization(_split(_GPT2))

PRE_TOKENIZERS = {
    **dict.fromkeys(("llama3", "llama-v3", "llama-bpe", "falcon3", "pixtral"), _LLAMA3),
    **dict.fromkeys(("dbrx", "smaug-bpe"), PreTokenization(_LLAMA3.make)),
    "qwen2": PreTokenization(_QWEN2, nfc=True),
    **dict.fromkeys(("deepseek-r1-qwen", "megrez", "stablelm2"), PreTokenization(_QWEN2)),
    **dict.fromkeys(("smollm", "starcoder", "refact", "command-r", "codeshell"), _SMOLLM),
    **dict.fromkeys(("gpt-2", "phi-2", "mpt", "olmo", "jais", "trillion"), _OF_GPT2),
    "tekken": PreTokenization(_split(_TEKKEN), ignore_merges=True, add_bos=True),
    "default": PreTokenization(
        _split(r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", r"[0-9][0-9][0-9]")
    ),
}
