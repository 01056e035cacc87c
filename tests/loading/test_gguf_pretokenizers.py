"""The oracle is the regular expressions of the models' own tokenizer.json files."""

from __future__ import annotations

import pytest
from hostile_texts import hostile_texts
from published_words import LLAMA3, QWEN2, TEKKEN
from tokenizers import Regex, pre_tokenizers
from tokenizers.pre_tokenizers import ByteLevel, Digits, PreTokenizer, Sequence, Split

from pybatcher.loading.gguf_pretokenizers import PRE_TOKENIZERS


def split(expression: str) -> PreTokenizer:
    bytes_only = ByteLevel(add_prefix_space=False, use_regex=False)
    return Sequence([Split(Regex(expression), "isolated"), bytes_only])


OF_GPT2 = ByteLevel(add_prefix_space=False, use_regex=True)
KNOWN = {
    "llama-bpe": split(LLAMA3),
    "llama3": split(LLAMA3),
    "smaug-bpe": split(LLAMA3),
    "qwen2": split(QWEN2),
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


def test_what_goes_with_the_words() -> None:
    assert {n for n, p in PRE_TOKENIZERS.items() if p.nfc} == {"qwen2"}
    bos = {name for name, p in PRE_TOKENIZERS.items() if p.add_bos}
    assert bos == {n for n, p in PRE_TOKENIZERS.items() if p.ignore_merges and n != "smaug-bpe"}
    assert {"llama-bpe", "tekken"} <= bos
    assert not bos & {"qwen2", "gpt-2", "smollm", "default"}
    assert isinstance(PRE_TOKENIZERS["gpt-2"].make(), pre_tokenizers.PreTokenizer)
