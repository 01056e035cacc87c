"""Spans of requests, as a tracer provider gets them."""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import httpx
import pytest
from batcher_helpers import until
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode
from serving_doubles import serving

from pybatcher import (
    Batcher,
    Client,
    ConfigError,
    DeadlineExceededError,
    InvalidRequestError,
    RequestEvent,
    Tracing,
)
from pybatcher.testing import FakeEngine, fake_batcher

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
TRACE_ID, SPAN_ID = 0x0AF7651916CD43DD8448EB211C80319C, 0xB7AD6B7169203331


class Traces:
    """A tracer provider that keeps its spans."""

    def __init__(self) -> None:
        self._kept = InMemorySpanExporter()
        self.provider = TracerProvider()
        self.provider.add_span_processor(SimpleSpanProcessor(self._kept))
        self.tracer = self.provider.get_tracer("test")

    @property
    def spans(self) -> list[ReadableSpan]:
        own = self._kept.get_finished_spans()
        return [span for span in own if span.instrumentation_scope.name == "pybatcher"]


def attributes(span: ReadableSpan) -> Mapping[str, Any]:
    assert span.attributes is not None
    return span.attributes


@pytest.mark.parametrize("batcher", [5, None, "a model", Batcher])
def test_what_is_no_batcher_is_an_error_that_says_what_is_one(batcher: Any) -> None:
    with pytest.raises(ConfigError, match=r"batcher is .*; it must be a Batcher, a Blocking"):
        Tracing(batcher)


async def test_what_is_no_tracer_provider_is_an_error_and_attaches_nothing() -> None:
    async with fake_batcher() as batcher:
        with pytest.raises(ConfigError, match=r"tracer_provider is 5; it must be a TracerProv"):
            Tracing(batcher, 5)
        await batcher.generate("Once", max_tokens=1)


async def test_a_span_says_what_the_completion_says() -> None:
    traces = Traces()
    batcher = fake_batcher()
    Tracing(batcher, traces.provider)
    async with batcher:
        before = time.time_ns()
        with traces.tracer.start_as_current_span("mine") as mine:
            done = await batcher.generate(
                "Once", max_tokens=5, temperature=0.5, top_p=0.9, ignore_eos=True
            )
        after = time.time_ns()
        await batcher.generate("Twice", max_tokens=1)
    first, second = traces.spans
    said = attributes(first)
    assert first.name == f"text_completion {batcher.model_name}"
    assert first.kind is SpanKind.INTERNAL
    assert first.parent is not None
    assert first.parent.span_id == mine.get_span_context().span_id
    assert second.parent is None
    assert said["gen_ai.operation.name"] == "text_completion"
    assert said["gen_ai.request.model"] == batcher.model_name
    assert said["gen_ai.request.max_tokens"] == 5
    assert said["gen_ai.request.temperature"] == 0.5
    assert said["gen_ai.request.top_p"] == 0.9
    assert said["gen_ai.usage.input_tokens"] == done.usage.prompt_tokens
    assert said["gen_ai.usage.output_tokens"] == done.usage.completion_tokens == 5
    assert said["gen_ai.response.finish_reasons"] == ("length",)
    assert said["gen_ai.response.time_to_first_chunk"] == done.timeline.ttft
    assert first.start_time is not None
    assert first.end_time is not None
    assert before <= first.start_time <= first.end_time <= after
    assert abs((first.end_time - first.start_time) / 1e9 - _total(done.timeline)) < 1e-6
    (token,) = first.events
    assert first.start_time < token.timestamp < first.end_time


def _total(timeline: Any) -> float:
    return float(timeline.finished - timeline.submitted)


async def test_every_kind_of_call_has_a_span_in_its_trace() -> None:
    traces = Traces()
    batcher = fake_batcher(chat_template="{{ messages[0]['content'] }}")
    Tracing(batcher, traces.provider)
    more: Any = {"trace_headers": {"TraceParent": PARENT}}
    async with batcher:
        await batcher.chat([{"role": "user", "content": "Hi"}], max_tokens=2, n=2, **more)
        async with batcher.stream("Once", max_tokens=2, **more) as pieces:
            async for _ in pieces:
                pass
        await batcher.score("Once", [" upon"], **more)
        await batcher.embed(["Once"], **more)
        await batcher.generate("Once", max_tokens=0, prompt_logprobs=True, **more)
    assert [attributes(span)["gen_ai.operation.name"] for span in traces.spans] == [
        *("chat", "chat", "text_completion", "score", "embeddings", "score")
    ]
    assert {
        (span.context.trace_id, span.parent and span.parent.span_id) for span in traces.spans
    } == {(TRACE_ID, SPAN_ID)}
    assert "gen_ai.usage.output_tokens" not in attributes(traces.spans[3])


