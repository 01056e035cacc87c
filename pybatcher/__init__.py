"""pybatcher: an LLM inference engine you `await`.

    async with pybatcher.Batcher("path/to/model") as batcher:
        answer = await batcher.generate("Once upon a time", max_tokens=64)

The engine runs inside a Python process, batches all callers of that process into one
forward pass per step, and gives each caller the tokens that it would get alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .batcher import Batcher, BlockingBatcher
from .calls.any_batcher import AnyBatcher
from .calls.completion import Completion, FinishReason, Piece, Timeline, TokenLogprob, Usage
from .calls.composed.map_results import MapResult, ResultStream
from .calls.composed.tool_loop import Acted
from .calls.model_info import ModelInfo
from .calls.prefix_info import PrefixInfo
from .calls.scores import Embedding, Score
from .calls.statistics import BatcherStatistics, Health
from .calls.stream import Stream
from .calls.telemetry import RequestEvent, StepEvent, TelemetryEvent
from .calls.threads.calls import ThreadsafeBatcher
from .calls.threads.result_streams import BlockingResultStream, ThreadsafeResultStream
from .calls.threads.streams import BlockingStream, ThreadsafeStream
from .errors import (
    BatcherClosedError,
    ConfigError,
    ConnectionLostError,
    DeadlineExceededError,
    EngineError,
    EngineFailedError,
    InvalidRequestError,
    KvCacheFullError,
    ModelFormatError,
    NoFreeSequenceError,
    ProtocolError,
    PybatcherError,
    QueueFullError,
    RequestTooLongError,
)
from .params import SamplingParams
from .params.config import EngineConfig, SchedulerConfig, SupervisionConfig
from .text.partial_json import partial_json
from .text.tool_call import ToolCall, ToolCallDelta

if TYPE_CHECKING:
    from .calls.tracing import Tracing
    from .engine import Engine
    from .sidecar.client.blocking_client import BlockingClient
    from .sidecar.client.client import Client

    __version__: str

__all__ = [
    "Acted",
    "AnyBatcher",
    "Batcher",
    "BatcherClosedError",
    "BatcherStatistics",
    "BlockingBatcher",
    "BlockingClient",
    "BlockingResultStream",
    "BlockingStream",
    "Client",
    "Completion",
    "ConfigError",
    "ConnectionLostError",
    "DeadlineExceededError",
    "Embedding",
    "Engine",
    "EngineConfig",
    "EngineError",
    "EngineFailedError",
    "FinishReason",
    "Health",
    "InvalidRequestError",
    "KvCacheFullError",
    "MapResult",
    "ModelFormatError",
    "ModelInfo",
    "NoFreeSequenceError",
    "Piece",
    "PrefixInfo",
    "ProtocolError",
    "PybatcherError",
    "QueueFullError",
    "RequestEvent",
    "RequestTooLongError",
    "ResultStream",
    "SamplingParams",
    "SchedulerConfig",
    "Score",
    "StepEvent",
    "Stream",
    "SupervisionConfig",
    "TelemetryEvent",
    "ThreadsafeBatcher",
    "ThreadsafeResultStream",
    "ThreadsafeStream",
    "Timeline",
    "TokenLogprob",
    "ToolCall",
    "ToolCallDelta",
    "Tracing",
    "Usage",
    "partial_json",
]


def __dir__() -> list[str]:
    """Return the public names, for shells and editors that complete them."""
    return sorted([*__all__, "__version__"])


def __getattr__(name: str) -> object:
    """Import a public name on first access.

    `Engine`: everything else works without the compiled extension. `Client`, `BlockingClient`:
    a batcher in process needs no sidecar. `__version__`: read from the package's metadata.
    Raises AttributeError for any other name.
    """
    if name == "__version__":
        from .errors.distribution import version

        return version()
    if name == "Engine":
        from .engine import Engine

        return Engine
    if name == "Client":
        from .sidecar.client.client import Client

        return Client
    if name == "BlockingClient":
        from .sidecar.client.blocking_client import BlockingClient

        return BlockingClient
    if name == "Tracing":
        from .calls.tracing import Tracing

        return Tracing
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
