"""A span for every stream, if somebody wants them."""

from __future__ import annotations

import asyncio
import json
import sys
import threading
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed

import pulsify
from pulsify.serve import service as services
from pulsify.serve.service import Settings
from pulsify.serve.sources import of_stream
from pulsify.serve.tokens import tokens
from pulsify.serve.traces import ENDPOINTS, Traces, open_traces
from tests.models import frames, look_ahead
from tests.serve.live import opened, serving

STREAM = pulsify.stream(look_ahead("B"), 4, verify=False)
PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
SETTINGS = Settings(tokens=tokens(["app:s3cret"]))


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch) -> Any:
    pytest.importorskip("opentelemetry.sdk")
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    kept, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(kept))
    monkeypatch.setattr(services, "open_traces", lambda name: Traces(provider.get_tracer("test"), provider.shutdown))
    return kept


async def stream(where: str, *messages: bytes | str, **headers: str) -> str:
    head = {"Authorization": "Bearer s3cret", **headers}
    async with connect(f"ws://{where}/v1/stream/m", additional_headers=head) as ws:
        ready = await opened(ws)
        with suppress(ConnectionClosed):
            for message in messages:
                await ws.send(message)
            async for _ in ws:
                pass
        return str(ready["stream"])


def test_a_stream_is_a_span_of_its_clients_trace(spans: Any) -> None:
    with serving([of_stream("m", STREAM, None)], SETTINGS) as (_, where):
        name = asyncio.run(stream(where, frames(1, 2, 20).tobytes(), '{"type": "flush"}', traceparent=PARENT))
    (span,) = spans.get_finished_spans()
    assert f"{span.context.trace_id:032x}" == PARENT.split("-")[1]
    assert f"{span.parent.span_id:016x}" == PARENT.split("-")[2]
    told = dict(span.attributes)
    assert told.pop("pulsify.client").startswith("127.0.0.1:")
    assert told == {
        "pulsify.stream": name, "pulsify.model": "m", "pulsify.token": "app", "pulsify.outcome": "done",
    }  # fmt: skip
    assert [event.name for event in span.events] == ["opened", "flush"]


NO_PARENTS = (None, "", "nonsense", "00-0-0-0", "ff-" + "f" * 5000, f"00-{'0' * 32}-{'0' * 16}-01")


@pytest.mark.parametrize("parent", NO_PARENTS)
def test_a_client_that_does_not_trace_has_a_trace_of_its_own(spans: Any, parent: str | None) -> None:
    headers = {} if parent is None else {"traceparent": parent}
    with serving([of_stream("m", STREAM, None)], SETTINGS) as (_, where):
        asyncio.run(stream(where, b"123", **headers))
    (span,) = spans.get_finished_spans()
    assert span.parent is None and span.attributes["pulsify.outcome"] == "bad_frames"
    assert [event.name for event in span.events] == ["opened", "error"]
    assert span.events[1].attributes["code"] == "bad_frames"


def test_without_the_package_or_somewhere_to_send_them_there_are_none(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ENDPOINTS:
        monkeypatch.delenv(name, raising=False)
    assert open_traces("x").stream({"stream": "a"}, PARENT).trace is None
    monkeypatch.setenv(ENDPOINTS[0], "http://127.0.0.1:9")
    monkeypatch.setenv("OTEL_SDK_DISABLED", "true")
    assert open_traces("x").stream({}, None).trace is None
    monkeypatch.delenv("OTEL_SDK_DISABLED")
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    traces = open_traces("x")
    span = traces.stream({}, None)
    span.event("opened", rate=None)
    span.end("done")
    assert span.trace is None and traces.close is None


def test_spans_are_sent_where_the_environment_says(monkeypatch: pytest.MonkeyPatch, caplog: Any) -> None:
    pytest.importorskip("opentelemetry.exporter.otlp.proto.http")
    sent: list[tuple[str, bytes]] = []

    class Collector(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            sent.append((self.path, self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            return

    collector = ThreadingHTTPServer(("127.0.0.1", 0), Collector)
    threading.Thread(target=collector.serve_forever, daemon=True).start()
    monkeypatch.setenv(ENDPOINTS[0], f"http://127.0.0.1:{collector.server_port}")
    monkeypatch.delenv("OTEL_SDK_DISABLED", raising=False)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setenv("OTEL_SERVICE_NAME", "named-by-the-environment")
    with serving([of_stream("m", STREAM, None)], SETTINGS) as (_, where):
        name = asyncio.run(stream(where, '{"type": "flush"}'))
    collector.shutdown()
    (path, body), *_ = sent
    assert path == "/v1/traces" and name.encode() in body and b"named-by-the-environment" in body
    assert json.dumps(name) not in caplog.text
