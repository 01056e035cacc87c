"""A prompt with two images for Qwen3-VL's text model, in the engine and in transformers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import AutoModelForCausalLM, Qwen3VLTextConfig
from transformers.models.qwen3_vl.modeling_qwen3_vl import Qwen3VLTextModel

from pybatcher.engine import Engine
from pybatcher.loading import open_model
from pybatcher.params.config import EngineConfig
from pybatcher.scheduling.images import FIRST_IMAGE_ID
from pybatcher.scheduling.plan import StepEntry, StepPlan

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


def of_transformers(checkpoint: Path) -> tuple[NDArray[np.float32], list[int]]:
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
