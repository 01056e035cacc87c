"""The merges of a BPE: pairs of tokens, the ones to join first before the others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ..errors import ModelFormatError
from .fields import shown

__all__ = ["merges_of_scores", "split_merges"]

Merges = list[tuple[str, str]]


def split_merges(merges: Sequence[str], source: str) -> Merges:
    """Pairs that are written with a space between their two tokens."""
    pairs = []
    for index, merge in enumerate(merges):
        left, space, right = merge.partition(" ")
        if not (left and space and right):
            raise ModelFormatError(
                f"{source}: tokenizer.ggml.merges, element {index}, is {shown(merge)}; "
                "expected two tokens with a space between them"
            )
        pairs.append((left, right))
    return pairs


def merges_of_scores(scores: Mapping[str, float]) -> Merges:
    """What SentencePiece joins, as a list.

    scores: of every token that may come of a merge, or be part of one.

    SentencePiece joins the two neighbours whose joint token has the greatest
    score, so that every way to cut a token into two tokens is a merge of that
    score. Where scores are equal, as for the cuts of one token, the longer left
    half comes first: the order that transformers gives them when it converts
    such a vocabulary, and so that of every tokenizer.json made from one.
    """
    ranked = [
        (score, left, len(token) - left, token)
        for token, score in scores.items()
        for left in range(1, len(token))
        if token[:left] in scores and token[left:] in scores
    ]
    ranked.sort(key=lambda entry: entry[:3], reverse=True)
    return [(token[:left], token[left:]) for _, left, _, token in ranked]
