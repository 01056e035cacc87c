"""Decode passes of an emulated GPU that are one CUDA graph: the same bits as launches."""

from __future__ import annotations

from pathlib import Path

import pytest
from emulated_engine import SEGMENT, VOCAB, few_layers, load_engine, tokens_of

from pybatcher.testing.checkpoints import ARCHITECTURES, make_checkpoint


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_graphs_change_no_bit(
    architecture: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = make_checkpoint(
        tmp_path, architecture, tokenizer=False, vocab_size=VOCAB, **few_layers(architecture)
    )
    seen = []
    for graphs in ("off", "on"):
        monkeypatch.setenv("PYBATCHER_CUDA_GRAPHS", graphs)
        engine = load_engine(path, dtype="bf16", n_ubatch=64)
        ids = [engine.seq_new() for _ in range(5)]
        for i, seq_id in enumerate(ids):
            engine.prefill_chunk(seq_id, tokens_of(SEGMENT + 24 if i == 0 else 5 + i, i))
        last, drawn = tokens_of(5, 9), []
        for n in (1, 2, 3, 5, 4, 3, 1, 5, 2):
            last[:n] = engine.decode_batch(ids[:n], last[:n]).tolist()
            drawn.append(last[:n])
        logits = [engine.prefill_chunk(seq_id, [7], logits=True).tobytes() for seq_id in ids]
        engine.check_integrity()
        engine.close()
        seen.append((drawn, logits))
    assert seen[0] == seen[1]
