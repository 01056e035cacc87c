"""Weights in blocks on an emulated GPU: their numbers, the same bits in any chunks, their size.

The oracle is the CPU with the same blocks as f32, which it has bit for bit as `gguf` has them, and
how far from it the same numbers are as bf16.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from block_models import in_blocks
from emulated_engine import BLOCK, VOCAB, Floats, load_engine, tokens_of
from gguf_files import SUPER_BLOCK_SHAPE

from pybatcher.engine import Engine
from pybatcher.loading import LoadedModel, open_model
from pybatcher.loading.checkpoints.blocks import ENGINE_BLOCKS
from pybatcher.params.config import EngineConfig
from pybatcher.testing.checkpoints import make_checkpoint

PROMPT = tokens_of(37, 1)
WIDENED = {"q5_0": 22, "iq4_nl": 18}  # to int8; bytes of a group
NATIVE = [dtype for dtype in ENGINE_BLOCKS if dtype not in ("int8", "int4", "q6_k", *WIDENED)]
PADDING = {"q3_k": 2}  # bytes of a super-block that the kernels read beside it


def q4_k_m(name: str) -> str:
    """Types as llama.cpp mixes them: in layer 0, q and k are another product than v."""
    finer = ("token_embedding", "head.weight", "layers.0.v.weight", "down.weight")
    return "q6_k" if name.endswith(finer) else "q4_k"


def every_dtype(name: str) -> str:
    """Types side by side: in each stack of matrices too."""
    part = name.removesuffix(".weight").split(".")[-1]
    return {
        "token_embedding": "bf16",
        "q": "q5_k",
        "k": "q5_0",
        "v": "q6_k",
        "o": "iq4_nl",
        "gate": "q2_k",
        "up": "mxfp4",
        "down": "int4_zp",
        "head": "q4_k",
    }[part]


def always(dtype: str) -> Callable[[str], str]:
    return lambda _: dtype


FORMATS = {
    "q4_k_m": q4_k_m,
    "every dtype": every_dtype,
    **{dtype: always(dtype) for dtype in NATIVE},
}


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    return make_checkpoint(folder, "llama", tokenizer=False, vocab_size=VOCAB, **SUPER_BLOCK_SHAPE)


@pytest.fixture(scope="module", params=FORMATS)
def model(request: pytest.FixtureRequest, path: Path) -> LoadedModel:
    return in_blocks(open_model(path), FORMATS[request.param])


def engine_of(model: LoadedModel, device: str = "cuda", **options: Any) -> Engine:
    sizes: dict[str, Any] = {"n_ctx": 256, "n_parallel": 4, "n_threads": 1, "block_size": BLOCK}
    config = EngineConfig(device=device, kv_dtype="f32", **{**sizes, **options})
    with warnings.catch_warnings():
        kept = "dtype" not in options
        warnings.filterwarnings("error" if kept else "ignore", ".*matrices are rounded")
        return Engine.from_loaded(model, config)


def prefilled(engine: Engine, *chunks: int) -> tuple[int, Floats]:
    """A sequence of PROMPT, computed in chunks, and the logits after it."""
    seq_id = engine.seq_new(str(chunks))  # a name space of its own: nothing is shared
    first = 0
    for size in chunks:
        row = engine.prefill_chunk(seq_id, PROMPT[first : first + size], logits=True)
        first += size
    assert first == len(PROMPT)
    return seq_id, row


def logits_of(engine: Engine) -> Floats:
    """The logits after PROMPT, and after each of three tokens more."""
    seq_id, row = prefilled(engine, len(PROMPT))
    rows = [row, *(engine.prefill_chunk(seq_id, [t], logits=True) for t in tokens_of(3, 2))]
    engine.close()
    return np.array(rows)


def test_numbers_are_those_of_the_blocks(model: LoadedModel) -> None:
    """They are as far from the exact ones as those of the same numbers as bf16 are."""
    engine = engine_of(model)
    kept = {t.dtype for t in model.tensors.values() if t.array.ndim == 2}
    expected_dtypes = {"int8" if dtype in WIDENED else dtype for dtype in kept}
    assert set(str(engine.description()["dtypes"]).split(", ")) == expected_dtypes
    exact = logits_of(engine_of(model, "cpu", dtype="f32"))
    made, in_bf16 = logits_of(engine), logits_of(engine_of(model, dtype="bf16"))
    error, allowed = (np.linalg.norm(rows - exact, axis=1) for rows in (made, in_bf16))
    assert error.max() < 1.25 * allowed.max()
    assert error.min() > 0  # other products than those of f32


def test_chunks_and_company_change_no_bit(model: LoadedModel) -> None:
    engine = engine_of(model)
    alone, expected = prefilled(engine, len(PROMPT))
    for chunks in ((17, 9, 11), (1, 36)):
        seq_id, row = prefilled(engine, *chunks)
        np.testing.assert_array_equal(row, expected)
        _, rows = engine.decode_batch([alone, seq_id], [7, 7], logits=True)
        np.testing.assert_array_equal(rows[1], engine_row(engine, chunks))
        engine.seq_remove(seq_id)
        engine.seq_remove(alone, len(PROMPT))
    engine.close()


def engine_row(engine: Engine, chunks: tuple[int, ...]) -> Floats:
    """The logits after token 7 behind the prompt, of a sequence that is computed alone."""
    seq_id, _ = prefilled(engine, *reversed(chunks))
    row = engine.prefill_chunk(seq_id, [7], logits=True)
    engine.seq_remove(seq_id)
    return row


def test_weights_take_what_their_blocks_take(model: LoadedModel) -> None:
    """But for padding: at most 14 bytes a row, and 256 between the parts of a matrix.

    Some become int8: 34 bytes a group.
    """
    engine = engine_of(model)
    in_file = sum(
        tensor.n_bytes // WIDENED[tensor.dtype] * 34 if tensor.dtype in WIDENED else tensor.n_bytes
        for tensor in model.tensors.values()
    )
    matrices = [tensor for tensor in model.tensors.values() if tensor.array.ndim == 2]
    padding = sum(14 * tensor.shape[0] + 256 for tensor in matrices)
    padding += sum(
        PADDING.get(tensor.dtype, 0) * math.prod(tensor.shape) // 256 for tensor in matrices
    )
    weight_bytes = int(engine.description()["weight_bytes"])
    engine.close()
    assert in_file <= weight_bytes <= in_file + padding


def test_mixtures_are_made_while_loading_and_kept(path: Path, tmp_path: Path) -> None:
    rows = []
    for state in ("written", "found"):
        engine = load_engine(path, dtype="q4_k_m", weights_cache=str(tmp_path))
        description = engine.description()
        assert description["dtypes"] == "q4_k, q6_k"
        assert (description["weights_cache"] in ("mapped", "copied")) == (state == "found")
        rows.append(prefilled(engine, len(PROMPT))[1])
        engine.close()
    np.testing.assert_array_equal(*rows)
