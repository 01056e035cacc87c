"""Rows of images in the engine: the model that transformers computes, in any schedule."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from engine_helpers import TARGETS
from image_rows import (
    COLUMNS,
    IDS,
    OPTIONS,
    entry,
    generate,
    load,
    of_transformers,
    positions,
    rows_of_images,
    step,
)
from numpy.typing import NDArray

from pybatcher.engine import Engine
from pybatcher.errors import InvalidRequestError
from pybatcher.scheduling.plan import StepEntry, StepPlan
from pybatcher.testing.checkpoints import make_checkpoint


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("images") / "qwen3", "qwen3")


@pytest.fixture(scope="module")
def expected(checkpoint: Path) -> tuple[NDArray[np.float32], list[int]]:
    return of_transformers(checkpoint)


@pytest.mark.parametrize("chunk", [1, 7, 64])
def test_tokens_are_those_of_transformers(
    chunk: int, checkpoint: Path, expected: tuple[NDArray[np.float32], list[int]]
) -> None:
    engine = load(checkpoint)
    assert engine.image_columns == COLUMNS
    assert generate(engine, chunk) == expected[1]
    engine.close()


@pytest.mark.parametrize("target", TARGETS)
def test_logprobs_are_those_of_transformers(
    target: str,
    checkpoint: Path,
    expected: tuple[NDArray[np.float32], list[int]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PYBATCHER_CPU_TARGET", target)
    engine = load(checkpoint)
    logits, output = expected
    logprobs = logits - np.log(np.exp(logits.astype(np.float64)).sum(axis=1, keepdims=True))
    tokens = (*IDS.tolist(), *output[:-1])
    found = []
    seq_id = engine.seq_new()
    engine.seq_positions(seq_id, positions())
    for begin in range(0, len(tokens), 16):
        end = min(begin + 16, len(tokens))
        one = entry(seq_id, begin, min(end, len(IDS)), sample=False)
        first = max(begin, len(IDS) - 1)
        one = one._replace(
            tokens=tokens[begin:end],
            targets=tuple(output[first - len(IDS) + 1 : max(end - len(IDS) + 1, 0)]),
        )
        made = StepPlan((one,), decode_rows=0, prefill_rows=len(one.tokens))
        found += engine.step(made).logprobs.get(seq_id, ())
    wanted = [row[token] for row, token in zip(logprobs, output, strict=True)]
    np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-4)
    engine.close()


def test_the_same_bits_in_company_and_after_a_cached_prefix(checkpoint: Path) -> None:
    engine = load(checkpoint, n_threads=2)
    alone = generate(engine, 64)
    first = engine.seq_new()
    engine.seq_positions(first, positions())
    assert engine.seq_match(first, IDS.tolist()) == len(IDS) // 16 * 16
    found = [step(engine, entry(first, len(IDS) // 16 * 16, len(IDS), sample=True))[first]]
    others = [engine.seq_new() for _ in range(3)]
    for n in range(12):
        company = [StepEntry(seq_id, (n + seq_id, 30 + n), False) for seq_id in others]
        found.append(step(engine, *company, StepEntry(first, (found[-1],), True))[first])
    assert found == alone
    engine.close()


def test_another_image_is_another_prefix(checkpoint: Path) -> None:
    engine = load(checkpoint)
    generate(engine, 64, n_more=0)
    other = IDS.copy()
    other[29:34] += 100
    seq_id = engine.seq_new()
    assert engine.seq_match(seq_id, other.tolist()) == 16  # the second block has the second image
    engine.close()


def test_penalties_pass_over_images(checkpoint: Path) -> None:
    """An id of an image is outside of the counts by token."""
    engine = load(checkpoint)
    seq_id = engine.seq_new()
    engine.seq_positions(seq_id, positions())
    engine.set_sampling(seq_id, repetition_penalty=1.3, presence_penalty=0.5, frequency_penalty=0.5)
    step(engine, entry(seq_id, 0, len(IDS), sample=True))
    engine.close()


BAD_ENTRIES: dict[str, tuple[Any, str]] = {
    "no tuple": ([(3, rows_of_images()[0])], "images is a list"),
    "no pair": (((3,),), "images has a tuple"),
    "no array": (((3, [[1.0] * COLUMNS]),), "rows that are a list"),
    "float64": (((3, rows_of_images()[0].astype(np.float64)),), "float32"),
    "columns": (((3, rows_of_images()[0][:, :48].copy()),), "144 columns"),
    "offset": (((2, rows_of_images()[0]), (29, rows_of_images()[1])), r"tokens\[2\]"),
    "no whole offset": (((3.0, rows_of_images()[0]),), "images is 3.0"),
    "a missing image": (((3, rows_of_images()[0]),), r"tokens\[29\]"),
    "too many rows": (((3, np.zeros((99, COLUMNS), np.float32)),), "99 rows from token 3"),
    "no rows": (((3, np.zeros((0, COLUMNS), np.float32)),), "0 rows from token 3"),
    "overlap": (((3, rows_of_images()[0]), (4, rows_of_images()[0])), "24 rows from token 4"),
    "none": ((), r"tokens\[3\] is 16777216"),
}


@pytest.mark.parametrize("name", BAD_ENTRIES)
def test_a_bad_entry(name: str, checkpoint: Path) -> None:
    images, message = BAD_ENTRIES[name]
    engine = load(checkpoint)
    seq_id = engine.seq_new()
    bad = StepEntry(seq_id, tuple(IDS.tolist()), True, images=images)
    with pytest.raises(InvalidRequestError, match=message):
        step(engine, bad)
    assert engine.seq_length(seq_id) == 0
    engine.check_integrity()
    engine.close()


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ([[0, 0, 0]], "positions is a list"),
        (np.zeros(3, np.int32), "1 dimensions"),
        (np.zeros((4, 2), np.int32), "2 columns"),
        (np.zeros((4, 3), np.float32), "integer"),
        (np.full((4, 3), -1), r"positions\[0\] is -1"),
        (np.full((4, 3), 512), "512"),
        (np.full((4, 3), 4), "up to 4 in 4 rows"),
    ],
)
def test_bad_positions(bad: Any, message: str, checkpoint: Path) -> None:
    engine = load(checkpoint)
    seq_id = engine.seq_new()
    with pytest.raises(InvalidRequestError, match=message):
        engine.seq_positions(seq_id, bad)
    engine.close()


def test_a_model_without_images_takes_none(checkpoint: Path) -> None:
    engine = Engine.load(checkpoint, **OPTIONS)
    assert engine.image_columns == 0
    seq_id = engine.seq_new()
    with pytest.raises(InvalidRequestError, match="one position a row"):
        engine.seq_positions(seq_id, positions())
    with pytest.raises(InvalidRequestError, match="16777216"):
        engine.seq_match(seq_id, IDS.tolist())
    with pytest.raises(InvalidRequestError):
        step(engine, entry(seq_id, 0, len(IDS), sample=True))
    engine.close()
