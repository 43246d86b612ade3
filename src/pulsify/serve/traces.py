"""OpenTelemetry: a span for every stream, with what happened to it; none without the package or an address.

They go where the environment says (OTEL_EXPORTER_OTLP_ENDPOINT), or to the provider that the program has set up itself.
A client that traces, too, sends the header `traceparent`: its span is the parent.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from pulsify import __version__

if TYPE_CHECKING:
    from opentelemetry.trace import Span, Tracer

ENDPOINTS = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
SERVERS_FAULT = ("failed", "store_failed")  # outcomes that make a span one of an error
log = logging.getLogger("pulsify.serve")


class StreamSpan:
    """The span of one stream, which may be none."""

    __slots__ = ("_span",)

    def __init__(self, span: Span | None = None) -> None:
        self._span = span

    @property
    def trace(self) -> str | None:
        """The trace's id, for log lines."""
        return None if self._span is None else f"{self._span.get_span_context().trace_id:032x}"

    def event(self, name: str, **attributes: Any) -> None:
        if self._span is not None:
            self._span.add_event(name, {k: v for k, v in attributes.items() if v is not None})

    def end(self, outcome: str) -> None:
        if self._span is None:
            return
        self._span.set_attribute("pulsify.outcome", outcome)
        if outcome in SERVERS_FAULT:
            from opentelemetry.trace import StatusCode

            self._span.set_status(StatusCode.ERROR, outcome)
        self._span.end()


class Traces:
    """What makes spans. close: sends what is left, and waits for it."""

    def __init__(self, tracer: Tracer | None = None, close: Callable[[], None] | None = None) -> None:
        self._tracer, self.close = tracer, close

    def stream(self, about: Mapping[str, Any], parent: str | None) -> StreamSpan:
        """about: facts by name, as in log lines. parent: the header `traceparent`."""
        if self._tracer is None:
            return StreamSpan()
        from opentelemetry.trace import SpanKind
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        context = TraceContextTextMapPropagator().extract({"traceparent": parent}) if parent else None
        attributes = {f"pulsify.{name}": value for name, value in about.items()}
        return StreamSpan(self._tracer.start_span("pulsify.stream", context, SpanKind.SERVER, attributes))


def open_traces(instance: str) -> Traces:
    """As the program or the environment says. instance: what tells this process from others."""
    try:
        from opentelemetry import trace
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError:
        return Traces()
    if os.environ.get("OTEL_SDK_DISABLED", "").lower() == "true":
        return Traces()
    if isinstance(trace.get_tracer_provider(), TracerProvider):
        return Traces(trace.get_tracer("pulsify", __version__))
    if not any(os.environ.get(name) for name in ENDPOINTS):
        return Traces()
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    except ImportError:
        log.warning("traces are not sent: pip install 'pulsify[otel]'")
        return Traces()
    known = os.environ.get("OTEL_SERVICE_NAME") or "service.name=" in os.environ.get("OTEL_RESOURCE_ATTRIBUTES", "")
    facts = {"service.version": __version__, "service.instance.id": instance}
    provider = TracerProvider(resource=Resource.create(facts if known else {**facts, "service.name": "pulsify"}))
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    log.info("a trace of every stream is sent")
    return Traces(provider.get_tracer("pulsify", __version__), provider.shutdown)