async def test_what_fails_is_cancelled_or_expires_is_told() -> None:
    traces = Traces()
    engine = FakeEngine(step_delay=0.002)
    batcher = fake_batcher(engine)
    Tracing(batcher, traces.provider)
    async with batcher:
        gone = asyncio.create_task(batcher.generate("Once", max_tokens=400))
        await until(lambda: batcher.statistics().running > 0)
        gone.cancel()
        await asyncio.wait({gone})
        with pytest.raises(DeadlineExceededError):
            await batcher.generate("Once", max_tokens=400, timeout=1e-9)
    by_end = {
        attributes(span).get("error.type")
        or attributes(span)["gen_ai.response.finish_reasons"][0]: span
        for span in traces.spans
    }
    assert set(by_end) == {"cancelled", "DeadlineExceededError"}
    assert by_end["DeadlineExceededError"].status.status_code is StatusCode.ERROR
    assert by_end["cancelled"].status.status_code is StatusCode.UNSET


async def test_no_spans_after_stop_and_headers_that_are_none_are_refused() -> None:
    traces = Traces()
    batcher = fake_batcher()
    tracing = Tracing(batcher, traces.provider)
    async with batcher:
        wrong: Any = 5
        with pytest.raises(InvalidRequestError, match="trace_headers is 5"):
            await batcher.generate("Once", trace_headers=wrong)
        tracing.stop()
        await batcher.generate("Once", max_tokens=1)
    assert traces.spans == []


async def test_tracing_does_not_keep_a_batcher() -> None:
    batcher = fake_batcher()
    Tracing(batcher, Traces().provider)
    kept = weakref.ref(batcher)
    del batcher
    gc.collect()
    assert kept() is None


def test_without_a_tracing_library_nothing_of_it_is_imported() -> None:
    code = "import sys, pybatcher; sys.exit('opentelemetry' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
    code = (
        "import sys; sys.modules['opentelemetry'] = None\nimport pybatcher\n"
        "try:\n    pybatcher.Tracing\nexcept ImportError as e:\n    print(e)\n"
    )
    outcome = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert "pip install 'pybatcher-engine[otel]'" in outcome.stdout


class Collector:
    """An OpenTelemetry collector: it keeps the spans that come as OTLP over HTTP."""

    def __init__(self) -> None:
        from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
            ExportTraceServiceRequest,
        )

        self.services: list[Any] = []
        self.spans: list[Any] = []
        own = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                if self.headers.get("content-encoding") == "gzip":
                    import gzip

                    body = gzip.decompress(body)
                for one in ExportTraceServiceRequest.FromString(body).resource_spans:
                    own.services.append(one.resource.attributes)
                    own.spans += [span for scope in one.scope_spans for span in scope.spans]
                self.send_response(200)
                self.end_headers()

            def log_message(self, *_: Any) -> None:
                pass

        self._server = HTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}/v1/traces"
        self._thread = threading.Thread(target=self._server.serve_forever)
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


@pytest.mark.slow
async def test_the_server_sends_spans_to_a_collector(tmp_path: Any) -> None:
    collector = Collector()
    events: list[RequestEvent] = []
    try:
        more = ("--http", "127.0.0.1:0", "--otlp-traces-endpoint", collector.url)
        with serving(tmp_path, *more) as running:
            async with httpx.AsyncClient(base_url=running.url, timeout=60) as http:
                answer = await http.post(
                    "/v1/chat/completions",
                    json={"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 3},
                    headers={"traceparent": PARENT, "tracestate": "a=b"},
                )
            assert answer.status_code == 200
            async with Client(running.socket) as client:
                client.attach(lambda e: events.append(e) if isinstance(e, RequestEvent) else None)
                await client.generate("Once", max_tokens=2, trace_headers={"traceparent": PARENT})
                await until(lambda: bool(events))
    finally:
        collector.close()
    assert events[0].trace_headers == {"traceparent": PARENT}
    assert events[0].kind == "generate"
    operations = {span.name.split()[0]: span for span in collector.spans}
    assert set(operations) == {"chat", "text_completion"}
    for span in operations.values():
        assert span.trace_id.hex() == f"{TRACE_ID:x}".zfill(32)
        assert span.parent_span_id.hex() == f"{SPAN_ID:x}"
        assert span.kind == 2  # SERVER
    assert operations["chat"].trace_state == "a=b"
    names = {one.key: one.value.string_value for one in collector.services[0]}
    assert names["service.name"] == "pybatcher"
