from __future__ import annotations

import random
import re

import pytest
from form_texts import matches

from pybatcher import InvalidRequestError
from pybatcher.text import Tokenizer
from pybatcher.text.grammars import GrammarCompiler
from pybatcher.text.grammars.patterns import Reading, translated

ATOMS = [
    *("a", "b", '"', r"\\", ".", "-", "1", "[ab]", "[^a]", '[^"]', r'[^\\"]', r"\d", r"\w", r"\W"),
    *(r"\S", r"\s", r"\D", r"[\w-]", r"[^\s\"]", "[a-z]", r"\n", "(?:a|b)", '(a|"b)', r"[\]\[]"),
    *(r"[^\x00-\x1f]", r"\x01", "[-a]", r"[\d_-]", r"\/", r"\-", r"[\b]"),
]
TEXTS = [
    *(
        "",
        "a",
        "b",
        '"',
        "\\",
        "1",
        "-",
        " ",
        "ä",
        "²",
        "٣",
        "\n",
        "\r",
        "\u2028",
        "\u00a0",
        "\ufeff",
    ),
    *("ab", 'a"', "a\\", "a\n", "+", "&", "[", "]", "/", "_", "\x08", "\x85", "a b", 'b"b', "\x01"),
]


@pytest.mark.parametrize(
    ("pattern", "right", "wrong"),
    [
        (r"^\w$", ["a", "_", "0"], ["ä", "²", "-"]),
        (r"^\W$", ["-", " "], ["a", "ä", "²"]),
        (r"^[^\w]$", ["-", " "], ["a", "ä", "²"]),
        (r"^\d$", ["1"], ["٣"]),
        (r"^[^\d]$", ["a"], ["1", "٣"]),
        (r"^\D$", ["a"], ["1", "٣"]),
        (r"^\s$", [" ", "\t", "\u00a0"], ["a", "\ufeff", "\x85"]),
        (r"^\S$", ["a", "ä"], [" ", "\ufeff", "\x85"]),
        (r"^.$", ["a", '"', "\\", "ä", "\t"], ["\n", "\r", "\u2028"]),
        (r"^a$", ["a"], ["a\n"]),
        ('^[^"]*$', ["", "a", "\\", "\n"], ['"', 'a"b']),
        (r"^[^\\/:*?<>|]+$", ["a", '"'], ["\\", "/"]),
        (r"^[^\x00-\x1f]$", ["a", '"'], ["\n"]),
        (r"^(\x01|a)?b$", ["b", "ab"], ["\x01b"]),
        ("^(\x01b|\x7fb|a)$", ["a"], ["b"]),
        ("^[a-z&&b]$", ["a", "&"], ["", "-"]),
        ("^[[a]$", ["a", "["], ["]"]),
        (r"^[\w-.]$", ["a", "-", "."], [","]),
        (r"^[+-\d]$", ["+", "-", "1"], ["."]),
        ("^[+--]$", ["+", ",", "-"], ["."]),
        (r"^[\b]\/\_$", ["\b/_"], ["/_"]),
        (r"^\u00e9\x41$", ["éA"], ["eA"]),
        ("^(?i)a(?:b)(?<n>c)$", ["abc", "ABC"], ["ab"]),
        ("(?s)^.$", ["\r"], ["ab"]),
    ],
)
def test_strings_match_for_all_who_read_the_pattern(
    compiler: GrammarCompiler,
    tokenizer: Tokenizer,
    pattern: str,
    right: list[str],
    wrong: list[str],
) -> None:
    for text in right:
        assert matches(compiler, tokenizer, {"pattern": pattern}, text), text
    for text in wrong:
        assert not matches(compiler, tokenizer, {"pattern": pattern}, text), text


@pytest.mark.parametrize(
    "pattern", [r"^a\z", r"\Aa", r"\ha", "(?x)a b", "(?-u)a", "[]a]", "[^]", "a\\"]
)
def test_syntax_of_others_is_refused(pattern: str) -> None:
    with pytest.raises(InvalidRequestError, match="json_schema has the pattern"):
        translated(pattern, "fewer")


def test_an_unfinished_class_is_refused() -> None:
    with pytest.raises(InvalidRequestError, match="json_schema has the pattern"):
        translated("[a", "fewer")


@pytest.mark.parametrize(
    ("pattern", "name", "readings"),
    [
        ("^.$", "a", {"fewer", "exact", "more"}),
        ("^.$", "\u2028", {"more"}),
        ("^a$", "a\n", {"more"}),
        (r"^\w$", "ä", {"more"}),
        (r"^\W$", "ä", {"exact", "more"}),
        (r"^\s$", "\ufeff", {"exact", "more"}),
        (r"^[^\S]$", "\x85", {"more"}),
    ],
)
def test_readings_of_names(
    compiler: GrammarCompiler, tokenizer: Tokenizer, pattern: str, name: str, readings: set[Reading]
) -> None:
    """Other names may have: nothing, a text, or any value, by which patterns are read."""
    additional = {"fewer": False, "exact": {"type": "string"}, "more": True}
    for reading, other in additional.items():
        schema = {"patternProperties": {pattern: {"const": 1}}, "additionalProperties": other}
        assert matches(compiler, tokenizer, schema, {name: 1}) == (
            reading in readings or reading == "more"
        )
        if reading == "more":
            assert matches(compiler, tokenizer, schema, {name: 2}) == (reading not in readings)


def test_random_patterns_match_no_more_than_python_does(
    compiler: GrammarCompiler, tokenizer: Tokenizer
) -> None:
    rng = random.Random(0)
    n_matches = 0
    for _ in range(300):
        parts = [rng.choice(ATOMS) + rng.choice(["", "", "*", "+", "?", "{2}"]) for _ in range(3)]
        pattern = "^" + "".join(parts[: rng.randint(1, 3)]) + rng.choice(["", "$"])
        schema = {"type": "string", "pattern": pattern}
        try:
            matches(compiler, tokenizer, schema, "")
        except InvalidRequestError:
            assert r"\x01" in pattern
            continue
        for text in TEXTS:
            if matches(compiler, tokenizer, schema, text):
                n_matches += 1
                assert re.search(pattern, text), (pattern, text)
    assert n_matches > 1000
