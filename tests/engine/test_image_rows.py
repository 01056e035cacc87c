"""Rows of images in the engine: the model that transformers computes, in any schedule."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from engine_helpers import TARGETS
from numpy.typing import NDArray
from transformers import AutoModelForCausalLM, Qwen3VLTextConfig
from transformers.models.qwen3_vl.modeling_qwen3_vl import Qwen3VLTextModel

from pybatcher.engine import Engine
from pybatcher.errors import InvalidRequestError
from pybatcher.loading import open_model
from pybatcher.params.config import EngineConfig
from pybatcher.scheduling.images import FIRST_IMAGE_ID
from pybatcher.scheduling.plan import StepEntry, StepPlan
from pybatcher.testing.checkpoints import make_checkpoint

SECTIONS = [4, 3, 3]
N_DEEPSTACK = 2
HIDDEN = 48
COLUMNS = HIDDEN * (1 + N_DEEPSTACK)
OPTIONS: dict[str, Any] = {
    "dtype": "f32",
    "n_ctx": 512,
    "n_parallel": 6,
    "n_ubatch": 16,
    "block_size": 16,
    "weights_cache": "off",
}
GRIDS = ((4, 6), (1, 5))  # of two images, in tokens
PROMPT = [5, 9, 300, *[0] * 24, 17, 18, *[0] * 5, 44, 45, 46]
RUNS = ((3, 24), (29, 5))
IDS = np.array(PROMPT)
for _first, (_start, _n) in zip((FIRST_IMAGE_ID, FIRST_IMAGE_ID + 24), RUNS, strict=True):
    IDS[_start : _start + _n] = np.arange(_first, _first + _n)


def positions() -> NDArray[np.int32]:
    """Return time, height and width of each token, as Qwen3-VL counts them: (tokens, 3)."""
    found: list[tuple[int, int, int]] = []
    begin = 0
    for (start, n), (height, width) in zip(RUNS, GRIDS, strict=True):
        at = max(map(max, found), default=-1) + 1
        found += [(at + i,) * 3 for i in range(start - begin)]
        at = max(map(max, found)) + 1
        found += [(at, at + i // width, at + i % width) for i in range(height * width)]
        begin = start + n
    at = max(map(max, found)) + 1
    found += [(at + i,) * 3 for i in range(len(PROMPT) - begin)]
    return np.array(found, np.int32)


def rows_of_images() -> list[NDArray[np.float32]]:
    random = np.random.default_rng(7)
    return [random.standard_normal((n, COLUMNS)).astype(np.float32) for _, n in RUNS]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("images") / "qwen3", "qwen3")


def load(checkpoint: Path, **options: Any) -> Engine:
    model = open_model(checkpoint)
    (rope,) = model.config.ropes
    axes = tuple(i % 3 if i % 3 and i < 3 * SECTIONS[i % 3] else 0 for i in range(10))
    config = replace(
        model.config,
        ropes=(replace(rope, axes=axes),),
        takes_images=True,
        deepstack_layers=N_DEEPSTACK,
    )
    return Engine.from_loaded(replace(model, config=config), EngineConfig(**OPTIONS | options))


def entry(seq_id: int, begin: int, end: int, *, sample: bool) -> StepEntry:
    images = []
    for (start, n), rows in zip(RUNS, rows_of_images(), strict=True):
        low, high = max(begin, start), min(end, start + n)
        if low < high:
            images.append((low - begin, rows[low - start : high - start]))
    return StepEntry(
        seq_id, tuple(IDS[begin:end].tolist()), sample, images=tuple(images), targets=()
    )


def step(engine: Engine, *entries: StepEntry) -> dict[int, int]:
    made = StepPlan(entries, decode_rows=0, prefill_rows=sum(len(e.tokens) for e in entries))
    result = engine.step(made)
    assert not result.failed
    return {seq_id: tokens[0].token_id for seq_id, tokens in result.sampled.items()}


def generate(engine: Engine, chunk: int, n_more: int = 12) -> list[int]:
    seq_id = engine.seq_new()
    engine.seq_positions(seq_id, positions())
    for begin in range(0, len(IDS), chunk):
        end = min(begin + chunk, len(IDS))
        sampled = step(engine, entry(seq_id, begin, end, sample=end == len(IDS)))
    output = [sampled[seq_id]]
    for _ in range(n_more):
        output.append(step(engine, StepEntry(seq_id, (output[-1],), True))[seq_id])
    engine.seq_remove(seq_id)
    return output


@pytest.fixture(scope="module")
def expected(checkpoint: Path) -> tuple[NDArray[np.float32], list[int]]:
    """Return transformers' logits after the prompt and each of 12 greedy tokens, and the tokens."""
    text = AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32)
    fields = text.config.to_dict()
    rope = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": SECTIONS}
    config = Qwen3VLTextConfig(
        **{name: fields[name] for name in fields if name not in ("model_type", "rope_parameters")},
        rope_parameters=fields["rope_parameters"] | rope,
    )
    config.rope_parameters["rope_theta"] = fields["rope_parameters"]["rope_theta"]
    model = Qwen3VLTextModel(config).eval()
    model.load_state_dict(text.model.state_dict())
    at = positions()
    output: list[int] = []
    logits: list[NDArray[np.float32]] = []
    images = torch.from_numpy(np.concatenate(rows_of_images()))
    deepstack = [images[:, HIDDEN * (i + 1) : HIDDEN * (i + 2)] for i in range(N_DEEPSTACK)]
    with torch.no_grad():
        for _ in range(13):
            tokens = torch.tensor([PROMPT + output])
            x = model.embed_tokens(tokens)
            mask = torch.zeros_like(tokens, dtype=torch.bool)
            for start, n in RUNS:
                mask[:, start : start + n] = True
            x[mask] = images[:, :HIDDEN]
            more = at.max() + 1 + np.arange(len(output))
            ids = np.concatenate([at, np.repeat(more[:, None], 3, axis=1)]).T
            hidden = model(
                inputs_embeds=x,
                position_ids=torch.from_numpy(ids[:, None].astype(np.int64)),
                visual_pos_masks=mask,
                deepstack_visual_embeds=deepstack,
                use_cache=False,
            ).last_hidden_state
            logits.append(text.lm_head(hidden[0, -1]).numpy())
            output.append(int(logits[-1].argmax()))
    return np.array(logits), output


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
