from __future__ import annotations

import random
from itertools import pairwise

import pytest
from tokenizers import Tokenizer, models

from pybatcher.errors import ModelFormatError
from pybatcher.loading.tokenizers.merges import merges_of_scores, split_merges


def test_listed_merges() -> None:
    assert split_merges(["a b", "ab c d", "Ġ Ġ"], "") == [("a", "b"), ("ab", "c d"), ("Ġ", "Ġ")]
    assert split_merges([], "") == []


@pytest.mark.parametrize("merge", ["", "ab", "a ", " b", " "])
def test_a_merge_of_less_than_two_tokens(merge: str) -> None:
    with pytest.raises(ModelFormatError, match=r"m\.gguf: tokenizer\.ggml\.merges, element 1, is"):
        split_merges(["a b", merge], "m.gguf")


def sentencepiece(text: str, scores: dict[str, float]) -> list[str]:
    """Encode by definition: merge the two neighbours whose joint token has the greatest score."""
    pieces = list(text)
    while True:
        joints = [
            (scores[left + right], -place)
            for place, (left, right) in enumerate(pairwise(pieces))
            if left + right in scores
        ]
        if not joints:
            return pieces
        place = -max(joints)[1]
        pieces[place : place + 2] = ["".join(pieces[place : place + 2])]


@pytest.mark.parametrize("seed", range(20))
def test_merges_join_as_sentencepiece_does(seed: int) -> None:
    rng = random.Random(seed)
    scores = dict.fromkeys("abcd", -1000000.0)
    for rank in range(40):
        left, right = rng.choices(list(scores), k=2)
        if len(left + right) <= 6:
            scores.setdefault(left + right, -float(rank))
    ids = {token: index for index, token in enumerate(scores)}
    tokenizer = Tokenizer(models.BPE(ids, merges_of_scores(scores)))
    for _ in range(50):
        text = "".join(rng.choices("abcd", k=rng.randint(1, 30)))
        assert tokenizer.encode(text).tokens == sentencepiece(text, scores)


def test_equal_scores_in_the_order_of_transformers() -> None:
    scores = {"a": 0.0, "b": 0.0, "aa": -1.0, "ab": -1.0, "aab": -1.0}
    merges = merges_of_scores(scores)
    assert merges == [("aa", "b"), ("a", "ab"), ("a", "a"), ("a", "b")]
    utilities = pytest.importorskip("transformers.tokenization_utils_base")
    if hasattr(utilities, "generate_merges"):
        ids = {token: index for index, token in enumerate(scores)}
        assert merges == utilities.generate_merges(ids, scores)
