"""Scheduling: which tokens are computed next. Sans-IO: no asyncio, thread, clock or engine."""

from __future__ import annotations

from .events import (
    Admitted,
    Answered,
    Expired,
    Failed,
    Generated,
    Preempted,
    Resumed,
    SchedulerEvent,
    own_copy,
)
from .kv_allocator import WAY_OUT_FOR_ENCODERS, KvAllocator, way_out
from .plan import Pooling, SampledToken, StepEntry, StepPlan, StepResult
from .prefix import SharedPrefix, common_length
from .request import Request
from .scheduler import Scheduler
from .statistics import SchedulerStatistics

__all__ = [
    "WAY_OUT_FOR_ENCODERS",
    "Admitted",
    "Answered",
    "Expired",
    "Failed",
    "Generated",
    "KvAllocator",
    "Pooling",
    "Preempted",
    "Request",
    "Resumed",
    "SampledToken",
    "Scheduler",
    "SchedulerEvent",
    "SchedulerStatistics",
    "SharedPrefix",
    "StepEntry",
    "StepPlan",
    "StepResult",
    "common_length",
    "own_copy",
    "way_out",
]
