"""What is in deploy/ is what its readers take: linters, and the server's own options and metrics."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import pytest

import pulsify
from pulsify.cli.serve import serve
from pulsify.serve.exposition import Exposition
from pulsify.serve.hosted import Machine
from pulsify.serve.service import Service, Settings
from pulsify.serve.sources import of_stream
from tests.models import look_ahead

ROOT = Path(__file__).parents[1]
DEPLOY = ROOT / "deploy"
MANIFESTS = sorted(p for p in DEPLOY.glob("kubernetes/*/*.yaml") if p.name != "kustomization.yaml")
DASHBOARD = json.loads((DEPLOY / "grafana" / "pulsify.json").read_text())
METRIC = re.compile(r"\b(?:pulsify|process)_[a-z_]+\b")


def tool(name: str) -> str:
    """From this environment, or from the system."""
    found = shutil.which(name, path=str(Path(sys.executable).parent)) or shutil.which(name)
    if found is None:
        pytest.skip(f"{name} is not installed")
    return found


def ran(*command: str | Path, **more: Any) -> str:
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=60, **more)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def options(*arguments: str) -> dict[str, Any]:
    """As `pulsify serve` reads them; an error if it does not."""
    with serve.make_context("serve", list(arguments)) as context:
        return context.params


# ---- Docker


def instructions(name: str) -> Iterator[str]:
    """What follows this instruction, each time."""
    text = (DEPLOY / "Dockerfile").read_text().replace("\\\n", " ")
    yield from (line.split(maxsplit=1)[1] for line in text.splitlines() if line.split(maxsplit=1)[:1] == [name])


def test_the_dockerfile_has_nothing_to_complain_about() -> None:
    assert ran(tool("hadolint"), "--failure-threshold", "style", DEPLOY / "Dockerfile") == ""


def test_the_dockerfile_copies_what_is_there_and_starts_what_there_is() -> None:
    let_in = [line[1:] for line in (DEPLOY / "Dockerfile.dockerignore").read_text().splitlines() if line[:1] == "!"]
    for copied in instructions("COPY"):
        for name in copied.split()[:-1]:
            assert (ROOT / name).exists() and any(fnmatch(name, pattern) for pattern in let_in), name
    project = (ROOT / "pyproject.toml").read_text()
    for extra in set(re.findall(r"whl\)\[([a-z,]+)\]", (DEPLOY / "Dockerfile").read_text())):
        assert all(re.search(rf"^{name} = \[", project, re.M) for name in extra.split(","))
    for command in map(json.loads, instructions("ENTRYPOINT")):
        assert command[:2] == ["pulsify", "serve"] and options(*command[2:])["host"] == "0.0.0.0"


# ---- systemd


def test_systemd_takes_the_unit(tmp_path: Path) -> None:
    unit = tmp_path / "pulsify.service"
    text = (DEPLOY / "pulsify.service").read_text()
    command = next(line for line in text.splitlines() if line.startswith("ExecStart="))
    assert command.startswith("ExecStart=/opt/pulsify/bin/pulsify serve ")
    unit.write_text(text.replace("/opt/pulsify/bin/pulsify", sys.executable))  # it must be there
    assert "pulsify.service" not in ran(tool("systemd-analyze"), "verify", "--man=no", unit)
    limit = re.search(r"TimeoutStopSec=(\d+)", text)
    assert limit is not None and int(limit[1]) > options("--config", str(DEPLOY / "server.toml"))["drain"] + 10


# ---- Kubernetes


def documents(*paths: Path) -> list[dict[str, Any]]:
    yaml = pytest.importorskip("yaml")
    return [each for path in paths for each in yaml.safe_load_all(path.read_text())]


@pytest.mark.parametrize("path", MANIFESTS, ids=lambda path: path.name)
def test_manifests_are_what_kubernetes_takes(path: Path) -> None:
    validate = pytest.importorskip("kubernetes_validate")
    for document in documents(path):
        validate.validate(document, validate.latest_version(), strict=True)


@pytest.mark.parametrize("variant", ["cpu", "cuda"])
def test_variants_are_built(variant: str) -> None:
    yaml, validate = pytest.importorskip("yaml"), pytest.importorskip("kubernetes_validate")
    built = list(yaml.safe_load_all(ran(tool("kubectl"), "kustomize", DEPLOY / "kubernetes" / variant)))
    for document in built:
        validate.validate(document, validate.latest_version(), strict=True)
    server = next(d for d in built if (d["kind"], d["metadata"]["name"]) == ("Deployment", "pulsify"))
    (container,) = server["spec"]["template"]["spec"]["containers"]
    assert container["image"] == f"pulsify:{variant}"
    assert ("nvidia.com/gpu" in container["resources"]["limits"]) == (variant == "cuda")


def test_pods_have_what_they_ask_for_and_time_to_drain() -> None:
    (server,) = documents(DEPLOY / "kubernetes" / "cpu" / "deployment.yaml")
    pod = server["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    settings = options("--config", str(DEPLOY / "kubernetes" / "cpu" / "server.toml"))
    assert pod["terminationGracePeriodSeconds"] > settings["drain"] + 10
    assert {m["name"] for m in container["volumeMounts"]} == {v["name"] for v in pod["volumes"]}
    mounts = [m["mountPath"] for m in container["volumeMounts"]]
    assert settings["token_file"][0] in mounts and Path(container["args"][1]).parent.as_posix() in mounts
    (port,) = container["ports"]
    assert port["containerPort"] == settings["port"]
    probes = [container[f"{name}Probe"]["httpGet"] for name in ("startup", "liveness", "readiness")]
    assert [p["path"] for p in probes] == ["/health", "/health", "/ready"]
    redis = documents(DEPLOY / "kubernetes" / "cpu" / "redis.yaml")[1]
    assert settings["store"] == f"redis://{redis['metadata']['name']}:{redis['spec']['ports'][0]['port']}"


# ---- Prometheus and Grafana


@pytest.fixture(scope="module")
def metrics() -> set[str]:
    """All that the server shows."""
    stream = of_stream("m", pulsify.stream(look_ahead("B"), 4, verify=False), None)
    service = Service([stream], Settings(Machine(most=2, calibrate=False)))
    text = asyncio.run(Exposition(service).render(""))[0].decode()
    out = set()
    for line in text.splitlines():
        if line.startswith("# TYPE "):
            _, _, name, kind = line.split()
            out |= {name} if kind != "histogram" else {f"{name}_{part}" for part in ("bucket", "sum", "count")}
    return out


def expressions() -> list[str]:
    """Of the dashboard, as Prometheus gets them."""
    texts = [t["expr"] for p in DASHBOARD["panels"] for t in p.get("targets", [])]
    assert texts
    return [text.replace("$__rate_interval", "5m") for text in texts]


def test_rules_and_configuration(tmp_path: Path) -> None:
    folder = DEPLOY / "prometheus"
    ran(tool("promtool"), "check", "rules", "rules.yml", cwd=folder)
    ran(tool("promtool"), "test", "rules", "rules_test.yml", cwd=folder)
    ran(tool("promtool"), "check", "config", "--syntax-only", "prometheus.yml", cwd=folder)


def test_the_dashboard_asks_what_prometheus_understands(tmp_path: Path) -> None:
    rules = [{"record": f"panel:{number}", "expr": text} for number, text in enumerate(expressions())]
    (tmp_path / "rules.yml").write_text(json.dumps({"groups": [{"name": "dashboard", "rules": rules}]}))
    ran(tool("promtool"), "check", "rules", tmp_path / "rules.yml")


def test_rules_and_dashboard_name_metrics_that_there_are(metrics: set[str]) -> None:
    rules = (DEPLOY / "prometheus" / "rules.yml").read_text()
    named = set(METRIC.findall(rules)) | set(METRIC.findall(" ".join(expressions())))
    variables = " ".join(v["query"]["query"] for v in DASHBOARD["templating"]["list"][1:])
    assert not (named | set(METRIC.findall(variables))) - metrics
    assert len(named) >= 15


def test_the_dashboard_is_one_by_grafanas_schema() -> None:
    """Read and written by Grafana's own types, it is the same: no key and no value that they do not know."""
    dashboard = pytest.importorskip("grafana_foundation_sdk.models.dashboard")
    encoder = pytest.importorskip("grafana_foundation_sdk.cog.encoder")
    plugins = pytest.importorskip("grafana_foundation_sdk.cog.plugins")
    plugins.register_default_plugins()
    read = json.loads(encoder.JSONEncoder().encode(dashboard.Dashboard.from_json(DASHBOARD)))
    assert list(lost(DASHBOARD, read)) == []
    assert len({p["id"] for p in DASHBOARD["panels"]}) == len(DASHBOARD["panels"])
    cells = [
        (x, y)
        for grid in (p["gridPos"] for p in DASHBOARD["panels"])
        for x in range(grid["x"], grid["x"] + grid["w"])
        for y in range(grid["y"], grid["y"] + grid["h"])
    ]
    assert len(cells) == len(set(cells)) and max(x for x, _ in cells) < 24


def lost(before: Any, after: Any, where: str = "") -> Iterator[str]:
    """What of the one is not in the other."""
    if isinstance(before, dict) and isinstance(after, dict):
        for key, value in before.items():
            yield from lost(value, after.get(key), f"{where}/{key}")
    elif isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        for number, (one, other) in enumerate(zip(before, after, strict=True)):
            yield from lost(one, other, f"{where}/{number}")
    elif before != after:
        yield where
