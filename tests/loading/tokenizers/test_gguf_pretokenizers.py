"""The oracle is the regular expressions of the models' own tokenizer.json files."""

from __future__ import annotations

import pytest
from hostile_texts import hostile_texts
from pretokenizer_words import TEXTS, WORDS
from published_words import GPT4O, LLAMA3, QWEN2, QWEN35, TEKKEN
from tokenizers import Regex, pre_tokenizers
from tokenizers.pre_tokenizers import ByteLevel, Digits, PreTokenizer, Sequence, Split

from pybatcher.loading.tokenizers.gguf_pretokenizers import PRE_TOKENIZERS


def split(expression: str) -> PreTokenizer:
    bytes_only = ByteLevel(add_prefix_space=False, use_regex=False)
    return Sequence([Split(Regex(expression), "isolated"), bytes_only])


OF_GPT2 = ByteLevel(add_prefix_space=False, use_regex=True)
KNOWN = {
    "llama-bpe": split(LLAMA3),
    "llama3": split(LLAMA3),
    "smaug-bpe": split(LLAMA3),
    "qwen2": split(QWEN2),
    "qwen35": split(QWEN35),
    "gpt-4o": split(GPT4O),
    "deepseek-r1-qwen": split(QWEN2),
    "gpt-2": OF_GPT2,
    "smollm": Sequence([Digits(individual_digits=True), OF_GPT2]),
    "tekken": split(TEKKEN),
}


@pytest.mark.parametrize("name", KNOWN)
def test_words(name: str) -> None:
    made = PRE_TOKENIZERS[name].make()
    for text in hostile_texts():
        assert made.pre_tokenize_str(text) == KNOWN[name].pre_tokenize_str(text), text


def test_llama_cpps_default() -> None:
    """Expected values are made by hand from its expressions: no tokenizer.json has it."""
    made = PRE_TOKENIZERS["default"].make()
    for text, words in {
        "Hello, world": ["Hello", ",", "Ġworld"],
        "a 1234567 b": ["a", "Ġ", "123", "456", "7", "Ġb"],
        "don't": ["don", "'", "t"],
        "x == $y": ["x", "Ġ", "==", "Ġ", "$", "y"],
    }.items():
        assert [word for word, _ in made.pre_tokenize_str(text)] == words


@pytest.mark.parametrize("names", WORDS)
def test_recorded_words(names: tuple[str, ...]) -> None:
    for name in names:
        made = PRE_TOKENIZERS[name].make()
        for text, words in zip(TEXTS, WORDS[names], strict=True):
            cuts = [text[begin:end] for _, (begin, end) in made.pre_tokenize_str(text)]
            assert "|".join(cuts) == words, name


def test_every_name_has_recorded_words() -> None:
    assert sorted(name for names in WORDS for name in names) == sorted(PRE_TOKENIZERS)


def test_letters_with_case_of_deepseek() -> None:
    """Its list has no small Armenian letters, few of Latin Extended-E, no mathematical ones."""
    made = PRE_TOKENIZERS["deepseek-llm"].make()
    taken = "\u00b5\u01c4\u0531\uab70\ufb00\U00010400"
    assert len(made.pre_tokenize_str(taken)) == 1
    for left_out in "\u0561\uab30\U0001d400":
        assert len(made.pre_tokenize_str(f"{left_out}\u00b5")) == 2, left_out


def test_what_goes_with_the_words() -> None:
    nfc = {name for name, p in PRE_TOKENIZERS.items() if p.nfc}
    assert nfc == {"qwen2", "qwen35", "command-r", "mpt", "olmo"}
    bos = {name for name, p in PRE_TOKENIZERS.items() if p.add_bos}
    whole = {name for name, p in PRE_TOKENIZERS.items() if p.ignore_merges}
    assert bos < whole
    assert whole - bos == {"glm4", "glm5", "minicpm5", "youtu", "granite-embed-multi-97m"}
    assert {"llama-bpe", "tekken", "lfm2"} <= bos
    assert not bos & {"qwen2", "gpt-2", "smollm", "default", "gpt-4o"}
    assert isinstance(PRE_TOKENIZERS["gpt-2"].make(), pre_tokenizers.PreTokenizer)
