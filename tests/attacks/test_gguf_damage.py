"""Damaged GGUF files: a typed error that names the file, or a model that answers. Nothing else.

The file is small, so that most of it is header: names, counts, sizes, offsets, types, tokens.
"""

from __future__ import annotations

import random
import warnings
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest
from attacked_engine import OPTIONS
from gguf import GGMLQuantizationType as Kind
from gguf_files import array, pair, raw_gguf, tensor, text, write_gguf

from pybatcher.engine import Engine
from pybatcher.errors import ModelFormatError, PybatcherError
from pybatcher.loading import from_torch
from pybatcher.loading.gguf.model import open_gguf
from pybatcher.params.config import EngineConfig
from pybatcher.testing.checkpoints import make_checkpoint, make_module

SHAPE = {
    "hidden_size": 32,
    "intermediate_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 16,
    "vocab_size": 384,
}


def mixed(name: str) -> Kind:
    """Blocks that the engine knows, blocks that it does not, and plain numbers."""
    for part, kind in (("ffn", Kind.Q5_1), ("attn_v", Kind.IQ4_NL), ("attn", Kind.Q8_0)):
        if part in name:
            return kind
    return Kind.Q4_0 if name == "token_embd.weight" else Kind.F16


@pytest.fixture(scope="module", params=["llama", "qwen2"])
def whole(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> bytes:
    root = tmp_path_factory.mktemp("whole")
    directory = make_checkpoint(root / "hf", request.param, **SHAPE)
    pre = {"llama": "llama-bpe", "qwen2": "qwen2"}[request.param]
    return write_gguf(directory, root / "model.gguf", mixed, pre=pre).read_bytes()


def survives(raw: bytes, path: Path, *, dtype: str = "f32") -> bool:
    """Whether the file loads and answers; if not, that the error is a typed one with its name."""
    path.write_bytes(raw)
    message = ""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model = open_gguf(path)
            config = EngineConfig(dtype=dtype, n_ctx=64, n_parallel=1, n_threads=1)
            engine = Engine.from_loaded(model, config)
    except ModelFormatError as error:
        message = str(error)
    if message:
        assert path.name in message
        assert len(message) < 5000
        return False
    try:
        if model.tokenizer.backend is not None:
            model.tokenizer.backend.encode("Once upon a time<|end|>")
        seq_id = engine.seq_new()
        logits = engine.prefill_chunk(seq_id, [1, 2, 3], logits=True)
        assert np.isfinite(logits).all()
    except PybatcherError:
        pass
    finally:
        engine.close()
    return True


def test_undamaged(whole: bytes, tmp_path: Path) -> None:
    for dtype in ("f32", "bf16", "int8", "int4"):
        assert survives(whole, tmp_path / "model.gguf", dtype=dtype)


def test_truncation(whole: bytes, tmp_path: Path) -> None:
    rng = random.Random(5)
    end_of_header = whole.index(b"blk.0.ffn_up.weight") + 400
    sizes = [
        *range(0, 40),
        *rng.sample(range(end_of_header), 80),
        *rng.sample(range(len(whole)), 20),
    ]
    for size in sizes:
        assert not survives(whole[:size], tmp_path / "model.gguf")
    assert survives(whole + b"something after it", tmp_path / "model.gguf")


@pytest.mark.parametrize("seed", range(4))
def test_flipped_bytes(whole: bytes, seed: int, tmp_path: Path) -> None:
    rng = random.Random(seed)
    refused = 0
    for _ in range(60):
        damaged = bytearray(whole)
        for place in rng.choices(range(len(whole)), k=rng.choice([1, 1, 2, 8])):
            damaged[place] = rng.randrange(256)
        dtype = rng.choice(["f32", "bf16", "int8", "int4"])
        refused += not survives(bytes(damaged), tmp_path / "model.gguf", dtype=dtype)
    assert 0 < refused < 60


@pytest.mark.parametrize("seed", range(2))
def test_numbers_in_the_header_made_absurd(whole: bytes, seed: int, tmp_path: Path) -> None:
    """Lengths, counts, sizes, offsets: eight bytes on end become one of the usual suspects."""
    rng = random.Random(seed)
    end_of_header = whole.index(b"blk.0.ffn_up.weight") + 400
    suspects = [0, 1, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**63 - 1, 2**63, 2**64 - 1]
    refused = 0
    for _ in range(80):
        damaged = bytearray(whole)
        place = rng.randrange(4, end_of_header)
        damaged[place : place + 8] = rng.choice(suspects).to_bytes(8, "little")
        refused += not survives(bytes(damaged), tmp_path / "model.gguf")
    assert refused > 20


def test_parts_exchanged(whole: bytes, tmp_path: Path) -> None:
    """Stretches of the file copied over others: whole structures, in the wrong place."""
    rng = random.Random(9)
    for _ in range(80):
        damaged = bytearray(whole)
        size = rng.choice([4, 8, 16, 64, 300])
        to, source = rng.randrange(len(whole) - size), rng.randrange(len(whole) - size)
        damaged[to : to + size] = whole[source : source + size]
        survives(bytes(damaged), tmp_path / "model.gguf")


def test_metadata_that_would_make_giants(tmp_path: Path) -> None:
    """A file of a few hundred bytes gets no more memory than that by what it claims."""
    tracemalloc = pytest.importorskip("tracemalloc")
    keys = [pair("general.architecture", 8, text("llama"))]
    numbers = {
        "block_count": 1024,
        "context_length": 2**30,
        "embedding_length": 2**20,
        "feed_forward_length": 2**20,
        "attention.head_count": 4096,
        "attention.key_length": 1024,
    }
    keys += [pair(f"llama.{k}", 4, v.to_bytes(4, "little")) for k, v in numbers.items()]
    keys += [pair("llama.attention.layer_norm_rms_epsilon", 6, bytes(4))]
    keys += [pair("tokenizer.ggml.tokens", 9, array(8, 1, text("a")))]
    path = tmp_path / "model.gguf"
    path.write_bytes(raw_gguf(keys, [tensor("token_embd.weight", [32, 4])], bytes(512)))
    tracemalloc.start()
    try:
        with pytest.raises(ModelFormatError, match=r"model\.gguf: tensor"):
            open_gguf(path)
        assert tracemalloc.get_traced_memory()[1] < 30_000_000
    finally:
        tracemalloc.stop()


def test_blocks_of_the_wrong_size_are_not_handed_to_the_engine() -> None:
    """What the binding itself refuses, whoever made the tensors."""
    model = from_torch(make_module("llama", **SHAPE))
    pairs = {name: (t.array, t.dtype) for name, t in model.tensors.items()}
    good = np.zeros((384, 34), np.uint8)
    Engine(asdict(model.config), {**pairs, "token_embedding": (good, "int8")}, **OPTIONS).close()
    for bad, dtype in (
        (good[:, :33], "int8"),
        (good.astype(np.int8), "int8"),
        (good.astype(np.uint16), "int8"),
        (good[0], "int8"),
        (good[:, ::2], "int8"),
        (good[None], "int8"),
        (np.zeros((384, 40), np.uint8)[:, :34], "int8"),
        (np.asfortranarray(good), "int8"),
        (good, "int4"),
        (good, "q4_k"),
        (good, "Q4_K"),
    ):
        with pytest.raises(ModelFormatError, match="token_embedding"):
            Engine(asdict(model.config), {**pairs, "token_embedding": (bad, dtype)}, **OPTIONS)
