"""`Tracing`: a span for each request, for OpenTelemetry.

    tracing = pybatcher.Tracing(batcher)      # to the program's own tracer provider
    tracing.stop()

Needs OpenTelemetry: `pip install 'pybatcher-engine[otel]'`. Names of attributes are those of its
    semantic conventions for GenAI (0.66 beta):
https://github.com/open-telemetry/semantic-conventions-genai
A span is made from the event at the end of its request, so a running request costs nothing. Texts
are never recorded.
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable
from typing import Any, Protocol

from ..errors import ConfigError
from ..errors.checks import short
from ..errors.distribution import install_extra
from .telemetry import Handler, RequestEvent, TelemetryEvent, check_attachable

try:
    from opentelemetry import trace
    from opentelemetry.trace import SpanKind, StatusCode
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
except ImportError as error:
    raise ImportError(
        f"pybatcher.Tracing needs OpenTelemetry ({error}); {install_extra('otel')}"
    ) from error

__all__ = ["Tracing"]

_OPERATIONS = {
    "chat": "chat",
    "generate": "text_completion",
    "embed": "embeddings",
    "score": "score",
}
_DRAWN = ("chat", "generate")


class Traced(Protocol):
    """A batcher, a sidecar's client, or its front."""

    @property
    def model_name(self) -> str:
        """The name of the model."""

    def attach(self, handler: Handler) -> Callable[[], None]:
        """Call `handler` with every event from now on. Return a function that detaches it."""


class Tracing:
    """Makes a span of each request of a batcher that ends from now on.

    batcher: a `Batcher` or `BlockingBatcher`, or a `Client`, which reports the requests of all
        clients of its sidecar. The sidecar makes spans itself with `--otlp-traces-endpoint`.
    tracer_provider: receives the spans; None: OpenTelemetry's global provider.
    is_server: True for spans of kind SERVER; else INTERNAL, for a model in this process.
    model_name: the model's name in spans; None: the batcher's own.

    The parent of a span is the trace that the call belongs to (`trace_headers`), by default the
    span that was current when the call was made. Only a weak reference to the batcher is kept. A
    request that was sent again after a worker's death has a span from then on.

    Raises ConfigError for an object that is no batcher or no tracer provider.
    """

    def __init__(
        self,
        batcher: Traced,
        tracer_provider: Any = None,
        *,
        is_server: bool = False,
        model_name: str | None = None,
    ) -> None:
        check_attachable(batcher)
        if tracer_provider is not None and not isinstance(tracer_provider, trace.TracerProvider):
            raise ConfigError(
                f"tracer_provider is {short(tracer_provider)}; it must be a TracerProvider of "
                "OpenTelemetry, or None for its global one"
            )
        self._batcher = weakref.ref(batcher)
        self._tracer = trace.get_tracer("pybatcher", tracer_provider=tracer_provider)
        self._propagator = TraceContextTextMapPropagator()
        self._model_name = model_name
        self._kind = SpanKind.SERVER if is_server else SpanKind.INTERNAL
        self._detach = batcher.attach(self._take)

    def stop(self) -> None:
        """Make no more spans."""
        self._detach()

    def _take(self, event: TelemetryEvent) -> None:
        if not isinstance(event, RequestEvent):
            return
        model, batcher = self._model_name, self._batcher()
        if model is None:
            model = "" if batcher is None else batcher.model_name
        operation = _OPERATIONS.get(event.kind, event.kind)
        # Both clocks are read now, so that a change of the wall clock since then affects neither
        # the length of the span nor its end.
        ended = time.time_ns() - max(0, round((time.monotonic() - event.when) * 1e9))
        began = ended - round(event.total * 1e9)
        span = self._tracer.start_span(
            f"{operation} {model}".strip(),
            context=self._propagator.extract(event.trace_headers),
            kind=self._kind,
            start_time=began,
            attributes=_attributes(event, operation, model),
        )
        if event.ttft is not None:
            span.add_event("gen_ai.first_token", timestamp=began + round(event.ttft * 1e9))
        if event.finish_reason.endswith("Error"):
            span.set_status(StatusCode.ERROR, event.finish_reason)
        span.end(ended)


def _attributes(event: RequestEvent, operation: str, model: str) -> dict[str, Any]:
    attributes: dict[str, Any] = {
        "gen_ai.operation.name": operation,
        "gen_ai.provider.name": "pybatcher",
        "gen_ai.request.model": model,
        "gen_ai.usage.input_tokens": event.prompt_tokens,
        "gen_ai.usage.cache_read.input_tokens": event.cached_tokens,
        "pybatcher.queue_time": event.queued,
        "pybatcher.preemptions": event.preemptions,
    }
    if event.kind in _DRAWN:
        attributes |= {
            "gen_ai.request.max_tokens": event.max_tokens,
            "gen_ai.request.temperature": event.temperature,
            "gen_ai.request.top_p": event.top_p,
            "gen_ai.usage.output_tokens": event.generated_tokens,
        }
    if event.ttft is not None:
        attributes["gen_ai.response.time_to_first_chunk"] = event.ttft
    if event.finish_reason.endswith("Error"):
        attributes["error.type"] = event.finish_reason
    else:
        attributes["gen_ai.response.finish_reasons"] = (event.finish_reason,)
    return attributes
