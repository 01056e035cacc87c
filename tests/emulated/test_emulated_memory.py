"""Memory of an emulated GPU: an error says what does not fit, and all of it is given back."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from emulated_engine import BLOCK, VOCAB, load_engine, not_given_back, tokens_of

from pybatcher import Batcher
from pybatcher.errors import EngineError
from pybatcher.testing.checkpoints import make_checkpoint

pytestmark = pytest.mark.emulator  # faults are planted in its driver, or its memory is known

GPU_BYTES = 2**30


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    return make_checkpoint(folder, "llama", tokenizer=False, vocab_size=VOCAB)


def gpu_positions(engine_bytes: float, path: Path) -> int:
    """The n_ctx whose KV takes so many bytes."""
    engine = load_engine(path)
    position_bytes = engine.description()["kv_bytes"] / 1024
    engine.close()
    return int(engine_bytes / position_bytes)


def test_a_context_that_does_not_fit_says_what_is_wanted_and_what_is_free(path: Path) -> None:
    before = not_given_back()
    n_ctx = gpu_positions(1.5 * GPU_BYTES, path)
    with pytest.raises(EngineError, match="n_ctx") as error:
        load_engine(path, n_ctx=n_ctx)
    found = re.search(r"([\d.]+) GiB wanted, ([\d.]+) \w+ of 1.00 GiB free", str(error.value))
    assert found is not None
    assert found[1] == "1.50"
    assert not_given_back() == before  # the weights, which had been loaded


def test_states_of_recurrent_layers_are_counted(tmp_path: Path) -> None:
    """Two blocks for each sequence, and those that a step of 512 rows fills."""
    path = make_checkpoint(tmp_path, "qwen3_5", tokenizer=False, vocab_size=VOCAB)
    state = 4 * (6 * 20 * 16 + 3 * (2 * 2 * 12 + 6 * 20))  # S, of padded keys; inputs of three rows
    held = {}
    for n_parallel in (4, 400):
        engine = load_engine(path, n_parallel=n_parallel, n_ctx=16 * 400)
        description = engine.description()
        assert description["kv_states"] == [(3, 2 * n_parallel + 512 // BLOCK)]
        held[n_parallel] = description["kv_bytes"]
        engine.close()
    assert held[400] - held[4] == 2 * 396 * 3 * state
    with pytest.raises(EngineError, match=r"GiB wanted, [\d.]+ \w+ of 1.00 GiB free"):
        load_engine(path, n_parallel=30_000, n_ctx=16 * 30_000)


def test_close_gives_all_memory_back(path: Path) -> None:
    """Each engine takes more than half of the GPU."""
    before = not_given_back()
    n_ctx = gpu_positions(0.6 * GPU_BYTES, path)
    for dtype in ("f32", "int4"):
        engine = load_engine(path, dtype=dtype, kv_dtype="f32", n_ctx=n_ctx)
        engine.prefill_chunk(engine.seq_new(), tokens_of(300, 1), logits=True)
        with pytest.raises(EngineError, match=r"MiB of 1.00 GiB free"):
            load_engine(path, kv_dtype="f32", n_ctx=n_ctx)
        engine.prefill_chunk(0, tokens_of(3, 1))  # is not harmed by it
        held = not_given_back()
        assert "allocations" in held
        assert "pinned allocation" in held
        engine.close()
        assert not_given_back() == before


async def test_a_batcher_gives_all_memory_back() -> None:
    before = not_given_back()
    async with Batcher(device="cuda", n_ctx=256, n_threads=1) as batcher:
        await batcher.generate("Once", max_tokens=2)
        assert not_given_back() != before
    assert not_given_back() == before


def test_an_automatic_context_is_what_sequences_can_use() -> None:
    engine = load_engine(None, n_ctx="auto", n_parallel=2)
    assert engine.n_ctx == engine.description()["n_ctx"] == 2 * engine.max_sequence_length
    engine.close()
