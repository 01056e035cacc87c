"""Correct use of `Engine`: results of every call."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from engine_helpers import TARGETS, VOCAB, ids, plan, state

import pybatcher.engine
from pybatcher import errors
from pybatcher.engine import Engine
from pybatcher.loading import open_model
from pybatcher.params import SamplingParams
from pybatcher.params.config import EngineConfig
from pybatcher.scheduling.plan import SampledToken
from pybatcher.testing.checkpoints import make_checkpoint, make_module

# -- making one ------------------------------------------------------------------------------


def test_facts(engine: Engine) -> None:
    assert engine.vocab_size == VOCAB
    assert engine.hidden_size == 48
    assert engine.n_ctx == 256  # 250 in whole blocks
    assert engine.max_sequence_length == 200  # the model's positions
    assert engine.kv_total_blocks == engine.kv_free_blocks == 16
    assert engine.kv_cached_blocks == engine.used_sequences == 0
    assert (engine.block_size, engine.n_parallel, engine.n_ubatch) == (16, 4, 16)
    description = engine.description()
    assert description["dtype"] == description["kv_dtype"] == "f32"
    assert description["device"] == "cpu"
    assert description["n_threads"] == 1
    assert description["cpu_target"] in TARGETS
    n_parameters = sum(p.numel() for p in make_module("llama").parameters())
    assert 4 * n_parameters <= int(description["weight_bytes"]) < 8 * n_parameters
    assert int(description["kv_bytes"]) >= 4 * 2 * 256 * 3 * 2 * 16


def test_short_context_limits_a_sequence(checkpoint: Path) -> None:
    engine = Engine.load(checkpoint, n_ctx=33, block_size=32)
    assert engine.max_sequence_length == engine.n_ctx == 64
    engine.close()


def test_an_automatic_context_is_what_sequences_can_use(checkpoint: Path) -> None:
    engine = Engine.load(checkpoint, n_ctx="auto", n_parallel=4, block_size=16, n_threads=1)
    assert engine.n_ctx == engine.description()["n_ctx"] == 4 * 208  # 200 positions in blocks
    assert engine.max_sequence_length == 200
    assert len(engine.prefill_chunk(engine.seq_new(), [1, 2, 3], logits=True)) == VOCAB
    engine.close()


@pytest.mark.parametrize(
    ("dtype", "asked", "expected"),
    [
        ("float32", ("auto", "auto"), ("f32", "f32")),
        ("bfloat16", ("auto", "auto"), ("bf16", "bf16")),
        ("float16", ("auto", "auto"), ("bf16", "bf16")),
        ("float32", ("bf16", "auto"), ("bf16", "bf16")),
        ("bfloat16", ("f32", "bf16"), ("f32", "bf16")),
        ("bfloat16", ("auto", "f16"), ("bf16", "f16")),
        ("float32", ("auto", "int8"), ("f32", "int8")),
    ],
)
def test_auto_dtypes(
    tmp_path: Path, dtype: str, asked: tuple[str, str], expected: tuple[str, str]
) -> None:
    make_checkpoint(tmp_path, "qwen2", dtype=dtype, tokenizer=False)
    engine = Engine.load(tmp_path, dtype=asked[0], kv_dtype=asked[1], n_ctx=64, n_threads=1)
    description = engine.description()
    assert (description["dtype"], description["kv_dtype"]) == expected
    logits = engine.prefill_chunk(engine.seq_new(), ids(5), logits=True)
    assert np.isfinite(logits).all()
    engine.close()


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("dtype", "int3"),
        ("kv_dtype", "int4"),
        ("device", "tpu"),
        ("device", "cuda"),
        ("n_ctx", 0),
        ("n_parallel", 0),
        ("n_ubatch", 2**40),
        ("n_threads", -1),
        ("block_size", 24),
    ],
)
def test_bad_options(checkpoint: Path, option: str, value: object) -> None:
    with pytest.raises(errors.ConfigError, match=option):
        Engine.load(checkpoint, **{option: value})  # type: ignore[arg-type]


def test_unknown_cpu_target(checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYBATCHER_CPU_TARGET", "abacus")
    with pytest.raises(errors.ConfigError, match="abacus"):
        Engine.load(checkpoint)


@pytest.mark.parametrize(
    ("family", "options"),
    [
        ("llama", {"dtype": "f32"}),
        ("llama", {"dtype": "int8", "kv_dtype": "int8", "n_ctx": 1000}),
        ("gemma3", {"n_ctx": 4096, "n_parallel": 2, "dtype": "bf16"}),
        ("qwen3_5", {}),
        ("lfm2", {}),
        ("mixtral", {"dtype": "int4"}),
        ("llama", {"n_ctx": "auto", "n_parallel": 2}),
    ],
)
def test_a_plan_is_the_memory_of_the_engine(
    family: str, options: dict[str, Any], tmp_path: Path
) -> None:
    # The rows of Llama's matrices are whole tiles; small matrices of the others are padded.
    sizes = {"hidden_size": 256, "intermediate_size": 512, "num_attention_heads": 8}
    sizes = {**sizes, "head_dim": 32} if family == "llama" else {}
    model = open_model(make_checkpoint(tmp_path, family, tokenizer=False, **sizes))
    config = EngineConfig(n_threads=1, **options)
    planned = Engine.planned(model, config)
    engine = Engine.from_loaded(model, config)
    made = engine.description()
    for fact in ("kv_bytes", "n_ctx", "kv_windows", "kv_states", "cpu_target", "kv_dtype"):
        assert planned[fact] == made[fact], fact
    excess = planned["weight_bytes"] / made["weight_bytes"]
    assert 0.99 < excess < 1.01 if family == "llama" else 0.8 < excess < 1.5  # routers are f32
    assert planned["dtypes"].split(", ")[0] == made["dtype"]
    assert planned["available_bytes"] > 0
    engine.close()


def test_more_than_the_free_memory_is_refused_unless_the_caller_insists(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = pybatcher.engine._plan

    def in_a_cgroup(arguments: dict[str, Any]) -> dict[str, Any]:
        planned = plan(arguments)
        return {**planned, "available_bytes": planned["weight_bytes"] + 4 * 2**20}

    monkeypatch.setattr(pybatcher.engine, "_plan", in_a_cgroup)
    with pytest.raises(errors.EngineError, match=r"KV of n_ctx=1048576 .*overcommit") as refused:
        Engine.load(checkpoint, n_ctx=2**20, n_threads=1)
    assert str(checkpoint) in str(refused.value)
    assert refused.value.field == "n_ctx"
    Engine.load(checkpoint, n_ctx=2**14, n_threads=1, overcommit=True).close()


@pytest.mark.parametrize(("n_ctx", "n_parallel"), [(8192, 32), (4096, 16), (2048, 8), (64, 8)])
def test_by_itself_each_sequence_has_a_part_of_the_context(
    checkpoint: Path, n_ctx: int, n_parallel: int
) -> None:
    model, config = open_model(checkpoint), EngineConfig(n_ctx=n_ctx, n_threads=1)
    assert Engine.planned(model, config)["n_parallel"] == n_parallel
    assert Engine.planned(model, config, 16)["n_parallel"] == n_parallel
    engine = Engine.from_loaded(model, config, n_prefixes=3)
    assert engine.n_parallel == n_parallel + 3
    engine.close()


def test_states_of_many_sequences_are_not_made_by_themselves(tmp_path: Path) -> None:
    large = {"linear_key_head_dim": 64, "linear_value_head_dim": 64}
    model = open_model(make_checkpoint(tmp_path, "qwen3_5", tokenizer=False, **large))

    def size(**options: Any) -> int:
        planned = Engine.planned(model, EngineConfig(n_ctx=16384, **options), 16)
        return sum(planned[f"{part}_bytes"] for part in ("weight", "kv", "buffer"))

    assert size() == size(n_parallel=8) < 0.9 * size(n_parallel=32)


@pytest.mark.parametrize(("available", "n_parallel"), [(1100, 32), (1020, 16), (980, 8), (10, 8)])
def test_as_many_sequences_as_memory_has_room_for(
    available: int, n_parallel: int, checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def windowed(arguments: dict[str, Any]) -> dict[str, Any]:
        sizes = {"weight_bytes": 900, "buffer_bytes": 0, "available_bytes": available}
        return {**sizes, "kv_bytes": 50 + 3 * arguments["n_parallel"], "n_ctx": 8192}

    monkeypatch.setattr(pybatcher.engine, "_plan", windowed)
    model = open_model(checkpoint)
    assert Engine.planned(model, EngineConfig())["n_parallel"] == n_parallel
    if available < 900:
        with pytest.raises(errors.EngineError, match=r"overcommit=True"):
            Engine.from_loaded(model, EngineConfig())


def test_out_of_memory_says_what_to_lower(checkpoint: Path) -> None:
    config = EngineConfig(n_ctx=2**26, n_parallel=1, overcommit=True)
    model = open_model(checkpoint)
    limit = _limit_address_space(2**34)
    try:
        with pytest.raises(errors.EngineError, match="n_ctx"):
            Engine.from_loaded(model, config)
    finally:
        _limit_address_space(limit)


def _limit_address_space(limit: int) -> int:
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (limit, hard))
    return soft


def test_the_checkpoint_is_not_needed_afterwards(tmp_path: Path) -> None:
    make_checkpoint(tmp_path, "llama", tokenizer=False)
    engine = Engine.load(tmp_path, n_ctx=64)
    before = engine.prefill_chunk(engine.seq_new(), ids(9), logits=True)
    weights = tmp_path / "model.safetensors"
    weights.write_bytes(bytes(weights.stat().st_size))
    after = engine.prefill_chunk(engine.seq_new(), ids(9), logits=True)
    np.testing.assert_array_equal(before, after)
    engine.close()


# -- sequences -------------------------------------------------------------------------------


def test_sequence_ids_are_the_lowest_free(engine: Engine) -> None:
    assert [engine.seq_new() for _ in range(4)] == [0, 1, 2, 3]
    before = state(engine)
    with pytest.raises(errors.NoFreeSequenceError, match="n_parallel"):
        engine.seq_new()
    assert state(engine) == before
    engine.seq_remove(1)
    assert engine.seq_new() == 1


def test_copy_shares_and_continues(engine: Engine) -> None:
    source, target = engine.seq_new(), engine.seq_new()
    prompt = ids(40)
    expected = engine.prefill_chunk(source, prompt, logits=True)
    free = engine.kv_free_blocks
    engine.seq_copy(source, target, 35)
    assert engine.kv_free_blocks == free - 1  # 2 blocks shared, 1 copied
    assert engine.seq_length(target) == 35
    assert engine.seq_exclusive_blocks(source) == engine.seq_exclusive_blocks(target) == 1
    computed = engine.statistics()["computed_tokens"]
    np.testing.assert_array_equal(engine.prefill_chunk(target, prompt[35:], logits=True), expected)
    assert engine.statistics()["computed_tokens"] == computed + 5


def test_removing_a_tail(engine: Engine) -> None:
    seq_id = engine.seq_new()
    prompt = ids(50)
    expected = engine.prefill_chunk(seq_id, prompt, logits=True)
    engine.seq_remove(seq_id, 20)
    assert engine.seq_length(seq_id) == 20
    engine.seq_remove(seq_id, 17, 20)
    np.testing.assert_array_equal(engine.prefill_chunk(seq_id, prompt[17:], logits=True), expected)
    engine.seq_remove(seq_id)
    with pytest.raises(errors.InvalidRequestError, match="seq_id"):
        engine.seq_length(seq_id)
    assert engine.kv_free_blocks + engine.kv_cached_blocks == engine.kv_total_blocks


def test_match_finds_what_was_computed(engine: Engine) -> None:
    first = engine.seq_new("tenant")
    prompt = ids(50)
    expected = engine.prefill_chunk(first, prompt, logits=True)
    engine.seq_remove(first)
    assert engine.kv_cached_blocks == 3
    other = engine.seq_new("somebody else")
    assert engine.seq_match(other, prompt) == 0
    again = engine.seq_new("tenant")
    assert engine.seq_match(again, prompt[:33]) == 32
    engine.seq_remove(again)
    again = engine.seq_new("tenant")
    assert engine.seq_match(again, prompt) == 48
    np.testing.assert_array_equal(engine.prefill_chunk(again, prompt[48:], logits=True), expected)


# -- compute ---------------------------------------------------------------------------------


def test_decode_is_one_pass(engine: Engine) -> None:
    logits = []
    for i in range(3):
        seq_id = engine.seq_new()
        assert engine.prefill_chunk(seq_id, ids(10 + i, i)) is None
        logits.append(seq_id)
    passes = engine.statistics()["forward_passes"]
    drawn, rows = engine.decode_batch(logits, [7, 8, 9], logits=True)
    assert engine.statistics()["forward_passes"] == passes + 1
    assert drawn.dtype == np.int32
    assert drawn.shape == (3,)
    assert rows.dtype == np.float32
    assert rows.shape == (3, VOCAB)
    np.testing.assert_array_equal(drawn, rows.argmax(axis=1))
    alone = engine.seq_new()
    np.testing.assert_array_equal(
        engine.prefill_chunk(alone, [*ids(11, 1), 8], logits=True), rows[1]
    )
    assert isinstance(engine.decode_batch(logits, [7, 8, 9]), np.ndarray)


def test_returned_arrays_are_copies(engine: Engine) -> None:
    seq_id = engine.seq_new()
    first = engine.prefill_chunk(seq_id, ids(5), logits=True)
    kept = first.copy()
    engine.prefill_chunk(seq_id, ids(5, 3), logits=True)
    np.testing.assert_array_equal(first, kept)


def test_step_mixes_decode_and_prefill(engine: Engine) -> None:
    decoding, prefilling, silent = (engine.seq_new() for _ in range(3))
    engine.prefill_chunk(decoding, ids(20))
    before = engine.statistics()
    result = engine.step(
        plan((decoding, [9], True), (prefilling, ids(30, 1), True), (silent, ids(5, 2), False))
    )
    assert set(result.sampled) == {decoding, prefilling}
    assert result.failed == {}
    gained = {k: v - before[k] for k, v in engine.statistics().items()}
    assert gained == {
        "forward_passes": 1,
        "computed_tokens": 36,
        "logits_rows": 2,
        "sampled_tokens": 2,
        "proposed_tokens": 0,
        "accepted_tokens": 0,
    }
    alone = engine.seq_new()
    logits = engine.prefill_chunk(alone, ids(30, 1), logits=True)
    assert result.sampled[prefilling] == (SampledToken(int(logits.argmax())),)


def test_step_reports_logprobs(engine: Engine) -> None:
    seq_id, other = engine.seq_new(), engine.seq_new()
    engine.seq_sampling(seq_id, SamplingParams(logprobs=3))
    result = engine.step(plan((seq_id, ids(10), True), (other, ids(10), True)))
    logits = engine.prefill_chunk(engine.seq_new(), ids(10), logits=True).astype(np.float64)
    logprobs = logits - logits.max()
    logprobs -= np.log(np.exp(logprobs).sum())
    (drawn,) = result.sampled[seq_id]
    best = np.argsort(-logprobs, kind="stable")[:3]
    assert drawn.token_id == best[0]
    assert drawn.logprob == pytest.approx(logprobs[best[0]], abs=1e-5)
    assert [token for token, _ in drawn.top_logprobs] == best.tolist()
    assert [p for _, p in drawn.top_logprobs] == pytest.approx(logprobs[best].tolist(), abs=1e-5)
    assert result.sampled[other] == (SampledToken(drawn.token_id),)


@pytest.mark.parametrize("pooling", ["mean", "last"])
def test_embeddings(engine: Engine, checkpoint: Path, pooling: str) -> None:
    import torch
    from transformers import AutoModel
    from transformers.utils import logging

    logging.disable_progress_bar()
    module = AutoModel.from_pretrained(checkpoint)
    with torch.no_grad():
        states = module(torch.tensor([ids(40)])).last_hidden_state[0].numpy()
    expected = states.mean(axis=0) if pooling == "mean" else states[-1]
    seq_id = engine.seq_new()
    embedding = engine.embed(seq_id, ids(40), pooling)
    assert embedding.shape == (engine.hidden_size,)
    assert np.linalg.norm(embedding - expected) < 1e-4 * np.linalg.norm(expected)
    assert engine.seq_length(seq_id) == 40


@pytest.mark.parametrize(
    "make",
    [
        list,
        tuple,
        np.array,
        lambda x: np.array(x, dtype=np.int32),
        lambda x: np.array(x, dtype=np.uint16),
        lambda x: np.array(x, dtype=np.uint64),
        lambda x: np.array(x, dtype=">i4"),
        lambda x: np.repeat(x, 2)[::2],
        lambda x: np.array(x[::-1])[::-1],
        lambda x: [np.int64(i) for i in x],
    ],
)
def test_token_containers(engine: Engine, make: Callable[[list[int]], Any]) -> None:
    expected = engine.prefill_chunk(engine.seq_new(), ids(20), logits=True)
    logits = engine.prefill_chunk(engine.seq_new(), make(ids(20)), logits=True)
    np.testing.assert_array_equal(logits, expected)
