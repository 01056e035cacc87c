"""The sizes that stage d of bench.gpu_check measures, with their bytes and operations."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from bench.convert.shapes import SHAPES
from bench.convert.weights import n_weights_of
from bench.engines.interface import Settings

__all__ = ["FULL", "SMALL", "Sizes", "bytes_of_step", "flop_of_prefill", "of_limits"]

BYTES = 2  # bytes of a weight and of a KV number, in bf16


@dataclass(frozen=True, slots=True)
class Sizes:
    """The sizes of all parts.

    prefill: tokens of the long prompt. prompt, new: tokens of each sequence of a batch. steps:
        decode steps of a round. callers, shared, own: the load with a shared prefix. streams, rate,
        long_at: the mixed load. itl_target: seconds.
    """

    shape: str
    config: dict[str, Any]
    prefill: int
    batch_sizes: tuple[int, ...]
    prompt: int
    new: int
    steps: int
    rounds: int
    callers: int
    shared: int
    own: int
    streams: int
    rate: float
    long_at: float
    itl_target: float
    copy_mib: int
    product: int
    block: int = 64

    def settings(self, n_parallel: int, n_positions: int) -> Settings:
        """Return settings of an engine with KV for `n_positions`."""
        return Settings(
            dtype="bf16",
            kv_dtype="bf16",
            n_ctx=-(-n_positions // self.block) * self.block,
            n_parallel=n_parallel,
            n_threads=0,
            n_batch=max(self.prefill, *self.batch_sizes),
            device="cuda",
        )


FULL = Sizes(
    shape="llama-3.1-8b", config=SHAPES["llama-3.1-8b"], prefill=8192, batch_sizes=(1, 64, 256),
    prompt=128, new=128, steps=16, rounds=3, callers=64, shared=4096, own=64, streams=32, rate=8.0,
    long_at=2.0, itl_target=0.03, copy_mib=4096, product=8192,
)  # fmt: skip

SMALL = Sizes(
    shape="llama-3.1-8b, made tiny",
    config=SHAPES["llama-3.1-8b"] | {
        "vocab_size": 300, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16,
    },
    prefill=24, batch_sizes=(1, 2), prompt=4, new=2, steps=1, rounds=1, callers=2, shared=40, own=2,
    streams=2, rate=8.0, long_at=0.1, itl_target=30.0, copy_mib=1, product=64,
)  # fmt: skip


def bytes_of_step(config: dict[str, Any], batch: int, context: float) -> float:
    """Return the bytes that a decode step has to read: weights once, KV of every sequence.

    context: positions of a sequence. Rows of the embedding table are left out.
    """
    head = config["vocab_size"] * config["hidden_size"]
    per_position = 2 * config["num_key_value_heads"] * config["head_dim"]
    kv = batch * context * per_position * config["num_hidden_layers"]
    return float(BYTES * (n_weights_of(config) + head + kv))


def flop_of_prefill(config: dict[str, Any], n_tokens: int) -> float:
    """Return the operations of a prompt: its products, and the causal half of its attention."""
    q_size = config["num_attention_heads"] * config["head_dim"]
    attention = 2 * n_tokens**2 * q_size * config["num_hidden_layers"]
    return float(2 * n_weights_of(config) * n_tokens + attention)


def of_limits(row: dict[str, Any], sizes: Sizes, limits: dict[str, float]) -> dict[str, Any]:
    """Add the achieved share of the limits to a row of the engine.

    limits: copy_gb_s, dense_tflop_s.
    """
    speed = row["tokens_per_s"]
    if row["kind"] == "decode":
        per_step = bytes_of_step(sizes.config, row["batch"], row["context"])
        gb_s = speed / row["batch"] * per_step / 1e9
        return row | {"read_gb_s": gb_s, "of_copy": gb_s / limits["copy_gb_s"]}
    tflop_s = speed / row["tokens"] * flop_of_prefill(sizes.config, row["tokens"]) / 1e12
    return row | {"tflop_s": tflop_s, "of_dense": tflop_s / limits["dense_tflop_s"]}
