"""What Prometheus reads: its own linter finds nothing, and every figure counts what it says."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
from collections.abc import Iterator

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus

import pulsify
from pulsify.serve.metrics import EDGES, Times
from pulsify.serve.service import Settings
from pulsify.serve.sources import of_stream
from pulsify.serve.tokens import tokens
from tests.models import frames, look_ahead
from tests.serve.live import opened, serving

STREAM = pulsify.stream(look_ahead("B"), 4, verify=False)
X = frames(1, 2, 40)
Figures = dict[tuple[str, tuple[str, ...]], float]


@pytest.fixture(scope="module")
def where() -> Iterator[str]:
    with serving([of_stream("m", STREAM, 100)], Settings(tokens=tokens(["T"]))) as (_, found):
        yield found


def text(where: str, accept: str = "") -> str:
    reply = httpx.get(f"http://{where}/metrics", headers={"Authorization": "Bearer T", "Accept": accept})
    assert reply.status_code == 200
    return reply.text


def figures(where: str) -> Figures:
    """By name and the values of the labels, in the order of the labels' names."""
    return {
        (sample.name, tuple(value for _, value in sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text(where))
        for sample in family.samples
    }


async def stream(where: str) -> None:
    async with connect(f"ws://{where}/v1/stream/m", additional_headers={"Authorization": "Bearer T"}) as ws:
        await ws.send('{"type": "open"}')
        await ws.recv()
        await ws.send(X.tobytes())
        assert isinstance(await ws.recv(), bytes)
        await ws.send('{"type": "flush"}')
        async for _ in ws:
            pass


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")
def test_the_linter_of_prometheus_finds_nothing(where: str) -> None:
    asyncio.run(stream(where))
    done = subprocess.run(["promtool", "check", "metrics"], input=text(where), capture_output=True, text=True)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


def test_every_figure_has_a_help_and_a_type(where: str) -> None:
    families = list(text_string_to_metric_families(text(where)))
    assert families and all(each.documentation and each.type != "unknown" for each in families)
    names = {each.name for each in families}
    assert {"pulsify_build_info", "process_resident_memory_bytes", "process_cpu_seconds"} <= names
    assert [name for name in names if not name.startswith(("pulsify_", "process_", "python_"))] == []


def test_open_metrics_are_given_to_those_who_ask(where: str) -> None:
    body = text(where, "application/openmetrics-text; version=1.0.0")
    assert body.endswith("# EOF\n") and "pulsify_streams{" in body


def test_a_stream_is_counted_from_its_messages_to_its_end(where: str) -> None:
    before = figures(where)
    asyncio.run(stream(where))
    after = figures(where)

    def grown(name: str, *labels: str) -> float:
        return after.get((name, labels), 0.0) - before.get((name, labels), 0.0)

    assert grown("pulsify_streams_ended_total", "m", "done") == 1
    assert grown("pulsify_messages_total", "received", "m") == 3
    opening, ending = len('{"type": "open"}'), len('{"type": "flush"}')
    assert grown("pulsify_bytes_total", "received", "m") == X.nbytes + opening + ending
    assert grown("pulsify_bytes_total", "sent", "m") >= 3 * 40 * 4  # the frames of its output
    assert grown("pulsify_lag_seconds_count", "m") >= 1
    for stage in ("queue", "compute", "deliver"):
        assert grown("pulsify_stage_seconds_count", "m", stage) >= 1
    assert after["pulsify_streams", ("m",)] == 0


def test_rejections_are_counted_by_reason_alone(where: str) -> None:
    """Names that clients make up are no labels: they would have no end."""

    async def come(name: str, token: str) -> int:
        with pytest.raises(InvalidStatus) as refused:
            await connect(f"ws://{where}/v1/stream/{name}", additional_headers={"Authorization": f"Bearer {token}"})
        return refused.value.response.status_code

    before = figures(where)
    assert asyncio.run(come("m", "wrong")) == 401
    assert asyncio.run(come("nobody", "T")) == 404
    assert httpx.get(f"http://{where}/v1/models").status_code == 401
    after = figures(where)
    for reason, count in (("unauthorized", 2), ("unknown_model", 1)):
        key = ("pulsify_rejections_total", (reason,))
        assert after[key] - before.get(key, 0.0) == count
    assert "nobody" not in text(where)


def test_streams_are_counted_by_the_names_of_tokens() -> None:
    """Those of now: tokens that are taken away would add up."""

    async def come(where: str) -> None:
        async with connect(f"ws://{where}/v1/stream/m", additional_headers={"Authorization": "Bearer T"}) as ws:
            await opened(ws)

    def counted(where: str) -> Figures:
        return {k: v for k, v in figures(where).items() if k[0] == "pulsify_streams_opened_total"}

    settings = Settings(tokens=tokens(["T", "app:other"]))
    with serving([of_stream("m", STREAM, 100)], settings) as (service, where):
        assert not counted(where)
        asyncio.run(come(where))
        assert counted(where) == {("pulsify_streams_opened_total", ("token",)): 1.0}
        service.tokens = tokens(["now:T"])
        assert not counted(where)


def test_a_histogram_counts_up_to_each_edge() -> None:
    times = Times()
    for seconds in (0.0005, 0.001, 0.3, 100.0):
        times.add(seconds, 2)
    buckets = dict(times.buckets())
    assert (buckets["0.001"], buckets["0.2"], buckets["0.5"], buckets["+Inf"]) == (4, 4, 6, 8)
    assert len(buckets) == len(EDGES) + 1 and times.seconds == pytest.approx(2 * 100.3015)
