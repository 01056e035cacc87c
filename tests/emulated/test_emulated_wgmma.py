"""Products that are wide enough for wgmma, on an emulated GPU of compute capability 9.0.

A GPU of another one computes them by other kernels, and has to say the same.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from emulated_engine import calls_of
from numpy.typing import NDArray

from pybatcher.engine import Engine
from pybatcher.testing.checkpoints import make_checkpoint

Floats = NDArray[np.float32]

VOCAB = 203
N_PROMPT = 80  # more rows than the kernels for few rows take
WIDE = {
    "intermediate_size": 6144,  # gate and up: 96 tiles, of which 88 are enough for an H200
    "num_hidden_layers": 1,
}
DTYPES = ["bf16", "int8", "int4"]


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wgmma")
    return make_checkpoint(folder, "llama", tokenizer=False, vocab_size=VOCAB, **WIDE)


def load(path: Path, dtype: str, n_ubatch: int = 128) -> Engine:
    sizes: dict[str, Any] = {"n_ctx": 512, "n_parallel": 4, "n_threads": 1, "block_size": 16}
    return Engine.load(path, device="cuda", dtype=dtype, n_ubatch=n_ubatch, **sizes)


def prompt(n: int = N_PROMPT) -> list[int]:
    tokens: list[int] = np.random.default_rng(6).integers(0, VOCAB, n).tolist()
    return tokens


def logits_of(engine: Engine, chunk: int) -> Floats:
    """The logits after the prompt and after one more token, (2, vocab)."""
    seq_id = engine.seq_new(str(chunk))
    for i in range(0, N_PROMPT, chunk):
        last = engine.prefill_chunk(seq_id, prompt()[i : i + chunk], logits=True)
    after = engine.decode_batch([seq_id], [7], logits=True)[1][0]
    return np.stack([last, after])


def test_transformers_says_the_same(path: Path) -> None:
    import torch
    import transformers

    module = transformers.AutoModelForCausalLM.from_pretrained(
        path, attn_implementation="eager", dtype=torch.bfloat16
    ).float()  # the engine's weights, and activations that are not rounded
    with torch.no_grad():
        expected = module(torch.tensor([[*prompt(), 7]])).logits[0, -2:].numpy()
    engine = load(path, "bf16")
    error = np.linalg.norm(logits_of(engine, N_PROMPT) - expected, axis=-1)
    assert (error / np.linalg.norm(expected, axis=-1)).max() < 2e-2
    engine.close()


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_same_bits_under_any_schedule(path: Path, dtype: str) -> None:
    engine = load(path, dtype)
    expected = logits_of(engine, N_PROMPT)
    for chunk in (40, 7):  # 40 rows are wgmma's, 7 are not
        assert (logits_of(engine, chunk) == expected).all(), f"chunks of {chunk}"
    engine.close()


@pytest.mark.emulator
@pytest.mark.parametrize("dtype", DTYPES)
def test_the_same_bits_by_any_kernel(
    path: Path, dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The wide product is wgmma's on 132 multiprocessors; with one of them, every product is."""
    rows: list[Floats] = []
    for variable, value, target, makes_maps in (
        ("PYBATCHER_EMULATED_MULTIPROCESSORS", "132", "sm_90", True),
        ("PYBATCHER_EMULATED_MULTIPROCESSORS", "1", "sm_90", True),
        ("PYBATCHER_CUDA_TMA", "off", "sm_90", False),
        ("PYBATCHER_EMULATED_ARCHITECTURE", "89", "sm_89", False),
    ):
        before = calls_of("cuTensorMapEncodeTiled")
        with monkeypatch.context() as environment:
            environment.setenv("PYBATCHER_EMULATED_MULTIPROCESSORS", "1")
            environment.setenv(variable, value)
            engine = load(path, dtype)
            assert engine.description()["cpu_target"] == target
            rows.append(logits_of(engine, N_PROMPT))
            engine.close()
        assert (rows[-1] == rows[0]).all(), variable
        assert (calls_of("cuTensorMapEncodeTiled") > before) is makes_maps, variable


@pytest.mark.parametrize("dtype", ["int8", "int4"])
def test_rows_for_which_weights_are_expanded_first_have_the_same_bits(
    dtype: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On one multiprocessor every product of 390 rows is one of bf16 weights in scratch memory."""
    monkeypatch.setenv("PYBATCHER_EMULATED_MULTIPROCESSORS", "1")
    made = make_checkpoint(
        tmp_path, "llama", tokenizer=False, vocab_size=VOCAB, num_hidden_layers=1
    )
    engine = load(made, dtype, n_ubatch=400)
    rows: list[Floats] = []
    for chunk in (390, 130):
        seq_id = engine.seq_new(str(chunk))
        for i in range(0, 390, chunk):
            last = engine.prefill_chunk(seq_id, prompt(390)[i : i + chunk], logits=True)
        rows.append(np.array(last))
        engine.seq_remove(seq_id)
    assert (rows[0] == rows[1]).all()
    engine.close()
