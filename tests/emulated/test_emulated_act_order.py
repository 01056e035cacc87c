"""Act-order on an emulated GPU: the numbers of the same model put in order by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from act_order_files import ALL, INNER, SHAPE, Orders, in_heads, shuffled, write
from emulated_engine import VOCAB, Floats, load_engine, tokens_of

from pybatcher.engine import Engine
from pybatcher.testing.checkpoints import make_checkpoint

PROMPT = tokens_of(37, 1)


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    return make_checkpoint(folder / "llama", "llama", tokenizer=False, vocab_size=VOCAB, **SHAPE)


def rows_of(engine: Engine, *chunks: int) -> Floats:
    """The logits after PROMPT, computed in chunks, and after three tokens more beside another."""
    beside = engine.seq_new("beside")
    engine.prefill_chunk(beside, PROMPT[::-1])
    seq_id = engine.seq_new(str(chunks))  # a name space of its own: nothing is shared
    first = 0
    for size in chunks:
        row = engine.prefill_chunk(seq_id, PROMPT[first : first + size], logits=True)
        first += size
    rows = [row]
    for token in tokens_of(3, 2):
        _, both = engine.decode_batch([beside, seq_id], [token, token], logits=True)
        rows.append(both[1])
    engine.seq_remove(beside)
    engine.seq_remove(seq_id)
    return np.array(rows)


def answer(path: Path, **options: Any) -> Floats:
    engine = load_engine(path, **options)
    rows = rows_of(engine, len(PROMPT))
    engine.close()
    return rows


def test_what_comes_in_may_be_moved_instead(directory: Path, tmp_path: Path) -> None:
    orders = Orders(attended=in_heads(), inner=shuffled(INNER, 2))
    root = write(directory, tmp_path / "model", orders)
    np.testing.assert_array_equal(answer(root / "ordered"), answer(root / "moved"))


def test_chunks_and_company_change_no_bit(directory: Path, tmp_path: Path) -> None:
    root = write(directory, tmp_path / "model", ALL)
    engine = load_engine(root / "ordered")
    expected = rows_of(engine, len(PROMPT))
    for chunks in ((17, 9, 11), (1, 36)):
        np.testing.assert_array_equal(rows_of(engine, *chunks), expected)
    engine.close()
    moved = answer(root / "moved")
    assert 0 < np.linalg.norm(expected - moved) < 0.02 * np.linalg.norm(moved)
