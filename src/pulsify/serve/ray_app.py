"""More machines: the same server as replicas behind Ray's proxy, as many as their duty asks for. docs/scale.md

proxy ── websocket ──> replica 1   Service, one thread per model       a stream lives on one replica, and moves
      ── websocket ──> replica 2   the same models, the same key       by its snapshot alone: drained or killed,
                 \\                                                     its client comes back with its token and is
                  └── shared store (a folder, Redis): snapshots        taken up by another

serve run pulsify.serve.ray_app:app                        the built-in models; PULSIFY_STORE, PULSIFY_KEY
ray_app.application(["denoise=gtcrn.onnx@16000"], ...)     or in Python, with everything said
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ray import serve

from pulsify.core.errors import InvalidArgument
from pulsify.serve.app import Application
from pulsify.serve.hosted import Machine
from pulsify.serve.service import Service, Settings
from pulsify.serve.sources import Meaning, open_sources, parse_source
from pulsify.serve.store import open_store
from pulsify.serve.tokens import tokens

DUTY = "duty"  # the share of its time for which the busiest model of a replica computes
STORE, KEY, TOKEN = "PULSIFY_STORE", "PULSIFY_KEY", "PULSIFY_TOKEN"


@dataclass(frozen=True)
class Replicas:
    """How many, and when there are more. target: the duty beyond which one more is started. cpus: of Ray, each."""

    least: int = 1
    most: int = 8
    target: float = 0.6
    cpus: float = 1.0
    gpus: float = 0.0
    up_seconds: float = 10.0
    down_seconds: float = 300.0
    drain_seconds: float = 30.0


def application(
    sources: Sequence[str] = (),
    *,
    store: str,
    key: str,
    replicas: Replicas | None = None,
    machine: Machine | None = None,
    token: str | None = None,
    verify: bool = True,
) -> serve.Application:
    """What `serve.run` takes. sources: as on the command line. store, key: shared by all replicas: so streams move."""
    if store == "memory" or not key:
        raise InvalidArgument(
            "replicas share a store and a key: a folder all of them see, or redis://..., and a secret"
        )
    many = replicas or Replicas()
    host = machine or Machine()

    def opened() -> Application:
        """On the replica itself: models are opened there, each process for itself."""
        served = open_sources([parse_source(text) for text in sources], Meaning(None, verify, {}), None)
        settings = Settings(
            host, tokens=tokens([token] if token else []), key=key.encode(), drain_seconds=many.drain_seconds
        )
        _here.append(Service(served, settings, open_store(store, settings.keep_seconds)))
        return Application(_here[-1])

    @serve.ingress(opened)
    class Streams:
        def record_autoscaling_stats(self) -> dict[str, float]:
            return {DUTY: duty(_here[-1])} if _here else {}

    deployed: Any = serve.deployment(
        Streams,
        name="pulsify",
        max_ongoing_requests=host.most * 4,  # admission is the server's own: it knows what there is time for
        ray_actor_options={"num_cpus": many.cpus, "num_gpus": many.gpus},
        graceful_shutdown_timeout_s=many.drain_seconds + 10,
        autoscaling_config={
            "min_replicas": many.least,
            "max_replicas": many.most,
            "upscale_delay_s": many.up_seconds,
            "downscale_delay_s": many.down_seconds,
            "policy": {"policy_function": "pulsify.serve.ray_app:by_duty", "policy_kwargs": {"target": many.target}},
        },
    )
    bound: serve.Application = deployed.bind()
    return bound


def duty(service: Service) -> float:
    """Of the model whose thread has the least time left, or of the streams that are here, if that is more."""
    busy = max((h.scheduler.meter.duty for h in service.models.values()), default=0.0)
    return max(busy, service.used)


def wanted(duties: Sequence[float], target: float, least: int, most: int) -> int:
    """As many replicas as bring the mean duty down to the target."""
    if not duties:
        return least
    return min(max(math.ceil(sum(duties) / target - 1e-9), least), most)


def by_duty(context: Any, target: float = 0.6, **_: Any) -> tuple[int, dict[str, Any]]:
    """Ray's question: how many? What a replica has not told yet counts as nothing."""
    told = (context.aggregated_metrics or {}).get(DUTY, {})
    least, most = context.capacity_adjusted_min_replicas, context.capacity_adjusted_max_replicas
    return wanted(list(told.values()), target, least, most), {}


_here: list[Service] = []  # of this process: a replica has one


def __getattr__(name: str) -> Any:
    """`serve run pulsify.serve.ray_app:app`: the built-in models, where and with which key says the environment."""
    if name != "app":
        raise AttributeError(name)
    store, key = os.environ.get(STORE, ""), os.environ.get(KEY, "")
    if not store or not key:
        raise InvalidArgument(f"{STORE} (a folder all machines see, or redis://...) and {KEY} (a secret) must be set")
    return application(store=store, key=key, token=os.environ.get(TOKEN))
