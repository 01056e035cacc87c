"""Pre-tokenizers of byte-level BPE, which split a text into words, by their GGUF names.

The regular expressions come from the models' own tokenizer.json. A GGUF file has only a name;
llama.cpp defines the names and their meanings (src/llama-vocab.cpp).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tokenizers import Regex, normalizers, pre_tokenizers
from tokenizers.normalizers import Normalizer
from tokenizers.pre_tokenizers import PreTokenizer

__all__ = ["KNOWN_EXPRESSIONS", "PRE_TOKENIZERS", "PreTokenization"]

KNOWN_EXPRESSIONS: set[str] = set()
"""All expressions of these pre-tokenizers; `_split` adds them."""


@dataclass(frozen=True, slots=True)
class PreTokenization:
    """The steps of a tokenizer that a GGUF pre-tokenizer name specifies.

    make: returns a new pre-tokenizer; its last stage is GPT-2's byte alphabet.
    nfc: True if texts are normalised to Unicode NFC first.
    ignore_merges: True if a word in the vocabulary becomes one token, without merges.
    add_bos: True if a text begins with the BOS token by default, unless the file specifies it.
    """

    make: Callable[[], PreTokenizer]
    nfc: bool = False
    ignore_merges: bool = False
    add_bos: bool = False

    def normalizer(self) -> Normalizer | None:
        """Return the normalizer; None if texts are not normalised."""
        return normalizers.NFC() if self.nfc else None


# -- parts of expressions --------------------------------------------------------------------

_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_WORDS = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_SIGNS = r" ?[^\s\p{L}\p{N}]+[\r\n]*"
_REST = rf"{_SIGNS}|{_SPACES}"
_LOWER, _UPPER = r"\p{Ll}\p{Lm}\p{Lo}\p{M}", r"\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}"
_HAN_AND_KANA = r"[\x{4e00}-\x{9fa5}\x{3040}-\x{30ff}]+"
_HAN_AND_HANGUL = r"[\x{800}-\x{9fa5}\x{ac00}-\x{d7ff}]+"
# Letters with case, except for the ones that DeepSeek's list omits.
_CASED = (
    r"[[\p{Lu}\p{Ll}\p{Lt}]&&[\x{0}-\x{ffff}\x{10400}-\x{1044f}\x{104b0}-\x{104fb}"
    r"\x{10c80}-\x{10cf2}\x{118a0}-\x{118df}\x{1e900}-\x{1e943}]&&[^\x{560}-\x{588}"
    r"\x{10c7}-\x{10ff}\x{1c80}-\x{1c8f}\x{2d00}-\x{2d2d}\x{a78f}-\x{ab6f}]]"
)
_WIDE_SIGNS = r"[!-/:-~\x{ff01}-\x{ff0f}\x{ff1a}-\x{ff5e}\x{2018}-\x{201f}\x{3000}-\x{3002}]"
_ASCII_SIGNS = r"[!-/:-@\[-`{-~]"


def _by_case(after: str = "", before: str = rf"[{_UPPER}]", within: str = rf"[{_LOWER}]") -> str:
    """Return an expression that splits words between a lower-case and an upper-case letter."""
    lead = r"[^\r\n\p{L}\p{N}]?"
    return rf"{lead}{before}*{within}+{after}|{lead}{before}+{within}*{after}"


# -- expressions -----------------------------------------------------------------------------

_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_LLAMA3 = rf"{_CONTRACTIONS}|{_WORDS}|\p{{N}}{{1,3}}|{_REST}"
_QWEN2 = rf"{_CONTRACTIONS}|{_WORDS}|\p{{N}}|{_REST}"
_QWEN35 = (
    rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}"
    rf"| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|{_SPACES}"
)
_OR_SLASHES = rf" ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_SPACES}"
_TEKKEN = rf"{_by_case()}|\p{{N}}|{_OR_SLASHES}"
_GPT4O = rf"{_by_case(rf'{_CONTRACTIONS}?')}|\p{{N}}{{1,3}}|{_OR_SLASHES}"
_KIMI_K2 = (
    r"\p{Han}+|"
    + _by_case(rf"{_CONTRACTIONS}?", rf"[[{_UPPER}]&&[^\p{{Han}}]]", rf"[[{_LOWER}]&&[^\p{{Han}}]]")
    + rf"|\p{{N}}{{1,3}}|{_REST}"
)
_DEEPSEEK_V3 = (
    rf"{_ASCII_SIGNS}[A-Za-z]+|[^\r\n\p{{L}}\p{{P}}\p{{S}}]?[\p{{L}}\p{{M}}]+"
    rf"| ?[\p{{P}}\p{{S}}]+[\r\n]*|{_SPACES}"
)
_SPARK = (
    rf"{_ASCII_SIGNS}[A-Za-z]+|[^\r\n\p{{L}}\p{{P}}\p{{S}}]?[\p{{L}}\p{{M}}]+"
    r"| ?[\p{P}\p{S}]+|[\r\n]|\s+(?!\S)|\s+"
)
_YOUTU = (
    r"[\x{ac00}-\x{d7a3}\x{3131}-\x{318e}]+"
    r"|[\x{ff01}\x{2026}\x{201c}\x{201d}\x{2018}\x{2019}\x{2014}\x{ff1a}\x{ff1b}\x{ff0c}"
    rf"\x{{3001}}-\x{{303f}}\x{{fe30}}-\x{{fe4f}}]+|[\x{{3105}}-\x{{312f}}]+|{_HAN_AND_KANA}"
)
_JAIS2 = (
    rf"{_CONTRACTIONS}|{_WORDS}|\p{{N}}{{1,3}}|{_SIGNS}|\s*[\r\n]+"
    + "".join(
        rf"|\s{{{n}}}(?!\S)" for n in ("512", "256", "128", "64", "32", "16", "8", "4", "1,2")
    )
    + r"|\s{1}"
)
_BAILING = rf"'(?i:[sdmt]|ll|ve|re)|{_WORDS}|\p{{N}}|{_SIGNS}|\s*[\r\n]|\s+(?!\S)|\s+"
_SEED = rf"{_CONTRACTIONS}|{_WORDS}|\p{{N}}| ?[^\s\p{{L}}\p{{N}}\r\n]+|{_SPACES}"
_EXAONE_MOE = (
    rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?(?:\p{{L}}\p{{M}}*(?: \p{{L}}\p{{M}}*)*)+|\p{{N}}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]|\s+(?!\S)|\s+"
)
_MINICPM5 = rf"{_CONTRACTIONS}|{_WORDS}|\p{{N}}+|{_REST}"
_BLOOM = r" ?[^(\s|.,!?\x{2026}\x{3002}\x{ff0c}\x{3001}\x{964}\x{6d4}\x{60c})]+"


def _split(*expressions: str) -> Callable[[], PreTokenizer]:
    """Return a function that makes a pre-tokenizer: it splits by each expression, then to bytes."""
    KNOWN_EXPRESSIONS.update(expressions)

    def make() -> PreTokenizer:
        cuts = [pre_tokenizers.Split(Regex(each), behavior="isolated") for each in expressions]
        to_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        return pre_tokenizers.Sequence([*cuts, to_bytes])

    return make


def _named(how: PreTokenization, *names: str) -> dict[str, PreTokenization]:
    return dict.fromkeys(names, how)


_OF_LLAMA3, _OF_QWEN2, _OF_GPT2 = _split(_LLAMA3), _split(_QWEN2), _split(_GPT2)
_DIGITS_THEN_GPT2, _OF_GPT4O = _split(r"\p{N}", _GPT2), _split(_GPT4O)

PRE_TOKENIZERS = {
    **_named(
        PreTokenization(_OF_LLAMA3, ignore_merges=True, add_bos=True),
        *("llama3", "llama-v3", "llama-bpe", "falcon3", "falcon-h1", "pixtral"),
        *("midm-2.0", "lfm2", "jina-v5-nano"),
    ),
    **_named(PreTokenization(_OF_LLAMA3), "dbrx", "smaug-bpe", "chatglm-bpe"),
    **_named(PreTokenization(_OF_LLAMA3, ignore_merges=True), "glm4", "glm5"),
    "jais-2": PreTokenization(_split(_JAIS2)),
    "minicpm5": PreTokenization(_split(r"\p{N}{1,3}", _MINICPM5), ignore_merges=True),
    "qwen2": PreTokenization(_OF_QWEN2, nfc=True),
    "qwen35": PreTokenization(_split(_QWEN35), nfc=True),
    **_named(
        PreTokenization(_OF_QWEN2),
        *("deepseek-r1-qwen", "megrez", "stablelm2", "kormo", "f2llmv2", "hunyuan"),
        *("solar-open", "grok-2"),
    ),
    "laguna": PreTokenization(_split(r"[^\n]+|\n+", _QWEN2)),
    "ufakzeka": PreTokenization(_split(rf"{_WORDS}|\p{{N}}|{_REST}")),
    "seed-coder": PreTokenization(_split(_SEED)),
    **_named(PreTokenization(_split(_BAILING)), "bailingmoe", "bailingmoe2", "llada-moe"),
    "exaone-moe": PreTokenization(_split(_EXAONE_MOE)),
    **_named(
        PreTokenization(_DIGITS_THEN_GPT2),
        *("smollm", "starcoder", "refact", "codeshell", "exaone", "minerva-7b", "mellum2"),
    ),
    "command-r": PreTokenization(_DIGITS_THEN_GPT2, nfc=True),
    **_named(
        PreTokenization(_OF_GPT2),
        *("gpt-2", "phi-2", "jais", "trillion", "granite-docling", "gigachat", "a.x-4.0"),
        *("mellum", "exaone4", "modern-bert", "roberta-bpe", "jina-es", "jina-de"),
        *("jina-v1-en", "jina-v2-code", "jina-v2-de", "jina-v2-es"),
    ),
    **_named(PreTokenization(_OF_GPT2, nfc=True), "mpt", "olmo"),
    "falcon": PreTokenization(_split(r"[\p{P}$+<=>^`|~]+", _GPT2, r"[0-9][0-9][0-9]")),
    "tekken": PreTokenization(_split(_TEKKEN), ignore_merges=True, add_bos=True),
    **_named(PreTokenization(_OF_GPT4O), "gpt-4o", "llama4", "kanana2", "talkie", "minimax-m2"),
    "granite-embed-multi-97m": PreTokenization(_OF_GPT4O, ignore_merges=True),
    "kimi-k2": PreTokenization(_split(_KIMI_K2)),
    "youtu": PreTokenization(
        _split(_YOUTU, rf"{_by_case(rf'{_CONTRACTIONS}?')}|\p{{N}}|{_OR_SLASHES}"),
        ignore_merges=True,
    ),
    "deepseek-llm": PreTokenization(
        _split(
            r"[\r\n]", rf"\s?{_CASED}+", rf"\s?{_WIDE_SIGNS}+", r"\s+$", _HAN_AND_HANGUL, r"\p{N}+"
        )
    ),
    "deepseek-coder": PreTokenization(
        _split(r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _HAN_AND_HANGUL, r"\p{N}")
    ),
    **_named(
        PreTokenization(_split(r"\p{N}{1,3}", _HAN_AND_KANA, _DEEPSEEK_V3)),
        *("deepseek-v3", "hunyuan-dense", "joyai-llm", "hy_v4"),
    ),
    "spark2_5": PreTokenization(_split(r"\p{N}{1,3}", _HAN_AND_KANA, _SPARK, r"\p{N}")),
    **_named(PreTokenization(_split(_BLOOM)), "bloom", "poro-chat", "gpt3-finnish"),
    "viking": PreTokenization(_split(_BLOOM, r"\p{N}")),
    "default": PreTokenization(
        _split(r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", r"[0-9][0-9][0-9]")
    ),
}
