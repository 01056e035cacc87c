"""Which tokens are computed next. Sans-IO: no asyncio, no thread, no clock, no engine."""

from __future__ import annotations

from .events import (
    Admitted,
    Answered,
    Event,
    Expired,
    Failed,
    Generated,
    Preempted,
    Resumed,
    own_copy,
)
from .kv_allocator import KvAllocator
from .plan import Pooling, SampledToken, StepEntry, StepPlan, StepResult
from .prefix import SharedPrefix, common_length
from .request import Request
from .scheduler import Scheduler
from .statistics import SchedulerStatistics

__all__ = [
    "Admitted",
    "Answered",
    "Event",
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
    "SchedulerStatistics",
    "SharedPrefix",
    "StepEntry",
    "StepPlan",
    "StepResult",
    "common_length",
    "own_copy",
]
