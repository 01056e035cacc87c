"""`OtlpTraces`: spans of the server's requests, sent to an OpenTelemetry collector."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ...errors import ConfigError
from ...errors.distribution import install_extra
from .front import Front

if TYPE_CHECKING:
    from ...calls.tracing import Tracing

__all__ = ["OtlpTraces"]

_LOGGER = logging.getLogger("pybatcher.sidecar")
_LAST_EXPORT = 5.0
"""Seconds that the last spans have to be sent, when the server ends."""


class OtlpTraces:
    """Sends a span of each request, in batches from a thread of its own, as OTLP over HTTP.

    endpoint: URL that accepts traces, such as http://127.0.0.1:4318/v1/traces. The service's name
        is "pybatcher", or that of $OTEL_SERVICE_NAME; other variables of the standard apply too.

    Raises ConfigError without the packages of the extra `otel`.
    """

    def __init__(self, endpoint: str) -> None:
        try:
            from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
            from opentelemetry.sdk.resources import Resource
            from opentelemetry.sdk.trace import TracerProvider
            from opentelemetry.sdk.trace.export import BatchSpanProcessor
        except ImportError as error:
            raise ConfigError(
                f"otlp_traces_endpoint needs packages that are not there ({error}): "
                + install_extra("otel")
            ) from error
        own = Resource({"service.name": "pybatcher"})
        named = Resource.create({})
        if named.attributes.get("service.name", "").startswith("unknown_service"):
            named = named.merge(own)
        self._provider: Any = TracerProvider(resource=named)
        self._provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(endpoint=endpoint)))
        self._tracings: list[Tracing] = []

    def start(self, fronts: Mapping[str, Front]) -> None:
        """Make spans of the fronts' requests from now on, by the names of their models."""
        from ...calls.tracing import Tracing

        self._tracings = [
            Tracing(front, self._provider, is_server=True, model_name=name or None)
            for name, front in fronts.items()
        ]

    async def close(self) -> None:
        """Send the last spans; give up after some seconds."""
        for tracing in self._tracings:
            tracing.stop()
        sent = asyncio.to_thread(self._provider.shutdown)
        try:
            await asyncio.wait_for(sent, _LAST_EXPORT)
        except Exception as error:
            _LOGGER.warning("the last spans were not sent: %s", error or "no answer")
