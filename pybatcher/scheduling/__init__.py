"""Which tokens are computed next. Sans-IO: no asyncio, no thread, no clock, no engine."""

from __future__ import annotations

from .events import Admitted, Event, Expired, Failed, Generated, own_copy
from .kv_book import KvBook
from .plan import SampledToken, StepEntry, StepPlan, StepResult
from .prefix import common_length
from .request import Request
from .scheduler import Scheduler
from .statistics import SchedulerStatistics

__all__ = [
    "Admitted",
    "Event",
    "Expired",
    "Failed",
    "Generated",
    "KvBook",
    "Request",
    "SampledToken",
    "Scheduler",
    "SchedulerStatistics",
    "StepEntry",
    "StepPlan",
    "StepResult",
    "common_length",
    "own_copy",
]
