"""Small models in the shapes that llama.cpp reads, its quantiser's files of them, and its logits.

llama.cpp runs in a process and an environment of its own, PYBATCHER_LLAMA_CPP.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
import transformers
from gguf_encoders import write_encoder_gguf
from gguf_files import SUPER_BLOCK_SHAPE, write_gguf
from numpy.typing import NDArray

from pybatcher.engine import Engine
from pybatcher.testing.checkpoints import ENCODERS, make_checkpoint

__all__ = ["MODELS", "LlamaCpp", "Model", "dequantised", "distance", "looked_up_gelu"]

Floats = NDArray[np.float32]

_WORKER = Path(__file__).parents[1] / "llama_cpp" / "worker.py"
_ROPE = {"rope_type": "default", "rope_theta": 1e4}
_LLAMA_3 = {
    **_ROPE,
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
_YARN = {
    **_ROPE,
    "rope_type": "yarn",
    "factor": 4.0,
    "original_max_position_embeddings": 64,
}
# A file does not say by what scores are scaled: by the root of a head's width.
_GEMMA = {"query_pre_attn_scalar": 32, "sliding_window": 24}
_GEMMA_3 = {**_GEMMA, "num_hidden_layers": 7, "sliding_window_pattern": 6}
_GEMMA_4 = {
    "global_head_dim": 64,
    "num_global_key_value_heads": 2,
    "num_hidden_layers": 4,
    "num_kv_shared_layers": 2,
    "hidden_size_per_layer_input": 32,
    "layer_types": ["sliding_attention", "full_attention"] * 2,
    "sliding_window": 24,
    "attention_k_eq_v": False,
    "use_double_wide_mlp": False,
}
# What llama.cpp has no keys for; it rounds the dimensions between which YaRN blends.
_GPT_OSS = {"sliding_window": 24, "swiglu_limit": 7.0, "rope_parameters": _ROPE}
_DELTA = {
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 64,  # of which llama.cpp has one, for keys and values
    "linear_value_head_dim": 64,
    "num_hidden_layers": 3,
    "layer_types": ["linear_attention", "full_attention", "linear_attention"],
}
_CONV = {"num_hidden_layers": 3, "layer_types": ["conv", "full_attention", "conv"]}
# llama.cpp has the tanh form of GELU for these, whatever they were trained with.
_BERT = {"hidden_act": "gelu"}
_MODERN_BERT = {"hidden_activation": "gelu"}


@dataclass(frozen=True)
class Model:
    """One kind of model: an architecture and fields beside SUPER_BLOCK_SHAPE.

    experts: names of the numbers of experts and of those that a row takes: all, as rounding may
        change a choice. gelu: llama.cpp looks its GELU up in a table of f16. Results are the logits
    of every token, (tokens, vocabulary), and an encoder's are the mean of its states, (hidden).
    """

    architecture: str
    fields: dict[str, Any] = field(default_factory=dict)
    experts: tuple[str, str] | None = None
    gelu: bool = False

    @property
    def pooling(self) -> str | None:
        """How an encoder's states are pooled; None: it has logits."""
        return "mean" if self.architecture in ENCODERS else None

    def write(self, directory: Path, seed: int) -> Path:
        """Write a Hugging Face directory, and the file of the same model inside it."""
        fields = {**SUPER_BLOCK_SHAPE, **self.fields}
        if self.experts is not None:
            fields |= dict.fromkeys(self.experts, 4)
        make_checkpoint(directory, self.architecture, seed=seed, **fields)
        write = write_gguf if self.pooling is None else write_encoder_gguf
        return write(directory, directory / "model.gguf")

    def in_engine(self, path: Path, tokens: list[int], dtype: str = "auto") -> Floats:
        """Return the engine's results of a file."""
        engine = Engine.load(path, dtype=dtype, n_ctx=512, n_threads=1, kv_dtype="f32")
        seq_id = engine.seq_new()
        if self.pooling is not None:
            found = np.array(engine.embed(seq_id, tokens, self.pooling), np.float32)
        else:
            rows = [engine.prefill_chunk(seq_id, [token], logits=True) for token in tokens]
            found = np.stack(rows)
        engine.close()
        return found

    def in_transformers(self, directory: Path, tokens: list[int]) -> Floats:
        """Return the results of transformers, in f32."""
        loader = (
            transformers.AutoModelForCausalLM if self.pooling is None else transformers.AutoModel
        )
        module = loader.from_pretrained(directory, attn_implementation="eager", dtype=torch.float32)
        with torch.no_grad():
            out = module(torch.tensor([tokens]))
        if self.pooling is None:
            return np.asarray(out.logits[0])
        return np.asarray(out.last_hidden_state[0].mean(dim=0))


