"""Invariant 1 on an emulated GPU: logits do not depend, in a single bit, on the schedule.

Each sequence is first computed alone, one token a pass. Then the same tokens go through the engine
in other ways, and every row of logits must be equal bit for bit.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from emulated_engine import (
    BLOCK,
    ON_GPU,
    RECURRENT,
    SEGMENT,
    VOCAB,
    Floats,
    few_layers,
    load_engine,
    tokens_of,
)

from pybatcher.engine import Engine
from pybatcher.scheduling.plan import StepEntry, StepPlan
from pybatcher.testing.checkpoints import ARCHITECTURES, make_checkpoint

FORMATS = [  # (dtype, dtype of KV)
    ("f32", "f32"),
    ("f32", "int8"),
    ("bf16", "bf16"),
    ("bf16", "f16"),
    ("int8", "bf16"),
    ("int4", "int8"),
]
# llama with every format; each other architecture with one of them in turn, on a real GPU with two,
# as no kernel is written for a pair of the two. Recurrent layers with every dtype of weights.
IN_TURN = (0, len(FORMATS) // 2) if ON_GPU else (0,)
CASES = [
    *(("llama", formats) for formats in (*FORMATS, ("bf16", "f32"), ("int8", "f16"))),
    *(("qwen3_5", FORMATS[i]) for i in (0, 2, 4, 5)),
    *(
        (architecture, FORMATS[(turn + more) % len(FORMATS)])
        for turn, architecture in enumerate(
            name for name in ARCHITECTURES if name not in ("llama", "qwen3_5")
        )
        for more in IN_TURN
    ),
]
N_SEQUENCES = 16
N_TAIL = 3  # positions at the end of each sequence that are decoded, not prefilled
N_WHOLE = 250  # of the longest sequence, first: one pass, and not one pass a token


@dataclass(frozen=True)
class Rig:
    """One model; sequences, and the logits of the positions of each that were computed one a pass.

    The first sequence goes past a segment of attention. is_recurrent: the model has states, which
    are those after a sequence's last token and where blocks end.
    """

    seed: int
    is_recurrent: bool
    options: dict[str, Any]
    tokens: list[list[int]]
    expected: list[dict[int, Floats]]  # of each sequence, by position: (vocab)

    def engine(self, **options: Any) -> Engine:
        return load_engine(**{**self.options, **options})

    def prompt(self, index: int) -> list[int]:
        return self.tokens[index][:-N_TAIL]

    def kept(self, length: int) -> int:
        """How many of a sequence's first `length` tokens can be gone on from, before its end."""
        return length // BLOCK * BLOCK if self.is_recurrent else length

    def take_back(self, engine: Engine, index: int, seq_id: int) -> int:
        """Take a sequence back to its prompt; return it, or one made anew of what is kept."""
        prompt = self.prompt(index)
        if not self.is_recurrent:
            engine.seq_remove(seq_id, len(prompt))
            return seq_id
        engine.seq_remove(seq_id)
        seq_id = engine.seq_new(str(index))
        start = engine.seq_match(seq_id, prompt)
        engine.prefill_chunk(seq_id, prompt[start:])
        return seq_id

    def check(self, index: int, length: int, row: Floats, what: str) -> None:
        """Compare the logits after the first `length` tokens of a sequence, where they are known.

        row: (vocab).
        """
        expected = self.expected[index].get(length - 1, row)
        same = np.array_equal(row.view(np.uint32), expected.view(np.uint32))
        assert same, f"{what}: sequence {index} after {length} tokens"

    def check_prefill(self, engine: Engine, seq_id: int, what: str, chunk: int = 512) -> None:
        """Compute the rest of the first sequence's prompt in chunks; compare each one's end."""
        prompt = self.prompt(0)
        while (start := engine.seq_length(seq_id)) < len(prompt):
            row = engine.prefill_chunk(seq_id, prompt[start : start + chunk], logits=True)
            self.check(0, engine.seq_length(seq_id), row, what)

    def check_decode(self, engine: Engine, seq_ids: dict[int, int], what: str) -> None:
        """Decode the tails of the sequences {index: seq_id} together; compare every row."""
        for step in range(-N_TAIL, 0):
            tokens = [self.tokens[index][step] for index in seq_ids]
            _, rows = engine.decode_batch(list(seq_ids.values()), tokens, logits=True)
            for (index, seq_id), row in zip(seq_ids.items(), rows, strict=True):
                self.check(index, engine.seq_length(seq_id), row, what)


