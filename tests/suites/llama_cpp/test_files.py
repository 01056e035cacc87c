"""GGUF files of every architecture and type, made by llama.cpp's quantiser, beside llama.cpp.

The numbers of a file are those that the gguf package has. Of an f32 file llama.cpp computes what
transformers does, but for its table of GELU. Of a quantised file both engines round what goes into
products: exact results are those of the file's numbers in f32, and ours are no farther from them.
"""

from __future__ import annotations

import math
from pathlib import Path

import gguf
import numpy as np
import pytest
from gguf import GGMLQuantizationType as Kind
from llama_cpp_files import MODELS, LlamaCpp, dequantised, distance, looked_up_gelu

TOKENS = np.random.default_rng(1).integers(4, 384, 60).tolist()
CLOSE = 1e-4  # as in the tests beside transformers
KINDS = (
    *("Q8_0", "Q4_0", "Q5_0", "IQ4_NL", "Q4_K_S", "Q4_K_M", "Q5_K_S", "Q5_K_M", "Q6_K", "BF16"),
    "Q3_K_M",
    "MXFP4_MOE",  # of experts; all else is Q8_0
)
"""llama.cpp's names of types of files whose matrices are computed with without loss."""
OTHERS = ("F16", "Q4_1", "Q5_1", "Q2_K", "IQ3_S", "IQ4_XS", "TQ1_0", "TQ2_0")
NATIVE = {
    *(Kind.F32, Kind.BF16, Kind.Q8_0, Kind.Q4_0, Kind.Q5_0, Kind.IQ4_NL),
    *(Kind.Q3_K, Kind.Q4_K, Kind.Q5_K, Kind.Q6_K, Kind.MXFP4),
}
OF_ODD_ROWS = ("narrow", "gemma4", "gemma4-experts")
"""Models with rows that are no whole super-blocks, of which some types leave Q5_1."""
SPREAD, SPREAD_OF_VECTORS = 0.04, 0.13
"""Of the logarithm of the ratio of two errors of one size: of a model's logits, or of one vector.

It is 1 / sqrt(n) where each error is the norm of n independent numbers: some hundreds of 60 rows of
logits, some sixty of a mean over them. Files on whose groups of 32 both engines round alike gave
0.03 to 0.04, and encoders up to 0.17.
"""


@pytest.mark.parametrize("name", MODELS)
def test_plain_files(name: str, tmp_path: Path, one_thread: None) -> None:
    model = MODELS[name]
    path = model.write(tmp_path / "model", 1)
    llama_cpp = LlamaCpp(tmp_path)
    target = llama_cpp.results(path, TOKENS, model.pooling)
    llama_cpp.run()
    exact = rounded = model.in_transformers(path.parent, TOKENS)
    if model.gelu:
        with looked_up_gelu():
            rounded = model.in_transformers(path.parent, TOKENS)
    assert distance(model.in_engine(path, TOKENS, "f32"), exact) < CLOSE
    # Inputs next to the border of two of the table's entries fall to either side.
    assert distance(np.load(target), rounded) < CLOSE + distance(rounded, exact) / 2


@pytest.mark.parametrize("kind", KINDS)
def test_quantised_files(kind: str, tmp_path: Path) -> None:
    """Each model has numbers of its own, so that the mean is over seeds as well.

    Rounded alike, ours are farther for half of them, on average by three times the mean's spread
    at most, and one by four. Q4_K, Q5_K and Q6_K are multiplied with rows whose scale is of 256
    numbers there, of 32 here, and are a quarter nearer.
    """
    llama_cpp = LlamaCpp(tmp_path)
    made = []
    for seed, (name, model) in enumerate(MODELS.items()):
        if kind == "MXFP4_MOE" and model.experts is None:
            continue
        plain = model.write(tmp_path / name, seed)
        path = llama_cpp.quantise(plain, kind)
        made.append((name, plain, path, llama_cpp.results(path, TOKENS, model.pooling)))
    llama_cpp.run()
    ratios = {}
    for name, plain, path, target in made:
        model = MODELS[name]
        exact = model.in_engine(dequantised(path, plain), TOKENS, "f32")
        np.testing.assert_array_equal(model.in_engine(path, TOKENS, "f32"), exact, err_msg=name)
        if kinds_of(path) <= NATIVE:
            ours = distance(model.in_engine(path, TOKENS), exact)
            ratios[name] = math.log(ours / distance(np.load(target), exact))
        else:
            assert name in OF_ODD_ROWS
    mean = float(np.mean(list(ratios.values())))
    print(f"{kind}: {math.exp(mean):.3f} of llama.cpp's distance over {len(ratios)} models")
    spreads = {name: SPREAD_OF_VECTORS if MODELS[name].pooling else SPREAD for name in ratios}
    assert {name: ratio for name, ratio in ratios.items() if ratio > 4 * spreads[name]} == {}
    assert mean < 3 * math.hypot(*spreads.values()) / len(ratios)


def kinds_of(path: Path) -> set[Kind]:
    """Return the types of a file's matrices."""
    return {tensor.tensor_type for tensor in gguf.GGUFReader(path).tensors}


@pytest.mark.parametrize("kind", OTHERS)
def test_numbers_of_other_types(kind: str, tmp_path: Path) -> None:
    model = MODELS["mixtral"]
    plain = model.write(tmp_path / "model", 1)
    llama_cpp = LlamaCpp(tmp_path)
    path = llama_cpp.quantise(plain, kind)
    llama_cpp.run()
    assert not kinds_of(path) <= NATIVE
    exact = model.in_engine(dequantised(path, plain), TOKENS, "f32")
    np.testing.assert_array_equal(model.in_engine(path, TOKENS, "f32"), exact)
