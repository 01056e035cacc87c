"""Models with recurrent layers: the same bits under any schedule, and states where they belong.

What a sequence gets alone, one token a pass, is what it gets in chunks, beside others, from a
copy, from a cached prefix, and after the engine failed.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from engine_helpers import TARGETS
from numpy.typing import NDArray

from pybatcher import Batcher, BatcherStatistics, Completion, SamplingParams
from pybatcher.engine import Engine
from pybatcher.errors import InvalidRequestError
from pybatcher.loading import open_model
from pybatcher.params.config import BLOCK_SIZE, EngineConfig
from pybatcher.scheduling.plan import StepEntry, StepPlan
from pybatcher.serving.runtime import Runtime, open_checkpoint
from pybatcher.testing import FailStep, Fault, FaultyEngine
from pybatcher.testing.checkpoints import make_checkpoint

OPTIONS: dict[str, Any] = {"n_ctx": 1280, "n_parallel": 4, "block_size": 16, "n_threads": 2}
LENGTH = 300
TEXT = [7 * i * i % 380 for i in range(LENGTH)]


@pytest.fixture(scope="module", params=["qwen3_5", "lfm2_moe"])
def path(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp(request.param)
    return make_checkpoint(directory, request.param, max_position_embeddings=1024)


@pytest.fixture(scope="module")
def expected(path: Path) -> NDArray[np.float32]:
    """The logits of every position, (LENGTH, vocabulary), computed alone, one token a pass."""
    engine = Engine.load(path, **OPTIONS)
    seq_id = engine.seq_new()
    rows = [engine.prefill_chunk(seq_id, [token], logits=True) for token in TEXT]
    engine.close()
    return np.stack(rows)


def assert_same(row: NDArray[np.float32] | None, wanted: NDArray[np.float32]) -> None:
    assert row is not None
    assert np.array_equal(row.view(np.uint32), wanted.view(np.uint32))


@pytest.mark.parametrize("chunk", [7, 64, LENGTH])
@pytest.mark.parametrize("block_size", [16, 128])
def test_chunks(path: Path, expected: NDArray[np.float32], chunk: int, block_size: int) -> None:
    engine = Engine.load(path, **OPTIONS | {"block_size": block_size, "n_ubatch": 100})
    seq_id = engine.seq_new()
    for start in range(0, LENGTH, chunk):
        tokens = TEXT[start : start + chunk]
        row = engine.prefill_chunk(seq_id, tokens, logits=True)
        assert_same(row, expected[start + len(tokens) - 1])
        engine.check_integrity()
    engine.close()


@pytest.mark.parametrize("dtype", ["f32", "bf16", "int8", "int4"])
@pytest.mark.parametrize("target", TARGETS)
def test_chunks_on_every_target(
    path: Path, target: str, dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYBATCHER_CPU_TARGET", target)
    engine = Engine.load(path, **OPTIONS, dtype=dtype)
    first, second = engine.seq_new(), engine.seq_new("other")
    whole = engine.prefill_chunk(first, TEXT[:70], logits=True)
    for start in range(0, 70, 9):
        row = engine.prefill_chunk(second, TEXT[start : min(start + 9, 70)], logits=True)
    assert_same(row, whole)
    both = engine.decode_batch([first, second], [5, 5], logits=True)[1]
    assert_same(both[0], both[1])
    engine.close()


def test_copies(path: Path, expected: NDArray[np.float32]) -> None:
    """A sequence is copied as it is, and at whole blocks that are cached."""
    engine = Engine.load(path, **OPTIONS)
    first = engine.seq_new()
    engine.prefill_chunk(first, TEXT[:200])
    for wanted, had in ((200, 200), (199, 192), (192, 192), (40, 32), (15, 0)):
        assert engine.seq_copyable(first, wanted) == had
        second = engine.seq_new()
        if had < wanted:
            with pytest.raises(InvalidRequestError, match="recurrent layers have no state"):
                engine.seq_copy(first, second, wanted)
        engine.seq_copy(first, second, had)
        row = engine.prefill_chunk(second, TEXT[had : had + 30], logits=True)
        assert_same(row, expected[had + 29])
        engine.seq_remove(second)
        engine.check_integrity()
    assert_same(engine.prefill_chunk(first, TEXT[200:], logits=True), expected[-1])
    engine.close()


def test_cached_prefixes(path: Path, expected: NDArray[np.float32]) -> None:
    engine = Engine.load(path, **OPTIONS)
    first = engine.seq_new()
    engine.prefill_chunk(first, TEXT[:200])
    engine.seq_remove(first)
    second = engine.seq_new()
    assert engine.seq_match(second, TEXT) == 192
    assert_same(engine.prefill_chunk(second, TEXT[192:], logits=True), expected[-1])
    assert engine.seq_match(engine.seq_new("other"), TEXT) == 0
    engine.check_integrity()
    engine.close()


def test_a_tail_is_removed_at_whole_blocks(path: Path, expected: NDArray[np.float32]) -> None:
    engine = Engine.load(path, **OPTIONS)
    seq_id = engine.seq_new()
    engine.prefill_chunk(seq_id, TEXT[:100])
    with pytest.raises(InvalidRequestError, match="start would leave"):
        engine.seq_remove(seq_id, 90)
    assert engine.seq_length(seq_id) == 100
    engine.seq_remove(seq_id, 80)
    assert_same(engine.prefill_chunk(seq_id, TEXT[80:120], logits=True), expected[119])
    engine.check_integrity()
    engine.close()


def test_drafts_are_refused(path: Path) -> None:
    engine = Engine.load(path, **OPTIONS)
    assert not engine.takes_drafts
    seq_id = engine.seq_new()
    engine.prefill_chunk(seq_id, TEXT[:5])
    with pytest.raises(InvalidRequestError, match=r"n_draft .* must be 0: .*recurrent"):
        engine.step(StepPlan((StepEntry(seq_id, (1, 2, 3), True, n_draft=2),), 0, 0))
    assert engine.seq_length(seq_id) == 5
    engine.close()


def test_what_is_told(path: Path) -> None:
    engine = Engine.load(path, n_ctx=1280, n_parallel=4)
    has_large_states = open_model(path).config.gated_delta_net is not None
    assert engine.block_size == (128 if has_large_states else BLOCK_SIZE)
    facts = engine.description()
    n_states = 2 * 4 + 512 // engine.block_size
    assert facts["kv_states"] == [(3, n_states)]
    # S, and the inputs of three rows; or those of two.
    state = 6 * 20 * 12 + 3 * (2 * 2 * 12 + 6 * 20) if has_large_states else 2 * 48
    assert facts["kv_bytes"] >= n_states * 3 * 4 * state
    engine.close()


# -- under the scheduler

N_REQUESTS = 10


def request(i: int) -> tuple[list[int], SamplingParams]:
    """Prompts of which two in three begin alike, greedy and sampled."""
    beginning = TEXT[:90] if i % 3 else TEXT[10 * i : 10 * i + 200]
    prompt = [*beginning, i, i + 1, 7]
    params = SamplingParams(
        max_tokens=50 + i, temperature=0.9 * (i % 2), seed=i, logprobs=1, ignore_eos=True
    )
    return prompt, params


async def serve(
    path: Path, options: dict[str, Any], *faults: Fault, one_by_one: bool = False
) -> tuple[list[object], BatcherStatistics]:
    def open_faulty(config: EngineConfig, n_prefixes: int) -> Runtime:
        opened = open_checkpoint(path, None, config, n_prefixes)
        return replace(opened, engine=FaultyEngine(opened.engine, *faults))

    batcher = Batcher._over(open_faulty, None, {**OPTIONS, "n_ctx": 2048, **options})
    async with batcher:
        calls = [batcher.generate(*request(i)) for i in range(N_REQUESTS)]
        if one_by_one:
            completions: list[Completion] = [await call for call in calls]
        else:
            completions = list(await asyncio.gather(*calls))
        statistics = batcher.statistics()
        batcher.check_idle()
    return [(c.token_ids, c.finish_reason, c.logprobs) for c in completions], statistics


@pytest.fixture(scope="module")
def undisturbed(path: Path) -> list[object]:
    outputs, _ = asyncio.run(serve(path, {}, one_by_one=True))
    return outputs


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"n_batch": 24, "max_prefill_tokens": 11},
        {"max_num_partial_prefills": 3},
        {"itl_target": 0.002},
        {"n_parallel": 10, "block_size": 32},
    ],
    ids=str,
)
async def test_every_schedule(
    path: Path, undisturbed: list[object], options: dict[str, Any]
) -> None:
    outputs, counts = await serve(path, options)
    assert outputs == undisturbed
    assert counts.proposed_tokens == 0


async def test_preemption(path: Path, undisturbed: list[object]) -> None:
    outputs, counts = await serve(path, {"n_ctx": 512, "output_reserve": 0, "watermark": 0.0})
    assert outputs == undisturbed
    assert counts.preemptions > 0


@pytest.mark.parametrize("after", [False, True])
async def test_failures(path: Path, undisturbed: list[object], after: bool) -> None:
    fault = FailStep({3, 30}, after=after)
    outputs, counts = await serve(path, {"max_restarts": 100}, fault)
    assert outputs == undisturbed
    assert counts.restarts > 0


async def test_shared_prefixes_and_several_answers(path: Path) -> None:
    async with Batcher(path, **OPTIONS) as batcher:
        alone = await batcher.generate(TEXT[:75], max_tokens=20, ignore_eos=True)
        await batcher.add_prefix(TEXT[:60])
        again = await batcher.generate(TEXT[:75], max_tokens=20, ignore_eos=True)
        assert again.token_ids == alone.token_ids
        both = await batcher.generate(TEXT[:75], n=2, max_tokens=20, ignore_eos=True)
        assert [output.token_ids for output in both.choices] == [alone.token_ids] * 2
        assert both.usage.cached_tokens >= 60


@pytest.mark.parametrize(("dtype", "part"), [("q4_k_m", 1.0), ("q6_k", 0.5)])
def test_mixtures_are_nearer_than_int4(dtype: str, part: float, tmp_path: Path) -> None:
    """Of rows of whole super-blocks; the same bits however the prompt is cut."""
    wide: dict[str, Any] = {"hidden_size": 256, "intermediate_size": 256, "num_attention_heads": 16}
    sizes: dict[str, Any] = {"linear_num_value_heads": 16, "linear_value_head_dim": 16}
    path = make_checkpoint(tmp_path, "qwen3_5", tokenizer=False, **wide, **sizes)

    def last_logits(dtype: str, chunk: int) -> NDArray[np.float32]:
        engine = Engine.load(path, **OPTIONS, dtype=dtype)
        seq_id = engine.seq_new()
        for start in range(0, 60, chunk):
            tokens = TEXT[start : min(start + chunk, 60)]
            row = engine.prefill_chunk(seq_id, tokens, logits=True)
        engine.close()
        assert row is not None
        return row

    exact, found = last_logits("f32", 60), last_logits(dtype, 60)
    assert_same(last_logits(dtype, 7), found)
    error = np.linalg.norm(found - exact)
    assert 0 < error < part * np.linalg.norm(last_logits("int4", 60) - exact)
