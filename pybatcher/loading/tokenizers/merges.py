"""The merges of a BPE tokenizer: pairs of tokens in order of priority, highest first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ...errors import ModelFormatError
from ..checkpoints.fields import shown

__all__ = ["merges_of_scores", "split_merges"]

Merges = list[tuple[str, str]]


def split_merges(merges: Sequence[str], source: str) -> Merges:
    """Split merges written as "left right" into pairs.

    source: the file, for messages. Raises ModelFormatError for a merge that is not a pair.
    """
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
    """Return the merge list that is equivalent to SentencePiece's token scores.

    scores: the score of every token that can be the result or a part of a merge.

    SentencePiece merges the two neighbours whose joint token has the greatest score, so
    that every split of a token into two tokens is a merge with that token's score. Among
    equal scores, the longer left part comes first: transformers uses this order when it
    converts such a vocabulary to tokenizer.json.
    """
    ranked = [
        (score, left, len(token) - left, token)
        for token, score in scores.items()
        for left in range(1, len(token))
        if token[:left] in scores and token[left:] in scores
    ]
    ranked.sort(key=lambda entry: entry[:3], reverse=True)
    return [(token[:left], token[left:]) for _, left, _, token in ranked]
