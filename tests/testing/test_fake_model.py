"""The numbers of `FakeModel` are functions of all tokens so far, and agree with each other."""

from __future__ import annotations

import pytest

from pybatcher import SamplingParams
from pybatcher.testing.fake_model import FakeModel, FakeSampling

MODEL = FakeModel(97, 4)
TOKENS = [3, 1, 4, 1, 5]


def test_a_draw_is_a_function_of_every_token_before_it() -> None:
    drawn = {MODEL.draw([*TOKENS[:i], 90, *TOKENS[i + 1 :]], FakeSampling()) for i in range(5)}
    assert MODEL.draw(TOKENS, FakeSampling()) == MODEL.draw(tuple(TOKENS), FakeSampling())
    assert len(drawn) == 5


def test_a_seed_matters_where_the_temperature_is_not_0() -> None:
    def drawn(temperature: float) -> set[int]:
        params = SamplingParams(temperature=temperature)
        return {MODEL.draw(TOKENS, FakeSampling(params, seed)).token_id for seed in range(9)}

    assert len(drawn(0.0)) == 1
    assert len(drawn(1.0)) > 3


def test_what_is_drawn_is_the_likeliest_and_told_as_such() -> None:
    drawn = MODEL.draw(TOKENS, FakeSampling(SamplingParams(logprobs=3)))
    logits = MODEL.logits(TOKENS)
    assert logits.index(max(logits)) == drawn.token_id
    assert drawn.logprob == max(logits) == MODEL.logprob(TOKENS, drawn.token_id)
    assert list(drawn.top_logprobs) == sorted(enumerate(logits), key=lambda one: -one[1])[:3]


def test_ends_are_not_drawn_before_min_tokens() -> None:
    likeliest = MODEL.draw(TOKENS, FakeSampling()).token_id
    ends = frozenset({likeliest})
    early = FakeSampling(SamplingParams(min_tokens=2), n_prompt=4, stop_token_ids=ends)
    late = FakeSampling(SamplingParams(min_tokens=1), n_prompt=4, stop_token_ids=ends)
    assert MODEL.draw(TOKENS, early).token_id != likeliest
    assert MODEL.draw(TOKENS, late).token_id == likeliest


def test_pooled_is_a_mean_over_the_tokens_asked_for() -> None:
    each = [MODEL.pooled(TOKENS[: i + 1], i) for i in range(5)]
    mean = [sum(one[k] for one in each[2:]) / 3 for k in range(4)]
    assert list(MODEL.pooled(TOKENS, 2)) == pytest.approx(mean, abs=1e-6)
