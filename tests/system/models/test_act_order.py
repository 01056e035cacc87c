"""Act-order: quantised checkpoints whose groups are spread over the inputs.

The oracle is the same model whose inputs were put in order by hand: the rows of what makes them
are moved, so that the groups lie side by side and there is no order any more.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from act_order_files import (
    ALL,
    CONFIG,
    GROUP,
    HEAD_DIM,
    HEADS,
    HIDDEN,
    INNER,
    LAYERS,
    SHAPE,
    Ints,
    Orders,
    in_heads,
    shuffled,
    write,
)
from engine_helpers import TARGETS
from numpy.typing import NDArray
from quantised_files import Parts, gptq, random_numbers, write_quantised

from pybatcher.engine import Engine
from pybatcher.testing.checkpoints import make_checkpoint

PROMPT = list(range(5, 45))


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("hf") / "llama", "llama", **SHAPE)


def load(path: Path, **options: Any) -> Engine:
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # that anything is rounded
        return Engine.load(path, n_ctx=128, n_parallel=2, n_threads=2, **options)


def answer(path: Path, **options: Any) -> tuple[NDArray[Any], list[int]]:
    """Return the logits after PROMPT, and the tokens that follow it."""
    engine = load(path, **options)
    seq_id = engine.seq_new()
    logits = engine.prefill_chunk(seq_id, PROMPT, logits=True)
    tokens = [int(logits.argmax())]
    for _ in range(20):
        tokens.append(int(engine.decode_batch([seq_id], [tokens[-1]])[0]))
    engine.close()
    return np.array(logits), tokens


def test_what_comes_in_may_be_moved_instead(directory: Path, tmp_path: Path) -> None:
    """Of o and down, whose inputs are outputs of products: the same bits."""
    orders = Orders(attended=in_heads(), inner=shuffled(INNER, 2))
    root = write(directory, tmp_path / "model", orders)
    for options in ({}, {"dtype": "int8"}):
        made, tokens = answer(root / "ordered", **options)
        expected, tokens_expected = answer(root / "moved", **options)
        np.testing.assert_array_equal(made, expected)
        assert tokens == tokens_expected


def test_all_modules_may_have_an_order(directory: Path, tmp_path: Path) -> None:
    """But for how a norm adds up, these are the same numbers."""
    root = write(directory, tmp_path / "model", ALL)
    made, tokens = answer(root / "ordered", kv_dtype="f32")
    expected, tokens_expected = answer(root / "moved", kv_dtype="f32")
    assert np.linalg.norm(made - expected) < 2e-3 * np.linalg.norm(expected)
    assert tokens == tokens_expected


@pytest.mark.parametrize("target", TARGETS)
def test_no_schedule_shows(
    target: str, directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYBATCHER_CPU_TARGET", target)
    path = write(directory, tmp_path / "model", ALL) / "ordered"
    engine = load(path)
    assert engine.description()["cpu_target"] == target
    expected = rows_of(engine, (1,) * len(PROMPT))
    for chunks in ((len(PROMPT),), (17, 20, 3), (1, 39)):
        np.testing.assert_array_equal(rows_of(engine, chunks), expected)
    engine.close()


def rows_of(engine: Engine, chunks: tuple[int, ...]) -> NDArray[Any]:
    """Return the logits at the end of the prompt, computed in chunks beside another sequence."""
    others, seq_id = engine.seq_new(), engine.seq_new()
    engine.prefill_chunk(others, PROMPT[::-1])
    first = 0
    for size in chunks:
        row = engine.prefill_chunk(seq_id, PROMPT[first : first + size], logits=True)
        first += size
    engine.decode_batch([others, seq_id], [7, 8])
    more = engine.prefill_chunk(seq_id, [9], logits=True)
    engine.seq_remove(others)
    engine.seq_remove(seq_id)
    return np.array([row, more])


def test_an_order_takes_four_bytes_an_input(directory: Path, tmp_path: Path) -> None:
    """Once for those that share it: q, k and v; gate and up."""
    root = write(directory, tmp_path / "model", ALL)
    sizes = []
    for kind in ("ordered", "moved"):
        engine = load(root / kind)
        sizes.append(engine.description()["weight_bytes"])
        engine.close()
    n_inputs = 2 * HIDDEN + HEADS * HEAD_DIM + INNER
    assert sizes[0] - sizes[1] == 4 * n_inputs * LAYERS


def test_the_cache_keeps_orders_apart(directory: Path, tmp_path: Path) -> None:
    path = write(directory, tmp_path / "model", ALL) / "ordered"
    expected = answer(path)
    cache = str(tmp_path / "cache")
    for _ in range(2):
        made = answer(path, weights_cache=cache)
        np.testing.assert_array_equal(made[0], expected[0])
        assert made[1] == expected[1]
    assert len(list((tmp_path / "cache").iterdir())) == 1


def test_experts_are_rounded_with_a_warning(tmp_path: Path) -> None:
    shape = {**SHAPE, "moe_intermediate_size": 64, "num_experts": 4, "mlp_only_layers": []}
    directory = make_checkpoint(tmp_path / "moe", "qwen3_moe", **shape)

    def make(rng: np.random.Generator, shape: tuple[int, int]) -> tuple[Parts, NDArray[Any]]:
        numbers = random_numbers(rng, shape, GROUP, symmetric=False, ordered=shape[0] > 4)
        return gptq(numbers), numbers.values()

    root = write_quantised(directory, tmp_path / "model", CONFIG, make)
    with pytest.warns(UserWarning, match=r"rounded to int8: 2[46] of GPTQ"):
        engine = Engine.load(root / "quantised", n_ctx=64, n_threads=1)
    assert engine.description()["dtypes"].startswith("int8, int4_zp")
    engine.close()


@pytest.mark.parametrize(
    ("damage", "dtype"),
    [
        (lambda groups: groups[::-1].copy(), "int4_zp"),
        (lambda groups: np.zeros_like(groups), "int4_zp"),
        (lambda groups: np.roll(groups, 5), "int4_zp"),
        (lambda groups: np.where(np.arange(len(groups)) == 3, 1, groups), "int8"),
    ],
    ids=["backwards", "one group", "rolled", "an input too many"],
)
def test_odd_groups_keep_their_numbers_or_are_rounded(
    damage: Callable[[Ints], Ints], dtype: str, directory: Path, tmp_path: Path
) -> None:
    def make(rng: np.random.Generator, shape: tuple[int, int]) -> tuple[Parts, NDArray[Any]]:
        numbers = random_numbers(rng, shape, GROUP, symmetric=False)
        numbers = replace(numbers, group_of=damage(numbers.group_of))
        return gptq(numbers), numbers.values()

    root = write_quantised(directory, tmp_path / "model", CONFIG, make)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        engine = Engine.load(root / "quantised", n_ctx=64, n_threads=1)
    assert engine.description()["dtype"] == dtype
    assert bool(caught) == (dtype == "int8")
    engine.close()
