from __future__ import annotations

import argparse

import pytest

from bench.common import options


def test_values_are_read_as_what_they_look_like() -> None:
    parsed = options.parse(["n_batch=256", "batch_timeout=0.5", "dtype=int8", "weights_cache=None"])
    assert parsed == {
        "n_batch": 256,
        "batch_timeout": 0.5,
        "dtype": "int8",
        "weights_cache": None,
    }


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("no_such=1", "unknown option 'no_such'"),
        ("n_batch", "has no value"),
        ("n_batch=many", "n_batch is 'many'"),
        ("n_batch=0", "n_batch is 0"),
    ],
)
def test_a_bad_option_is_reported(text: str, said: str) -> None:
    with pytest.raises(SystemExit, match=said):
        options.parse([text])


def test_policies_stand_side_by_side() -> None:
    parser = argparse.ArgumentParser()
    options.add_policy_arguments(parser)
    common = ["--option", "n_batch=128"]
    given = parser.parse_args(
        [*common, "--policy", "", "--policy", "max_prefill_tokens=64,n_batch=256"]
    )
    assert options.policies_from(given) == {
        "defaults": {"n_batch": 128},
        "max_prefill_tokens=64,n_batch=256": {"n_batch": 256, "max_prefill_tokens": 64},
    }
    assert options.policies_from(parser.parse_args(common)) == {"defaults": {"n_batch": 128}}


def test_the_schedulers_part_is_told_apart() -> None:
    engine, scheduler = options.configs_of({"n_ctx": 1024, "n_batch": 64, "n_ubatch": 32})
    assert (engine.n_ctx, engine.n_ubatch, scheduler.n_batch) == (1024, 32, 64)
    assert options.exists("n_ctx")
    assert options.exists("n_batch")
    assert not options.exists("n_bitch")
