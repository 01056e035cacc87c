"""The options of an engine and of its scheduler, checked where they are made."""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass, fields
from pathlib import PurePath
from typing import Any

from .errors import ConfigError

__all__ = ["CachePlace", "EngineConfig", "SchedulerConfig", "split_options"]

CachePlace = str | PurePath | bool | None

_DTYPES = ("auto", "f32", "bf16", "int8", "int4")
_KV_DTYPES = ("auto", "f32", "bf16", "f16", "int8")
_DEVICES = ("auto", "cpu", "cuda")
_BLOCK_SIZES = (16, 32, 64, 128, 256)


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """How the compiled engine holds weights and KV, and what it computes with.

    dtype: of the weights. "auto": f32 for f32 checkpoints, int8 or int4 for GGUF
        files of mostly such weights, else bf16. "int8" and "int4" (groups of 32
        with a scale each) are quantised while loading.
    kv_dtype: of keys and values. "auto": f32 with f32 weights, else bf16. "f16" is
        finer than bf16 up to 65504 and held there; "int8" has a scale for each
        token and kv head, and takes half the memory of either.
    device: "cpu"; "auto" is "cpu" where no other is built.
    n_ctx: KV capacity in tokens, shared by all sequences. Rounded up to blocks.
    n_parallel: most sequences that may hold KV at once.
    n_ubatch: rows of one physical pass.
    n_threads: compute threads; 0 = the cores this process may use.
    block_size: positions of a KV block.
    weights_cache: where weights stay, packed, for the next start: a directory;
        "off" or False: nowhere. "auto" or None: in the user's cache directory,
        for models of more than 100 MB.
    """

    dtype: str = "auto"
    kv_dtype: str = "auto"
    device: str = "auto"
    n_ctx: int = 8192
    n_parallel: int = 8
    n_ubatch: int = 512
    n_threads: int = 0
    block_size: int = 32
    weights_cache: CachePlace = "auto"

    def __post_init__(self) -> None:
        _check_choice("dtype", self.dtype, _DTYPES)
        _check_choice("kv_dtype", self.kv_dtype, _KV_DTYPES)
        _check_choice("device", self.device, _DEVICES)
        _check_choice("block_size", self.block_size, _BLOCK_SIZES)
        _check_int("n_ctx", self.n_ctx, 16, 2**26)
        _check_int("n_parallel", self.n_parallel, 1, 65536)
        _check_int("n_ubatch", self.n_ubatch, 1, 65536)
        _check_int("n_threads", self.n_threads, 0, 1024)
        place = self.weights_cache
        if place is not None and place is not False and not _is_path(place):
            raise _bad("weights_cache", place, "'auto', 'off' or a directory")


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerConfig:
    """What one step may hold, when a step starts, and how much may wait.

    n_batch: token budget of one step, decode and prefill together.
    batch_size, batch_timeout: an idle coordinator starts its first step when
        `batch_size` requests wait, or `batch_timeout` seconds after the first.
    max_prefill_tokens: most prefill tokens in a step that also decodes, 0 = no cap.
    max_draft_tokens: most guesses at its next tokens that a sequence has verified
        in a step, 0 = none. They change when tokens come, never which.
    max_queue_requests, max_queue_tokens: past either, `QueueFullError`.
    """

    n_batch: int = 512
    batch_size: int = 8
    batch_timeout: float = 0.002
    max_prefill_tokens: int = 0
    max_draft_tokens: int = 8
    max_queue_requests: int = 4096
    max_queue_tokens: int = 4_194_304

    def __post_init__(self) -> None:
        _check_int("n_batch", self.n_batch, 1, 2**20)
        _check_int("batch_size", self.batch_size, 1, 65536)
        _check_int("max_prefill_tokens", self.max_prefill_tokens, 0, 2**20)
        _check_int("max_draft_tokens", self.max_draft_tokens, 0, 64)
        _check_int("max_queue_requests", self.max_queue_requests, 1, 2**31 - 1)
        _check_int("max_queue_tokens", self.max_queue_tokens, 1, 2**31 - 1)
        value: Any = self.batch_timeout
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise _bad("batch_timeout", value, "a number of seconds from 0 to 60")
        if math.isnan(value) or not 0.0 <= value <= 60.0:
            raise _bad("batch_timeout", value, "a number of seconds from 0 to 60")


def split_options(options: dict[str, Any]) -> tuple[EngineConfig, SchedulerConfig]:
    """Sort options by name into the two configurations.

    `n_ubatch` follows `n_batch` where only that is given, and is clamped to
    it, with a warning, where both are given. An unknown name is a ConfigError
    that lists the known ones.
    """
    engine_names = {f.name for f in fields(EngineConfig)}
    scheduler_names = {f.name for f in fields(SchedulerConfig)}
    for name in options:
        if name not in engine_names | scheduler_names:
            known = ", ".join(sorted(engine_names | scheduler_names))
            raise ConfigError(f"unknown option {name!r}; the options are: {known}")
    scheduler = SchedulerConfig(**{k: v for k, v in options.items() if k in scheduler_names})
    engine_options = {k: v for k, v in options.items() if k in engine_names}
    engine = EngineConfig(**engine_options)
    if engine.n_ubatch > scheduler.n_batch:
        if "n_ubatch" in engine_options:
            warnings.warn(
                f"n_ubatch={engine.n_ubatch} is more than n_batch={scheduler.n_batch}; "
                f"using n_ubatch={scheduler.n_batch}",
                stacklevel=3,
            )
        engine = EngineConfig(**{**engine_options, "n_ubatch": scheduler.n_batch})
    return engine, scheduler


def _bad(name: str, value: object, wanted: str) -> ConfigError:
    return ConfigError(f"{name} is {value!r}; it must be {wanted}")


def _is_path(value: object) -> bool:
    return isinstance(value, (str, PurePath)) and str(value) != "" and "\0" not in str(value)


def _check_choice(name: str, value: object, choices: tuple[Any, ...]) -> None:
    if isinstance(value, bool) or value not in choices:
        raise _bad(name, value, "one of " + ", ".join(map(repr, choices)))


def _check_int(name: str, value: object, low: int, high: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise _bad(name, value, f"a whole number from {low} to {high}")
