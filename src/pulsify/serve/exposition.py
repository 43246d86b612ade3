"""Figures of a server as Prometheus reads them: `GET /metrics`, in its text format or as OpenMetrics."""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, TypeAlias

import onnxruntime
from prometheus_client import CollectorRegistry, PlatformCollector, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from pulsify import __version__
from pulsify.serve.metrics import Times
from pulsify.serve.workers.families import merged, unpacked

if TYPE_CHECKING:
    from pulsify.serve.hosted import Hosted
    from pulsify.serve.service import Service

NAMES = 100  # of tokens, as labels
Row: TypeAlias = tuple[tuple[str, ...], float]


class _Listed:
    """A registry, as far as it is encoded."""

    def __init__(self, metrics: list[Metric]) -> None:
        self._metrics = metrics

    def collect(self) -> list[Metric]:
        return self._metrics


class Exposition(Collector):
    """The server's own figures, and those of its process."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._registry = CollectorRegistry()
        self._registry.register(self)
        ProcessCollector(registry=self._registry)
        PlatformCollector(registry=self._registry)

    async def render(self, accept: str) -> tuple[bytes, str]:
        """The body and its content type, in the best format that the header `Accept` names; of all workers."""
        encode, kind = choose_encoder(accept)
        siblings = self._service.siblings
        if siblings is None:
            return encode(self._registry), kind
        return encode(_Listed(unpacked(merged(await siblings.families(self.own()))))), kind

    def own(self) -> list[Metric]:
        """Of this process."""
        return list(self._registry.collect())

    def describe(self) -> Iterable[Metric]:
        return []

    def collect(self) -> Iterator[Metric]:
        service = self._service
        yield _gauge("build_info", "Versions of this server; always 1.", ("version", "python", "onnxruntime"),
                     [((__version__, platform.python_version(), onnxruntime.__version__), 1)])  # fmt: skip
        yield _gauge("ready", "1 if streams are accepted.", (), [((), float(service.ready))])
        yield from self._models()
        figures = service.figures
        yield _counter("store_calls", "Calls of the store of snapshots, by outcome.", ("outcome",),
                       (((name,), count) for name, count in service.vault.outcomes.items()))  # fmt: skip
        yield _gauge("store_up", "0 while the store of snapshots is left alone, since it does not answer.", (),
                     [((), float(not service.vault.open))])  # fmt: skip
        reloaded = [] if figures.reloaded is None else [((), float(figures.reloaded))]
        yield _gauge("last_reload_successful", "0 if tokens or certificates could not be read again.", (), reloaded)
        yield _counter("streams_ended", "Streams that are over, by how they ended.", ("model", "outcome"),
                       figures.ended.items())  # fmt: skip
        known = [
            "",
            *(name for name, _ in service.tokens.hashes[:NAMES]),
        ]  # of now
        yield _counter("streams_opened", "Streams that began, by the name of the token that was shown.", ("token",),
                       (((name,), figures.opened[name]) for name in known if name in figures.opened))  # fmt: skip
        yield _counter("rejections", "Requests that were not let in, by error code.", ("reason",),
                       (((reason,), count) for reason, count in figures.rejections.items()))  # fmt: skip
        yield _histogram("event_loop_lag_seconds", "By how much the event loop was late.", (), [((), figures.loop)])

    def _models(self) -> Iterator[Metric]:
        service = self._service
        hosts, taken = service.models, service.taken()

        def each(read: Callable[[str, Hosted], float]) -> list[Row]:
            return [((name,), read(name, hosted)) for name, hosted in hosts.items()]

        def of_meter(name: str) -> list[Row]:
            return each(lambda _, hosted: getattr(hosted.scheduler.meter, name))

        model = ("model",)
        yield _gauge("streams", "Open streams.", model, each(lambda name, _: taken[name]))
        yield _gauge("capacity_streams", "Streams for which there is time, as measured.", model,
                     each(lambda _, hosted: service.room(hosted)))  # fmt: skip
        yield _gauge("duty_ratio", "Share of the last seconds in which the model's thread computed.", model,
                     of_meter("duty"))  # fmt: skip
        yield _counter("rounds", "Batches computed.", model, of_meter("rounds"))
        yield _counter("pulses", "Pulses computed, of all streams.", model, of_meter("pulses"))
        yield _counter("busy_seconds", "Time in which the model's thread computed.", model, of_meter("busy"))
        for what, about in (("messages", "Messages"), ("bytes", "Bytes of messages")):
            rows = [
                ((name, way), float(getattr(traffic, f"{way}_{what}")))
                for name, traffic in service.figures.traffic.items()
                for way in ("received", "sent")
            ]
            yield _counter(what, f"{about} of streams, by direction.", ("model", "direction"), rows)
        yield _histogram("lag_seconds", "From a stream's last message to results handed to its socket.", model,
                         [((name,), traffic.lag) for name, traffic in service.figures.traffic.items()])  # fmt: skip
        yield _histogram("stage_seconds", "Parts of the lag: waiting for a round, the round, handing results out.",
                         ("model", "stage"), self._stages())  # fmt: skip

    def _stages(self) -> Iterator[tuple[tuple[str, ...], Times]]:
        for name, hosted in self._service.models.items():
            meter = hosted.scheduler.meter
            yield (name, "queue"), meter.queue
            yield (name, "compute"), meter.compute
            yield (name, "deliver"), self._service.figures.of(name).deliver


def _filled(family: GaugeMetricFamily | CounterMetricFamily, rows: Iterable[Row]) -> Metric:
    for labels, value in rows:
        family.add_metric(labels, value)
    return family


def _gauge(name: str, about: str, labels: tuple[str, ...], rows: Iterable[Row]) -> Metric:
    return _filled(GaugeMetricFamily(f"pulsify_{name}", about, labels=labels), rows)


def _counter(name: str, about: str, labels: tuple[str, ...], rows: Iterable[Row]) -> Metric:
    return _filled(CounterMetricFamily(f"pulsify_{name}", about, labels=labels), rows)


def _histogram(name: str, about: str, labels: tuple[str, ...], rows: Iterable[tuple[tuple[str, ...], Times]]) -> Metric:
    family = HistogramMetricFamily(f"pulsify_{name}", about, labels=labels)
    for values, times in rows:
        family.add_metric(values, times.buckets(), times.seconds)
    return family
