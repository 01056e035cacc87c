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
from .images import FIRST_IMAGE_ID, LAST_IMAGE_ID, PlacedTile, PromptImages
from .kv_allocator import WAY_OUT_FOR_ENCODERS, KvAllocator, way_out
from .plan import Pooling, SampledToken, StepEntry, StepPlan, StepResult
from .prefix import SharedPrefix, common_length
from .request import Request
from .scheduler import Scheduler
from .statistics import SchedulerStatistics

__all__ = [
    "FIRST_IMAGE_ID",
    "LAST_IMAGE_ID",
    "WAY_OUT_FOR_ENCODERS",
    "Admitted",
    "Answered",
    "Expired",
    "Failed",
    "Generated",
    "KvAllocator",
    "PlacedTile",
    "Pooling",
    "Preempted",
    "PromptImages",
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
