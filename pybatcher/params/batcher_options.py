"""`BatcherOptions`: the options of a batcher as a `TypedDict`, for editors and type checkers."""

from __future__ import annotations

import os
from pathlib import PurePath
from typing import Literal, TypedDict

__all__ = [
    "BatcherOptions",
    "BlockSize",
    "CachePlace",
    "ContextSize",
    "Device",
    "Dtype",
    "KvDtype",
    "MmprojSource",
    "ParallelSize",
    "TemplateSource",
    "VictimPolicy",
]

CachePlace = str | PurePath | bool | None
TemplateSource = str | PurePath | None
MmprojSource = str | os.PathLike[str] | None
ContextSize = int | Literal["auto"]
BlockSize = Literal["auto", 16, 32, 64, 128, 256]
ParallelSize = int | Literal["auto"]
Dtype = Literal["auto", "f32", "bf16", "int8", "int4", "q4_k_m", "q5_k_m", "q6_k"]
KvDtype = Literal["auto", "f32", "bf16", "f16", "int8"]
Device = Literal["auto", "cpu", "cuda"]
VictimPolicy = Literal["youngest", "priority", "cheapest"]


class BatcherOptions(TypedDict, total=False):
    """The fields of `EngineConfig`, `SchedulerConfig` and `SupervisionConfig`, documented there."""

    dtype: Dtype
    kv_dtype: KvDtype
    device: Device
    n_ctx: ContextSize
    n_parallel: ParallelSize
    n_ubatch: int
    n_threads: int
    block_size: BlockSize
    weights_cache: CachePlace
    overcommit: bool
    chat_template: TemplateSource
    vision: bool
    mmproj: MmprojSource
    max_images: int
    max_image_pixels: int
    max_image_bytes: int

    n_batch: int
    batch_size: int
    batch_timeout: float
    max_prefill_tokens: int
    long_prefill_token_threshold: int
    max_num_partial_prefills: int
    itl_target: float | None
    dynamic_chunking: bool
    watermark: float
    output_reserve: int
    victim_policy: VictimPolicy
    priority_aging: float
    max_prefixes: int
    max_draft_tokens: int
    max_queue_requests: int
    max_queue_tokens: int

    max_restarts: int
    restart_window: float
    step_timeout: float | None