_QWEN_EXPERTS = ("num_experts", "num_experts_per_tok")
_LOCAL_EXPERTS = ("num_local_experts", "num_experts_per_tok")
MODELS = {
    "llama": Model("llama"),
    "llama3": Model("llama", {"rope_parameters": _LLAMA_3, "tie_word_embeddings": True}),
    "narrow": Model("llama", {"hidden_size": 160, "intermediate_size": 288}),
    "mixtral": Model("mixtral", experts=_LOCAL_EXPERTS),
    "internlm3": Model("internlm3", {"attention_bias": True, "mlp_bias": True}),
    "qwen2": Model("qwen2"),
    "qwen3": Model("qwen3", {"rope_parameters": _YARN}),
    "qwen3moe": Model(
        "qwen3_moe", {"moe_intermediate_size": 256, "mlp_only_layers": []}, _QWEN_EXPERTS
    ),
    "gpt-oss": Model("gpt_oss", _GPT_OSS, _LOCAL_EXPERTS),
    "granite": Model("granite"),
    "olmo2": Model("olmo2"),
    "olmo3": Model("olmo3", {"layer_types": ["sliding_attention", "full_attention"]}),
    "smollm3": Model("smollm3", {"num_hidden_layers": 5, "no_rope_layer_interval": 4}),
    "phi3": Model("phi3", {"sliding_window": None}),  # llama.cpp has no windows in it
    "mistral3": Model("ministral3"),
    "gemma2": Model("gemma2", _GEMMA, gelu=True),
    "gemma3": Model("gemma3", _GEMMA_3, gelu=True),
    "gemma4": Model("gemma4", _GEMMA_4, gelu=True),
    "gemma4-experts": Model(
        "gemma4",
        {**_GEMMA_4, "enable_moe_block": True, "moe_intermediate_size": 256},
        ("num_experts", "top_k_experts"),
        gelu=True,
    ),
    "qwen35": Model("qwen3_5", _DELTA),
    "qwen35moe": Model(
        "qwen3_5_moe",
        {**_DELTA, "moe_intermediate_size": 256, "shared_expert_intermediate_size": 256},
        _QWEN_EXPERTS,
    ),
    "bert": Model("bert", _BERT, gelu=True),
    "modern-bert": Model("modernbert", _MODERN_BERT, gelu=True),
    "gemma-embedding": Model("embedding_gemma", _GEMMA_3, gelu=True),
    "lfm2": Model("lfm2", {**_CONV, "tie_word_embeddings": True}),
    "lfm2moe": Model(
        "lfm2_moe",
        {
            **_CONV,
            "moe_intermediate_size": 256,
            "num_dense_layers": 1,
            "routed_scaling_factor": 1.0,
        },
        _QWEN_EXPERTS,
    ),
}
"""By names for people. "narrow" has rows that are no whole super-blocks."""


class LlamaCpp:
    """Jobs for llama.cpp, done in one process when it is asked for results."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._jobs: list[dict[str, Any]] = []

    def quantise(self, source: Path, kind: str, *, pure: bool = False) -> Path:
        """Return the path where its file will be. kind: of a file, as "Q4_K_M"."""
        target = source.with_name(f"{source.stem}-{kind}.gguf")
        self._jobs.append(
            {"source": str(source), "target": str(target), "type": kind, "pure": pure}
        )
        return target

    def results(self, path: Path, tokens: list[int], pooling: str | None = None) -> Path:
        """Return the path where the array of a file's results will be."""
        target = path.with_suffix(".npy")
        job = {"path": str(path), "tokens": tokens, "target": str(target)}
        self._jobs.append(job if pooling is None else {**job, "pooling": pooling})
        return target

    def seen(self, path: Path, mmproj: Path, image: Floats, prompt: str, n_tokens: int) -> Path:
        """Return the path where tokens after an image, and their log-probabilities, will be."""
        target = mmproj.with_suffix(".npy")
        pixels = mmproj.with_suffix(".pixels.npy")
        np.save(pixels, image)
        self._jobs.append(
            {
                "path": str(path),
                "mmproj": str(mmproj),
                "image": str(pixels),
                "prompt": prompt,
                "n_tokens": n_tokens,
                "target": str(target),
            }
        )
        return target

    def run(self) -> None:
        """Do the jobs."""
        jobs = self._directory / "jobs.json"
        jobs.write_text(json.dumps(self._jobs))
        self._jobs = []
        done = subprocess.run(
            [os.environ["PYBATCHER_LLAMA_CPP"], _WORKER, jobs],
            capture_output=True,
            text=True,
            check=False,
            env={**os.environ, "GGML_NO_BACKTRACE": "1"},
        )
        assert done.returncode == 0, done.stderr[-2000:]


def dequantised(path: Path, source: Path) -> Path:
    """Write the numbers of `path`, as the gguf package has them, into a copy of `source`.

    source: the same model, all of whose tensors are f32.
    """
    target = path.with_suffix(".exact.gguf")
    shutil.copy(source, target)
    given = {tensor.name: tensor for tensor in gguf.GGUFReader(path).tensors}
    copy = gguf.GGUFReader(target, "r+")
    assert given.keys() == {tensor.name for tensor in copy.tensors}
    for tensor in copy.tensors:
        found = given[tensor.name]
        values = gguf.quants.dequantize(found.data, found.tensor_type)
        tensor.data[...] = values.reshape(tensor.data.shape)
    copy.data.flush()
    return target


def distance(logits: Floats, expected: Floats) -> float:
    """Return the error, relative to the norm of all that is expected."""
    return float(np.linalg.norm(logits - expected) / np.linalg.norm(expected))


def _looked_up(x: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
    """GELU as llama.cpp has it: of inputs and to outputs in f16."""
    y = torch.ops.aten.gelu(x.half().float(), approximate="tanh").half().float()
    return torch.where(x <= -10, 0.0, torch.where(x >= 10, x, y))


@contextmanager
def looked_up_gelu() -> Iterator[None]:
    """Modules that are made meanwhile have GELU as llama.cpp's table has it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.nn.functional, "gelu", _looked_up)
        yield
