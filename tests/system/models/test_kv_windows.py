"""Models whose layers give back KV that has left their windows: the same bits as if none did.

The reference keeps everything: with many sequences, windows would save nothing, and all layers
keep their whole context in one group.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from pybatcher import Batcher, BatcherStatistics, Completion, RequestTooLongError, SamplingParams
from pybatcher.engine import Engine
from pybatcher.errors import InvalidRequestError, KvCacheFullError
from pybatcher.loading import ModelConfig, open_model
from pybatcher.params.config import EngineConfig
from pybatcher.scheduling.plan import StepEntry, StepPlan
from pybatcher.serving.runtime import Runtime, open_checkpoint
from pybatcher.testing import FailStep, Fault, FaultyEngine
from pybatcher.testing.checkpoints import make_checkpoint

WINDOW = 24
MIXED = {"use_sliding_window": True, "sliding_window": WINDOW, "max_window_layers": 1}
LONG = {"max_position_embeddings": 2048}
SHARED = {  # the last two layers read the keys and values of others, of two shapes
    "num_hidden_layers": 6,
    "layer_types": [
        *("sliding_attention", "sliding_attention", "sliding_attention"),
        *("full_attention", "sliding_attention", "full_attention"),
    ],
}
MODELS = {
    "some layers": ("qwen2", {"num_hidden_layers": 4, **MIXED, **LONG}),
    "layers of two shapes": ("gemma4", {**SHARED, **LONG}),
    "all layers": ("mistral", {"sliding_window": WINDOW, **LONG}),
}
OPTIONS: dict[str, Any] = {"n_ctx": 1280, "n_parallel": 4, "block_size": 16, "n_threads": 2}
KEEPS_ALL = {"n_parallel": 40}
LENGTH = 300  # past one segment of attention (256 positions)
TEXT = [7 * i * i % 380 for i in range(LENGTH)]


@pytest.fixture(scope="module", params=MODELS)
def path(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    architecture, fields = MODELS[request.param]
    return make_checkpoint(tmp_path_factory.mktemp("windowed"), architecture, **fields)


@pytest.fixture(scope="module")
def expected(path: Path) -> NDArray[np.float32]:
    """The logits of every position, (LENGTH, vocabulary), computed alone, one token a pass."""
    engine = Engine.load(path, **OPTIONS | KEEPS_ALL)
    assert not engine.description()["kv_windows"]
    seq_id = engine.seq_new()
    rows = [engine.prefill_chunk(seq_id, [token], logits=True) for token in TEXT]
    engine.close()
    return np.stack(rows)


def load(path: Path, **options: Any) -> Engine:
    engine = Engine.load(path, **OPTIONS | options)
    ((window, n_layers, n_blocks),) = engine.description()["kv_windows"]
    assert (window, n_layers) == (WINDOW, 3)
    assert n_blocks < engine.kv_total_blocks
    assert engine.kv_most_appendable_blocks == n_blocks
    return engine


def block_bytes(config: ModelConfig, layer: int) -> int:
    """Of 16 positions in f32: keys of one layer, and values, which are padded to 32 numbers."""
    shape = config.shape(layer)
    padded = -(-shape.head_dim // 32) * 32
    return shape.n_kv_heads * 16 * 4 * (shape.head_dim + padded)


def assert_same(row: NDArray[np.float32] | None, wanted: NDArray[np.float32]) -> None:
    assert row is not None
    assert np.array_equal(row.view(np.uint32), wanted.view(np.uint32))


@pytest.mark.parametrize("chunk", [1, 7, 64, LENGTH])
def test_chunks(path: Path, expected: NDArray[np.float32], chunk: int) -> None:
    engine = load(path)
    seq_id = engine.seq_new()
    for start in range(0, LENGTH, chunk):
        tokens = TEXT[start : start + chunk]
        row = engine.prefill_chunk(seq_id, tokens, logits=True)
        assert_same(row, expected[start + len(tokens) - 1])
        engine.check_integrity()
    engine.close()


def test_a_crowd(path: Path, expected: NDArray[np.float32]) -> None:
    """Four sequences at different places, of two texts, in one step; two share a beginning."""
    engine = load(path, n_ubatch=40)
    other = [token + 1 for token in TEXT]
    ids = [engine.seq_new(name) for name in ("", "a", "b", "c")]
    at = dict.fromkeys(ids, 0)
    for step in range(200):
        entries = []
        for i, seq_id in enumerate(ids):
            count = min((1, 5, 17, 40)[(step + i) % 4], LENGTH - at[seq_id])
            if count:
                text = other if i == 3 else TEXT
                tokens = tuple(text[at[seq_id] : at[seq_id] + count])
                entries.append(StepEntry(seq_id, tokens, False))
                at[seq_id] += count
        if entries:
            engine.step(StepPlan(tuple(entries), 0, 0))
    engine.check_integrity()
    assert set(at.values()) == {LENGTH}
    for seq_id in ids[:3]:
        engine.seq_remove(seq_id, LENGTH - 1)
        assert_same(engine.prefill_chunk(seq_id, TEXT[-1:], logits=True), expected[-1])
    engine.close()


def test_hits_and_copies(path: Path, expected: NDArray[np.float32]) -> None:
    engine = load(path, n_parallel=2)
    first, other = engine.seq_new(), engine.seq_new("other")
    for start in range(0, LENGTH, 20):
        engine.prefill_chunk(first, TEXT[start : start + 20])
    engine.prefill_chunk(other, (TEXT * 2)[:520])  # in one step: evicts what was given back
    engine.seq_remove(other)
    n_cut = 0
    for wanted in (LENGTH, 250, 161, 100, 16, 3):
        second = engine.seq_new()
        n = engine.seq_copyable(first, wanted)
        if n < wanted:
            n_cut += 1
            with pytest.raises(InvalidRequestError, match="seq_copyable"):
                engine.seq_copy(first, second, wanted)
        engine.seq_copy(first, second, n)
        row = engine.prefill_chunk(second, [*TEXT[n:], 5][:30], logits=True)
        if n + 30 <= LENGTH:
            assert_same(row, expected[n + 29])
        engine.seq_remove(second)
        engine.check_integrity()
    assert n_cut
    engine.seq_remove(first)
    for wanted in (LENGTH, 200, 90):
        seq_id = engine.seq_new()
        n = engine.seq_match(seq_id, TEXT[:wanted])
        for start in range(n, wanted - 1, 30):
            engine.prefill_chunk(seq_id, TEXT[start : min(start + 30, wanted - 1)])
        row = engine.prefill_chunk(seq_id, TEXT[wanted - 1 : wanted], logits=True)
        assert_same(row, expected[wanted - 1])
        engine.seq_remove(seq_id)
        engine.check_integrity()
    assert engine.kv_appendable_blocks == engine.kv_most_appendable_blocks
    engine.close()


def test_a_step_of_more_rows_than_a_window_has_room_for(path: Path) -> None:
    engine = load(path, n_parallel=1)
    seq_id = engine.seq_new()
    with pytest.raises(KvCacheFullError, match="layers that see 24 tokens"):
        engine.prefill_chunk(seq_id, TEXT * 3)
    assert engine.seq_length(seq_id) == 0
    engine.check_integrity()
    engine.close()


def test_memory_is_that_of_the_windows(path: Path) -> None:
    """A windowed layer has its group's blocks in place of all; the others have what they had.

    Layers that read the keys and values of others have none.
    """
    windowed, whole = load(path), Engine.load(path, **OPTIONS | KEEPS_ALL)
    ((_, _, n_blocks),) = windowed.description()["kv_windows"]
    config = open_model(path).config
    in_windows = in_whole = 0
    for layer, window in enumerate(config.sliding_windows):
        if config.shape(layer).kv_layer < 0:
            in_windows += block_bytes(config, layer) * (n_blocks if window else 80)
            in_whole += block_bytes(config, layer) * 80
    assert windowed.kv_total_blocks == whole.kv_total_blocks == 80
    assert windowed.description()["kv_bytes"] == in_windows
    assert whole.description()["kv_bytes"] == in_whole
    assert windowed.n_ctx == whole.n_ctx == 1280
    windowed.close()
    whole.close()


# -- under the scheduler

N_REQUESTS = 10


def request(i: int) -> tuple[list[int], SamplingParams]:
    """Prompts of which two in three begin alike, greedy and sampled, some longer than windows."""
    beginning = TEXT[:90] if i % 3 else TEXT[10 * i : 10 * i + 200]
    prompt = [*beginning, i, i + 1, 7]
    params = SamplingParams(
        max_tokens=50 + i, temperature=0.9 * (i % 2), seed=i, logprobs=1, ignore_eos=True
    )
    return prompt, params


async def serve(
    path: Path, options: dict[str, Any], *faults: Fault, keeps_all: bool = False
) -> tuple[list[object], BatcherStatistics]:
    def open_faulty(config: EngineConfig, n_prefixes: int) -> Runtime:
        opened = open_checkpoint(path, None, config, n_prefixes)
        assert bool(opened.engine.description()["kv_windows"]) == (not keeps_all)
        return replace(opened, engine=FaultyEngine(opened.engine, *faults))

    batcher = Batcher._over(open_faulty, None, {**OPTIONS, "n_ctx": 2048, **options})
    async with batcher:
        calls = [batcher.generate(*request(i)) for i in range(N_REQUESTS)]
        if keeps_all:
            completions: list[Completion] = [await call for call in calls]
        else:
            completions = list(await asyncio.gather(*calls))
        statistics = batcher.statistics()
        batcher.check_idle()
    return [(c.token_ids, c.finish_reason, c.logprobs) for c in completions], statistics


@pytest.fixture(scope="module")
def undisturbed(path: Path) -> list[object]:
    """What each request gets alone, from a model that keeps all KV."""
    outputs, _ = asyncio.run(serve(path, KEEPS_ALL | {"max_draft_tokens": 0}, keeps_all=True))
    return outputs


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"n_batch": 16},
        {"n_batch": 256, "n_ubatch": 16},
        {"n_batch": 7, "n_ubatch": 7, "max_num_partial_prefills": 3},
        {"max_draft_tokens": 0, "n_parallel": 1, "max_prefixes": 0, "n_ubatch": 16, "n_batch": 64},
    ],
    ids=str,
)
async def test_every_chunking(
    path: Path, undisturbed: list[object], options: dict[str, Any]
) -> None:
    outputs, _ = await serve(path, options)
    assert outputs == undisturbed


async def test_preemption(path: Path, undisturbed: list[object]) -> None:
    """With drafts and without: a model whose drafts are mostly right may end before it is tight."""
    tight = {"n_ctx": 1040, "n_parallel": 8, "max_prefixes": 0}
    options = {"output_reserve": 0, "watermark": 0.0, **tight}
    outputs, _ = await serve(path, options)
    assert outputs == undisturbed
    outputs, statistics = await serve(path, options | {"max_draft_tokens": 0})
    assert outputs == undisturbed
    assert statistics.preemptions > 0


async def test_a_step_that_fails_and_an_engine_that_starts_again(
    path: Path, undisturbed: list[object]
) -> None:
    outputs, statistics = await serve(path, {}, FailStep({9, 20}))
    assert outputs == undisturbed
    assert statistics.restarts


async def test_a_whole_input_that_windows_have_no_room_for(path: Path) -> None:
    options = OPTIONS | {"n_parallel": 1, "max_prefixes": 0, "n_batch": 1024, "n_ubatch": 16}
    async with Batcher(path, **options) as batcher:
        with pytest.raises(RequestTooLongError, match="layers with a sliding window"):
            await batcher.embed([TEXT * 3], pooling="mean")
        assert len(await batcher.embed([TEXT], pooling="mean")) == 1
