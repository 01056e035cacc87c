"""Events and statistics for tests, without a batcher."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from pybatcher import BatcherStatistics, RequestEvent, StepEvent


def _zeros(of: type) -> dict[str, Any]:
    return {field.name: 0 for field in fields(of)}


def step(when: float, **changes: object) -> StepEvent:
    """Return a step event with one row of each kind."""
    usual = {
        "seconds": 0.002,
        "engine_seconds": 0.001,
        "decode_rows": 1,
        "prefill_rows": 1,
        "draft_rows": 1,
        "n_sequences": 2,
    }
    return StepEvent(**{**_zeros(StepEvent), **usual, **changes, "when": when})


def request(when: float, request_id: int = 1, **changes: object) -> RequestEvent:
    """Return a request event with two tokens."""
    usual = {
        "request_id": request_id,
        "namespace": "",
        "priority": 0,
        "finish_reason": "length",
        "prompt_tokens": 10,
        "cached_tokens": 4,
        "generated_tokens": 2,
        "queued": 0.001,
        "ttft": 0.010,
        "itl": (0.020,),
        "total": 0.030,
    }
    return RequestEvent(**{**_zeros(RequestEvent), **usual, **changes, "when": when})


def statistics(**changes: int) -> BatcherStatistics:
    """Return statistics of zeros with these changes; ten KV blocks, free by default."""
    usual = {"kv_total_blocks": 10, "kv_free_blocks": 10}
    return BatcherStatistics(**{**_zeros(BatcherStatistics), **usual, **changes})
