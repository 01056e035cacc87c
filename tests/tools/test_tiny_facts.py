from __future__ import annotations

import random
import re

from tools.tiny.fact_tables import BY_SIZE, DAYS, pairs
from tools.tiny.facts import Fact, draw_fact
from tools.tiny.stories import is_held_out

FACTS = [draw_fact(random.Random(seed)) for seed in range(3000)]
_OPERATIONS = {"plus": int.__add__, "minus": int.__sub__, "times": int.__mul__}


def _matching(pattern: str) -> list[tuple[re.Match[str], Fact]]:
    found = [(re.fullmatch(pattern, fact.answer), fact) for fact in FACTS]
    return [(match, fact) for match, fact in found if match is not None]


def test_sums_are_right() -> None:
    sums = _matching(r"(\d+) (plus|minus|times) (\d+) is (\d+)\.")
    assert len(sums) > 300
    for match, fact in sums:
        result = _OPERATIONS[match[2]](int(match[1]), int(match[3]))
        assert int(match[4]) == result
        assert fact.short == f"{result}."
        assert re.findall(r"\d+", fact.ask) == [match[1], match[3]]


def test_word_problems_are_right() -> None:
    problems = _matching(r"(\w+) has (\d+) (\w+) now\.")
    assert len(problems) == sum(" have now?" in fact.ask for fact in FACTS) > 100
    for match, fact in problems:
        a, b = (int(n) for n in re.findall(r"\d+", fact.ask))
        assert int(match[2]) == (a - b if "gives away" in fact.ask else a + b)
        assert match[3] in fact.ask
        assert (match[2] == "1") == (not match[3].endswith("s"))


def test_comparisons_are_right() -> None:
    for match, _ in _matching(r"(\d+) is bigger than (\d+)\."):
        assert int(match[1]) > int(match[2])
    sizes = _matching(r"An? (\w+) is (bigger|smaller) than an? (\w+)\.")
    assert len(sizes) > 50
    for match, _ in sizes:
        assert (BY_SIZE.index(match[1]) > BY_SIZE.index(match[3])) == (match[2] == "bigger")


def test_days_follow_each_other() -> None:
    days = _matching(r"(\w+day) comes after (\w+day)\.")
    assert days
    for match, _ in days:
        assert DAYS.index(match[1]) == (DAYS.index(match[2]) + 1) % 7


def test_every_answer_is_a_sentence_and_every_short_one_a_word() -> None:
    for fact in FACTS:
        assert fact.answer[0].isupper() or fact.answer[0].isdigit()
        assert fact.answer.endswith(".")
        assert fact.short is None or len(fact.short.rstrip(".").split()) == 1 or "," in fact.short


def test_held_out_problems_are_not_among_the_others() -> None:
    held_out = [draw_fact(random.Random(seed), held_out=True) for seed in range(100)]
    assert all(is_held_out(fact.ask) for fact in held_out)
    assert not any(is_held_out(fact.ask) for fact in FACTS if " have now?" in fact.ask)


def test_a_table_is_written_as_pairs() -> None:
    assert pairs("cow: moo,\n  red hen: a long\n  cluck") == {
        "cow": "moo",
        "red hen": "a long cluck",
    }
