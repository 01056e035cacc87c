"""Batches of token ids for training.

Three kinds of row, each beginning with ``<|begin|>``: whole documents; fragments (a few sentences
of one story and a question, so that the answer is near); and repeated random tokens, which can
only be predicted from the context. The last two teach the model to copy names and things out of its
context, which whole documents alone teach it very slowly.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from tokenizers import Tokenizer

from tools.tiny.conversations import Message
from tools.tiny.tokenizer import BEGIN, END, ROLES, SPECIAL_TOKENS, as_text

IGNORED = -100  # cross_entropy leaves out this target
_BATCHES_SORTED_TOGETHER = 16
_COPIED_LENGTHS = (4, 6, 8, 12)

MakeDocument = Callable[[random.Random], "str | list[Message]"]


@dataclass(frozen=True, slots=True)
class Batch:
    """``inputs`` and ``targets``: (rows, length) int64; targets are one place ahead."""

    inputs: torch.Tensor
    targets: torch.Tensor

    @property
    def n_targets(self) -> int:
        return int((self.targets != IGNORED).sum())


def padded(rows: list[list[int]]) -> Batch:
    """Return rows of unequal length as one batch, padded on the right; padding is no target."""
    ids = torch.full((len(rows), max(map(len, rows))), IGNORED)
    for row, tokens in zip(ids, rows, strict=True):
        row[: len(tokens)] = torch.tensor(tokens)
    return Batch(inputs=ids[:, :-1].clamp_min(0), targets=ids[:, 1:])


def document_batches(
    tokenizer: Tokenizer, make: MakeDocument, n_rows: int, seed: int, *, answers_only: bool = False
) -> Iterator[Batch]:
    """Yield endless batches of ``n_rows`` documents, grouped by similar length.

    answers_only: no target outside of the assistant's turns.
    """
    rng = random.Random(seed)
    assistant, end = tokenizer.encode(ROLES["assistant"] + END, add_special_tokens=False).ids
    while True:
        texts = [as_text(make(rng)) for _ in range(n_rows * _BATCHES_SORTED_TOGETHER)]
        encodings = tokenizer.encode_batch(texts, add_special_tokens=False)
        rows = sorted((encoding.ids for encoding in encodings), key=len)
        batches = [rows[start : start + n_rows] for start in range(0, len(rows), n_rows)]
        rng.shuffle(batches)
        for batch in map(padded, batches):
            if answers_only:
                batch.targets[~in_answers(batch.inputs, assistant, end)] = IGNORED
            yield batch


def in_answers(inputs: torch.Tensor, assistant: int, end: int) -> torch.Tensor:
    """Return (rows, length) bool: whether the next token is of an assistant's turn, or ends it."""
    places = torch.arange(inputs.shape[1]).expand_as(inputs)
    opened = torch.where(inputs == assistant, places, -1).cummax(1).values
    closed = torch.where(inputs == end, places, -1).cummax(1).values
    return opened > closed


def copy_batches(tokenizer: Tokenizer, n_rows: int, seed: int) -> Iterator[Batch]:
    """Yield endless batches of random tokens repeated once; only the repetition is a target."""
    rng = random.Random(seed)
    begin: int = tokenizer.encode(BEGIN, add_special_tokens=False).ids[0]
    n_tokens = tokenizer.get_vocab_size()
    while True:
        n_copied = rng.choice(_COPIED_LENGTHS)
        said = [
            [rng.randrange(len(SPECIAL_TOKENS), n_tokens) for _ in range(n_copied)]
            for _ in range(n_rows)
        ]
        batch = padded([[begin, *tokens, *tokens] for tokens in said])
        batch.targets[:, : n_copied + 1] = IGNORED
        yield batch