@pytest.fixture(scope="module", params=CASES, ids=lambda case: "-".join([case[0], *case[1]]))
def rig(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Rig:
    architecture, (dtype, kv_dtype) = request.param
    path = make_checkpoint(
        tmp_path_factory.mktemp("model"),
        architecture,
        tokenizer=False,
        vocab_size=VOCAB,
        **few_layers(architecture),
    )
    lengths = [SEGMENT + 9, *(N_TAIL + 1 + i // 3 for i in range(N_SEQUENCES - 1))]
    tokens = [tokens_of(length, seed) for seed, length in enumerate(lengths)]
    options = {"path": path, "dtype": dtype, "kv_dtype": kv_dtype}
    engine = load_engine(**options)
    expected: list[dict[int, Floats]] = []
    for index, sequence in enumerate(tokens):
        seq_id = engine.seq_new(str(index))
        start = N_WHOLE if index == 0 else 0
        if start:
            engine.prefill_chunk(seq_id, sequence[:start])
        expected.append(
            {
                position: engine.prefill_chunk(seq_id, [sequence[position]], logits=True)
                for position in range(start, len(sequence))
            }
        )
        engine.seq_remove(seq_id)
    engine.close()
    is_recurrent = architecture in RECURRENT
    return Rig(CASES.index(request.param), is_recurrent, options, tokens, expected)


def test_random_neighbours(rig: Rig) -> None:
    """Mixed steps of 2 to 16 sequences in ragged chunks, then decoding in random batches."""
    rng = np.random.default_rng(rig.seed)
    engine = rig.engine(n_ubatch=29)
    seq_ids = {index: engine.seq_new(str(index)) for index in range(N_SEQUENCES)}
    pending = {index for index in seq_ids if rig.prompt(index)}
    while pending:
        entries = []
        for index in rng.permutation(sorted(pending))[: rng.integers(2, N_SEQUENCES + 1)].tolist():
            start = engine.seq_length(seq_ids[index])
            chunk = rig.prompt(index)[
                start : start + int(rng.integers(1, 150 if index == 0 else 7))
            ]
            if start + len(chunk) == len(rig.prompt(index)):
                pending.remove(index)
            entries.append(StepEntry(seq_ids[index], tuple(chunk), bool(rng.integers(2))))
        engine.step(StepPlan(tuple(entries), 0, 0))
    shuffled = rng.permutation(N_SEQUENCES).tolist()
    begin, size = 0, 2
    while begin < N_SEQUENCES:
        batch = {index: seq_ids[index] for index in shuffled[begin : begin + size]}
        rig.check_decode(engine, batch, f"batch of {len(batch)}")
        begin, size = begin + size, int(rng.integers(1, N_SEQUENCES))
    for index, seq_id in seq_ids.items():
        seq_ids[index] = rig.take_back(engine, index, seq_id)
    rig.check_decode(engine, seq_ids, f"batch of {N_SEQUENCES}")
    engine.check_integrity()
    engine.close()


def test_any_chunking_and_ubatch(rig: Rig) -> None:
    engine = rig.engine(n_ubatch=64)
    seq_id = engine.seq_new()
    rig.check_prefill(engine, seq_id, "chunks of 131", 131)
    rig.check_decode(engine, {0: seq_id}, "chunks of 131")
    engine.close()
    for n_ubatch in (1, 3):
        engine = rig.engine(n_ubatch=n_ubatch)
        seq_id = engine.seq_new()
        row = engine.prefill_chunk(seq_id, rig.prompt(N_SEQUENCES - 1), logits=True)
        rig.check(N_SEQUENCES - 1, engine.seq_length(seq_id), row, f"n_ubatch {n_ubatch}")
        engine.close()


def test_after_copy_match_remove_and_restart(rig: Rig) -> None:
    engine = rig.engine()
    prompt = rig.prompt(0)
    first = engine.seq_new()
    rig.check_prefill(engine, first, "first")
    for shared in (BLOCK * 15, SEGMENT - 1, SEGMENT, SEGMENT + 1, len(prompt)):
        copied = engine.seq_new()
        had = engine.seq_copyable(first, shared)
        assert had == (shared if shared == len(prompt) else rig.kept(shared))
        engine.seq_copy(first, copied, had)
        rig.check_prefill(engine, copied, f"copy of {shared}")
        rig.check_decode(engine, {0: copied}, f"copy of {shared}")
        engine.seq_remove(copied)
    rig.check_decode(engine, {0: first}, "source of copies")

    matched = engine.seq_new()
    assert engine.seq_match(matched, prompt) == SEGMENT
    rig.check_prefill(engine, matched, "match")
    rig.check_decode(engine, {0: matched}, "match")
    for kept in (BLOCK * 15 + 1, SEGMENT - 1, SEGMENT + 1):
        engine.seq_remove(matched, rig.kept(kept))
        other = engine.seq_new()
        engine.prefill_chunk(other, rig.prompt(N_SEQUENCES - 1))  # takes the blocks given back
        rig.check_prefill(engine, matched, f"{kept} kept")
        rig.check_decode(engine, {0: matched}, f"{kept} kept")
        engine.seq_remove(other)
    engine.check_integrity()

    engine.restart()
    again = engine.seq_new()
    assert engine.seq_match(again, prompt) == 0
    row = engine.prefill_chunk(again, rig.prompt(N_SEQUENCES - 1), logits=True)
    rig.check(N_SEQUENCES - 1, engine.seq_length(again), row, "restart")
    rig.check_decode(engine, {N_SEQUENCES - 1: again}, "restart")
    engine.close()


def test_more_rows_than_the_head_takes_at_once(tmp_path: Path) -> None:
    """The rows on both sides of the 128th have the bits of the row alone."""
    path = make_checkpoint(
        tmp_path, "llama", tokenizer=False, vocab_size=VOCAB, num_hidden_layers=1
    )
    engine = load_engine(path, dtype="bf16", n_ctx=BLOCK * 136, n_parallel=134)

    def started(row: int) -> int:
        seq_id = engine.seq_new(str(row))
        engine.prefill_chunk(seq_id, [row % VOCAB])
        return seq_id

    seq_ids = [started(row) for row in range(130)]
    drawn, logits = engine.decode_batch(seq_ids, list(range(130)), logits=True)
    for row in (0, 127, 128, 129):
        own, alone = engine.decode_batch([started(row)], [row], logits=True)
        assert own[0] == drawn[row]
        assert (alone[0] == logits[row]).all()
    engine.close()
