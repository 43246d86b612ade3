"""Figures of several processes as those of one server.

Counters and histograms add up, those of workers that are gone included: no counter ever falls.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from prometheus_client.core import Metric

Family = dict[str, Any]
LASTING = ("counter", "histogram")


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


RULES: dict[str, Callable[[Sequence[float]], float]] = {
    "pulsify_build_info": max,
    "pulsify_duty_ratio": _mean,
    "pulsify_last_reload_successful": min,
    "pulsify_ready": max,
    "pulsify_store_up": min,
    "process_max_fds": min,
    "process_open_fds": max,
    "process_start_time_seconds": min,
    "python_info": max,
}  # by sample; all others add up


def packed(metrics: Iterable[Metric]) -> list[Family]:
    """As they travel."""
    return [
        {
            "name": metric.name,
            "about": metric.documentation,
            "type": metric.type,
            "samples": [[sample.name, dict(sample.labels), sample.value] for sample in metric.samples],
        }
        for metric in metrics
    ]


def lasting(families: Iterable[Family]) -> list[Family]:
    """What remains true of a process that is gone."""
    return [family for family in families if family["type"] in LASTING]


def merged(processes: Iterable[Sequence[Family]]) -> list[Family]:
    """One family of each name, one sample of each name and labels."""
    heads: dict[str, Family] = {}
    values: dict[str, dict[tuple[str, tuple[tuple[str, str], ...]], list[float]]] = {}
    for families in processes:
        for family in families:
            name = family["name"]
            heads.setdefault(name, family)
            samples = values.setdefault(name, {})
            for sample, labels, value in family["samples"]:
                samples.setdefault((sample, tuple(labels.items())), []).append(value)
    return [
        {
            **head,
            "samples": [
                [sample, dict(labels), RULES.get(sample, sum)(each)] for (sample, labels), each in values[name].items()
            ],
        }
        for name, head in heads.items()
    ]


def unpacked(families: Iterable[Family]) -> list[Metric]:
    out = []
    for family in families:
        metric = Metric(family["name"], family["about"], family["type"])
        for sample, labels, value in family["samples"]:
            metric.add_sample(sample, labels, value)
        out.append(metric)
    return out
