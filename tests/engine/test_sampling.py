"""Sampling of the engine, against a plain numpy reference on the same logits."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from pybatcher import errors
from pybatcher.engine import Engine
from pybatcher.params import SamplingParams
from pybatcher.scheduling.plan import StepEntry, StepPlan
from pybatcher.testing.checkpoints import make_checkpoint

VOCAB = 3000  # more than the sampler ranks at once
MASK = 2**32 - 1


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model")
    return make_checkpoint(path, "qwen3", tokenizer=False, vocab_size=VOCAB, hidden_size=36)


@pytest.fixture
def engine(checkpoint: Path) -> Iterator[Engine]:
    engine = Engine.load(checkpoint, n_ctx=16384, n_parallel=256)
    yield engine
    engine.check_integrity()
    engine.close()


# -- the reference ---------------------------------------------------------------------------


def philox4x32(counter: list[int], key: list[int]) -> list[int]:
    """Ten rounds of Philox, from the paper (Salmon et al. 2011, section 4.2)."""
    for _ in range(10):
        high0, low0 = divmod(0xD2511F53 * counter[0], 2**32)
        high1, low1 = divmod(0xCD9E8D57 * counter[2], 2**32)
        counter = [high1 ^ counter[1] ^ key[0], low1, high0 ^ counter[3] ^ key[1], low0]
        key = [(key[0] + 0x9E3779B9) & MASK, (key[1] + 0xBB67AE85) & MASK]
    return counter


def uniform(seed: int, position: int) -> float:
    words = philox4x32([position & MASK, position >> 32, 0, 0], [seed & MASK, seed >> 32])
    return float(((words[0] << 32) | words[1]) >> 11) * 2.0**-53


def penalised(
    logits: NDArray[np.float32],
    params: SamplingParams,
    tokens: Sequence[int],
    n_prompt: int,
    stop_token_ids: Sequence[int],
) -> NDArray[np.float32]:
    scores = logits.copy()
    for token, bias in (params.logit_bias or {}).items():
        scores[token] += np.float32(bias)
    seen = np.unique(np.array(tokens, dtype=np.int64))
    factor = np.float32(params.repetition_penalty)
    scores[seen] = np.where(scores[seen] > 0, scores[seen] / factor, scores[seen] * factor)
    for token, count in zip(*np.unique(tokens[n_prompt:], return_counts=True), strict=True):
        penalty = params.presence_penalty + params.frequency_penalty * int(count)
        scores[int(token)] -= np.float32(penalty)
    if len(tokens) - n_prompt < params.min_tokens:
        scores[list(stop_token_ids)] = -np.inf
    return scores


def kept(scores: NDArray[np.float32], params: SamplingParams) -> tuple[Any, Any]:
    """Return the tokens that may be sampled, most likely first, and their weights."""
    order = np.lexsort((np.arange(len(scores)), -scores))
    weights = np.exp((scores[order].astype(np.float64) - scores.max()) / params.temperature)
    if params.top_k:
        order, weights = order[: params.top_k], weights[: params.top_k]
    before = np.concatenate([[0.0], np.cumsum(weights)[:-1]])
    stays = weights >= params.min_p
    if params.top_p < 1.0:
        stays &= before < params.top_p * weights.sum()
    return order[stays], weights[stays]


def reference(scores: NDArray[np.float32], params: SamplingParams, u: float) -> int:
    if params.temperature == 0.0:
        return int(scores.argmax())
    order, weights = kept(scores, params)
    return int(order[np.searchsorted(np.cumsum(weights), u * weights.sum(), side="right")])


def random_params(rng: np.random.Generator, tokens: list[int]) -> SamplingParams:
    def maybe(value: Any, default: Any) -> Any:
        return value if rng.random() < 0.5 else default

    biased = [*rng.integers(0, VOCAB, 20), *tokens]  # what occurs too: the order then matters
    bias = {int(t): float(rng.normal(0, 3)) for t in biased}
    return SamplingParams(
        temperature=maybe(float(rng.uniform(0.05, 3)), float(rng.choice([0.0, 0.7, 1.0]))),
        top_k=maybe(int(rng.choice([1, 2, 40, 100, 2999, 5000])), 0),
        top_p=maybe(float(rng.uniform(0.05, 1)), 1.0),
        min_p=maybe(float(rng.choice([0.001, 0.05, 0.5, 1.0])), 0.0),
        repetition_penalty=maybe(float(rng.uniform(0.5, 2)), 1.0),
        presence_penalty=maybe(float(rng.normal()), 0.0),
        frequency_penalty=maybe(float(rng.normal()), 0.0),
        logit_bias=maybe(bias, None),
        min_tokens=maybe(4, 0),
        max_tokens=100,
    )


def test_draws_equal_the_reference(engine: Engine) -> None:
    rng = np.random.default_rng(11)
    n_equal = n_random = 0
    for _ in range(12):
        sequences = []
        for _ in range(int(rng.integers(2, 17))):
            tokens = rng.integers(0, VOCAB, rng.integers(4, 40)).tolist()
            tokens[1] = tokens[2]  # something that occurs twice
            params, seed = random_params(rng, tokens), int(rng.integers(0, 2**63)) * 2
            n_prompt = int(rng.integers(1, len(tokens)))
            stops = rng.integers(0, VOCAB, 5).tolist()
            seq_id = engine.seq_new(str(seed))
            engine.seq_sampling(seq_id, params, seed=seed, n_prompt=n_prompt, stop_token_ids=stops)
            engine.prefill_chunk(seq_id, tokens[:-1])
            sequences.append((seq_id, tokens, params, seed, n_prompt, stops))
        for _ in range(6):
            ids = [sequence[0] for sequence in sequences]
            last = [sequence[1][-1] for sequence in sequences]
            drawn, logits = engine.decode_batch(ids, last, logits=True)
            for token, row, (_, tokens, params, seed, n_prompt, stops) in zip(
                drawn.tolist(), logits, sequences, strict=True
            ):
                scores = penalised(row, params, tokens, n_prompt, stops)
                assert token == reference(scores, params, uniform(seed, len(tokens)))
                n_equal += 1
                n_random += token != int(scores.argmax())
                tokens.append(token)
        for sequence in sequences:
            engine.seq_remove(sequence[0])
    assert n_equal > 300
    assert n_random > 100


def test_the_reference_keeps_what_transformers_keeps() -> None:
    import torch
    from transformers import LogitsProcessorList
    from transformers.generation import logits_process as hf

    rng = np.random.default_rng(5)
    for _ in range(100):
        logits = rng.normal(0, 3, 500).astype(np.float32)
        tokens = rng.integers(0, 500, 30)
        biased = tokens[:10].tolist()
        params = SamplingParams(
            logit_bias=dict.fromkeys(biased, 2.5),
            temperature=float(rng.uniform(0.1, 2)),
            top_k=int(rng.choice([3, 40, 200])),
            top_p=float(rng.uniform(0.1, 0.99)),
            min_p=float(rng.choice([0.001, 0.05, 0.5])),
            repetition_penalty=float(rng.uniform(0.5, 2)),
        )
        chain = LogitsProcessorList(
            [
                hf.SequenceBiasLogitsProcessor([[[token], 2.5] for token in biased]),
                hf.RepetitionPenaltyLogitsProcessor(params.repetition_penalty),
                hf.TemperatureLogitsWarper(params.temperature),
                hf.TopKLogitsWarper(params.top_k),
                hf.TopPLogitsWarper(params.top_p),
                hf.MinPLogitsWarper(params.min_p),
            ]
        )
        theirs = chain(torch.tensor(tokens[None]), torch.tensor(logits[None]))[0].numpy()
        order, weights = kept(penalised(logits, params, tokens.tolist(), 30, ()), params)
        assert sorted(order.tolist()) == np.flatnonzero(np.isfinite(theirs)).tolist()
        probabilities = torch.softmax(torch.tensor(theirs), 0).numpy()
        np.testing.assert_allclose(weights / weights.sum(), probabilities[order], rtol=1e-4)


# -- distribution ----------------------------------------------------------------------------


def chi_square(
    counts: NDArray[np.int64], probabilities: NDArray[np.float64]
) -> tuple[float, float]:
    """Return the statistic, and the value that it exceeds by chance once in 10,000 times."""
    order = np.argsort(-probabilities)
    expected = probabilities[order] * counts.sum()
    n_cells = int((expected >= 8).sum())
    observed = np.append(counts[order][:n_cells], counts[order][n_cells:].sum())
    expected = np.append(expected[:n_cells], expected[n_cells:].sum())
    observed, expected = observed[expected > 0], expected[expected > 0]
    freedom, z = len(expected) - 1, 3.72
    limit = freedom * (1 - 2 / (9 * freedom) + z * math.sqrt(2 / (9 * freedom))) ** 3
    return float(((observed - expected) ** 2 / expected).sum()), limit


@pytest.mark.slow
@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(temperature=1.0),
        SamplingParams(temperature=0.6, top_k=30),
        SamplingParams(temperature=1.3, top_p=0.8, min_p=0.02),
    ],
    ids=["plain", "top_k", "top_p"],
)
def test_draws_follow_the_distribution(engine: Engine, params: SamplingParams) -> None:
    prompt = [(i * 71) % VOCAB for i in range(12)]
    source = engine.seq_new()
    logits = engine.prefill_chunk(source, prompt, logits=True)
    sequences = [engine.seq_new() for _ in range(255)]
    counts = np.zeros(VOCAB, dtype=np.int64)
    for seq_id in sequences:
        engine.seq_copy(source, seq_id, len(prompt) - 1)
    for round_number in range(30):
        for seq_id in sequences:
            engine.seq_sampling(seq_id, params, seed=round_number * 1000 + seq_id)
        drawn = engine.decode_batch(sequences, [prompt[-1]] * len(sequences))
        np.add.at(counts, drawn, 1)
        for seq_id in sequences:
            engine.seq_remove(seq_id, len(prompt) - 1)

    def probabilities(params: SamplingParams) -> NDArray[np.float64]:
        order, weights = kept(logits, params)
        result = np.zeros(VOCAB)
        result[order] = weights / weights.sum()
        return result

    statistic, limit = chi_square(counts, probabilities(params))
    assert statistic < limit
    assert counts[probabilities(params) == 0].sum() == 0
    warmer = SamplingParams(temperature=params.temperature * 1.4, top_k=params.top_k)
    statistic, limit = chi_square(counts, probabilities(warmer))
    assert statistic > limit  # the test tells a distribution from its neighbour


# -- promises --------------------------------------------------------------------------------


def generate(
    engine: Engine, prompt: list[int], n: int, params: SamplingParams | None, **keys: Any
) -> list[int]:
    """Generate n tokens after the prompt, in a new sequence, step by step."""
    seq_id = engine.seq_new()
    engine.seq_sampling(seq_id, params, **keys)
    tokens: list[int] = []
    appended = tuple(prompt)
    for _ in range(n):
        plan = StepPlan((StepEntry(seq_id, appended, True),), 0, len(appended))
        tokens.append(engine.step(plan).sampled[seq_id][0].token_id)
        appended = (tokens[-1],)
    engine.seq_remove(seq_id)
    return tokens


PROMPT = [5, 900, 17, 2500, 64, 9]


def test_a_seed_is_reproducible(engine: Engine) -> None:
    params = SamplingParams(temperature=1.0)
    first = generate(engine, PROMPT, 20, params, seed=2**64 - 1)
    assert generate(engine, PROMPT, 20, params, seed=2**64 - 1) == first
    assert generate(engine, PROMPT, 20, params, seed=2**63 - 1) != first
    assert generate(engine, PROMPT, 20, params, seed=1) != first


def test_a_replay_goes_on_with_the_same_tokens(engine: Engine) -> None:
    """After a preemption the tokens so far are a prompt; all else stays."""
    params = SamplingParams(
        temperature=1.2, frequency_penalty=0.7, repetition_penalty=1.3, min_tokens=12
    )
    keys: dict[str, Any] = {"seed": 5, "n_prompt": len(PROMPT)}
    stops = generate(engine, PROMPT, 20, params, **keys)[8:10]
    keys["stop_token_ids"] = stops
    whole = generate(engine, PROMPT, 20, params, **keys)
    for cut in (1, 7, 15):
        rest = generate(engine, PROMPT + whole[:cut], 20 - cut, params, **keys)
        assert rest == whole[cut:]


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(temperature=2.0, top_k=1),
        SamplingParams(temperature=2.0, top_p=1e-9),
        SamplingParams(temperature=2.0, top_p=0.0, top_k=5),
        SamplingParams(temperature=2.0, min_p=1.0),
        SamplingParams(temperature=1e-6),
        SamplingParams(),
    ],
)
def test_certain_draws_are_greedy(engine: Engine, params: SamplingParams) -> None:
    assert generate(engine, PROMPT, 12, params, seed=3) == generate(engine, PROMPT, 12, None)


def test_min_tokens_puts_the_end_off(engine: Engine) -> None:
    greedy = generate(engine, PROMPT, 10, None)
    keys: dict[str, Any] = {"n_prompt": len(PROMPT), "stop_token_ids": [greedy[0], greedy[3]]}
    tokens = generate(engine, PROMPT, 10, SamplingParams(min_tokens=4), **keys)
    assert not set(tokens[:4]) & {greedy[0], greedy[3]}
    assert generate(engine, PROMPT, 10, SamplingParams(min_tokens=0), **keys) == greedy


def test_a_sequence_that_may_draw_nothing_fails_alone(engine: Engine) -> None:
    stuck, well = engine.seq_new(), engine.seq_new()
    everything = list(range(VOCAB))
    params = SamplingParams(min_tokens=5)
    engine.seq_sampling(stuck, params, n_prompt=len(PROMPT), stop_token_ids=everything)
    plan = StepPlan(
        (StepEntry(stuck, tuple(PROMPT), True), StepEntry(well, tuple(PROMPT), True)), 0, 0
    )
    result = engine.step(plan)
    assert set(result.sampled) == {well}
    assert isinstance(result.failed[stuck], errors.InvalidRequestError)
    assert "forbid every token" in str(result.failed[stuck])
    assert engine.seq_length(stuck) == len(PROMPT)
    with pytest.raises(errors.EngineError, match=f"sequence {stuck}"):
        engine.decode_batch([well, stuck], [1, 1])
    assert engine.seq_length(well) == len(PROMPT)


def test_frequency_penalty_ends_repetition(engine: Engine) -> None:
    biased = {7: 50.0}
    stuck = generate(engine, PROMPT, 8, SamplingParams(logit_bias=biased))
    assert stuck == [7] * 8
    params = SamplingParams(logit_bias=biased, frequency_penalty=20.0)
    assert generate(engine, PROMPT, 8, params, n_prompt=len(PROMPT)).count(7) <= 4


def test_logprobs_are_of_the_model_and_sorted(engine: Engine) -> None:
    seq_id = engine.seq_new()
    params = SamplingParams(temperature=1.5, logprobs=32, logit_bias={11: 100.0})
    engine.seq_sampling(seq_id, params, seed=1)
    plan = StepPlan((StepEntry(seq_id, tuple(PROMPT), True),), 0, 0)
    (sampled,) = engine.step(plan).sampled[seq_id]
    logits = engine.prefill_chunk(engine.seq_new(), PROMPT, logits=True).astype(np.float64)
    logprobs = logits - logits.max() - math.log(np.exp(logits - logits.max()).sum())
    assert sampled.token_id == 11
    assert sampled.logprob == pytest.approx(logprobs[11], abs=1e-5)
    order = np.lexsort((np.arange(VOCAB), -logits))[:32]
    assert [token for token, _ in sampled.top_logprobs] == order.tolist()
    np.testing.assert_allclose([p for _, p in sampled.top_logprobs], logprobs[order], atol=1e-5)


def test_threads_draw_the_same(checkpoint: Path) -> None:
    """Uses enough rows of a vocabulary large enough to be shared by threads."""
    drawn = []
    for n_threads in (1, 2, 3):
        engine = Engine.load(checkpoint, n_threads=n_threads, n_parallel=64)
        for i in range(64):
            params = SamplingParams(temperature=0.8, top_p=0.95, repetition_penalty=1.1, logprobs=2)
            engine.seq_sampling(engine.seq_new(str(i)), params, seed=i)
        tokens: dict[int, tuple[int, ...]] = {i: (i, 2 * i) for i in range(64)}
        for _ in range(4):
            plan = StepPlan(tuple(StepEntry(i, t, True) for i, t in tokens.items()), 0, 0)
            sampled = engine.step(plan).sampled
            assert list(sampled) == list(tokens)
            drawn.append(sampled)
            tokens = {i: (only.token_id,) for i, (only,) in sampled.items()}
        engine.close()
    assert drawn[:4] == drawn[4:8] == drawn[8:]
