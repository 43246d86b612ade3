"""The seam: any back end runs the same streams, states travel between them, and a new one is a module and a name."""

from __future__ import annotations

import inspect
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import onnx
import pytest
from click.testing import CliRunner

import pulsify
from pulsify.backends import registry
from pulsify.backends.reference import backend as reference
from pulsify.backends.seam import StepProgram
from pulsify.cli.main import main
from tests import models
from tests.models import close, frames, run_batch, run_stream

PULSE = 4
MODELS = {
    "look_ahead": models.look_ahead("B"),
    "causal": models.causal("B"),
    "with_length": models.with_length("B"),
    "tokens": models.tokens(),
}


def sound(name: str, length: int = 27) -> Any:
    if name == "tokens":
        return np.random.default_rng(0).integers(0, 7, (1, length))
    return frames(1, 2, length)


def batch(name: str, x: Any) -> Any:
    feeds = {"x": x} | ({"length": np.array([x.shape[-1]])} if name == "with_length" else {})
    return run_batch(MODELS[name], feeds)["y"]


def alone(result: Any) -> Any:
    return result["y"] if isinstance(result, dict) else result


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("backend", registry.names())
def test_every_back_end_is_the_batch_model(name: str, backend: str) -> None:
    stream, x = pulsify.stream(MODELS[name], pulse=PULSE, verify=False), sound(name)
    session = stream.session(backend=backend, padding=float("nan"))
    parts = [alone(r) for r in session.iterate(np.split(x, [3, 4, 12, 20], -1))]
    close(np.concatenate(parts, 2), batch(name, x))


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("at", [0, 3, 16, 25])
def test_states_travel_between_back_ends(name: str, at: int) -> None:
    """And are the same bytes wherever the stream ran, up to the last bit of a sum."""
    stream, x = pulsify.stream(MODELS[name], pulse=PULSE, verify=False), sound(name)
    for one, other in (("ort", "reference"), ("reference", "ort")):
        a, b = stream.session(backend=one), stream.session(backend=other)
        first = alone(a.push(x[..., :at]))
        b.push(sound(name, 9))  # something to forget
        b.restore(a.state())
        assert len(b.state()) == len(a.state())
        parts = [first, alone(b.push(x[..., at:])), alone(b.flush())]
        close(np.concatenate(parts, 2), batch(name, x))


@pytest.mark.parametrize("backend", registry.names())
def test_pools_run_on_every_back_end(backend: str) -> None:
    proto = models.look_ahead("B")
    stream = pulsify.stream(proto, pulse=PULSE, verify=False)
    pool, xs = pulsify.Pool(stream, 3, backend=backend), [frames(1, 2, n, seed=n) for n in (5, 18, 27)]
    lanes = [pool.open() for _ in xs]
    moved = stream.session(backend="ort")
    first = moved.push(xs[2][..., :10])
    lanes[2].restore(moved.state())
    xs[2] = xs[2][..., 10:]
    for lane, x in zip(lanes, xs, strict=True):
        lane.push(x)
        lane.flush()
    results = pool.run()
    close(results[lanes[0]], run_batch(proto, xs[0])["y"])
    close(results[lanes[1]], run_batch(proto, xs[1])["y"])
    close(np.concatenate([first, results[lanes[2]]], 2), run_batch(proto, frames(1, 2, 27, seed=27))["y"])
    lane = pool.open()  # in a slot that was used
    lane.push(xs[1])
    lane.flush()
    close(pool.run()[lane], run_batch(proto, xs[1])["y"])


def test_counters_of_a_pool_without_slots_are_set_back() -> None:
    proto, x = models.look_ahead("B"), frames(1, 2, 200)
    stream = pulsify.stream(proto, pulse=PULSE, verify=False)
    pool = pulsify.Pool(stream, 1, backend="reference")
    lane = pool.open()
    lane.push(x[..., :40])
    first = pool.run()[lane]
    ahead = stream.spec.unknown_length // 2 // stream.spec.rebase * stream.spec.rebase
    ahead -= ahead % PULSE
    lane._framer.pulses += ahead // PULSE
    lane._framer.received = {"x": 40 + ahead}
    lane.push(x[..., 40:])
    lane.flush()
    close(np.concatenate([first, pool.run()[lane]], 2), run_batch(proto, x)["y"])
    assert lane._framer.rebased > 0


def test_a_name_that_is_none_lists_those_there_are() -> None:
    stream = pulsify.stream(models.causal("B"), pulse=PULSE, verify=False)
    uses: list[Any] = [
        lambda: stream.session(backend="gpu"),
        lambda: stream.session(batch=2, independent=True, backend="gpu"),
        lambda: pulsify.Pool(stream, backend="gpu"),
        lambda: pulsify.verify(models.causal("B"), stream, backend="gpu"),
    ]
    for use in uses:
        with pytest.raises(pulsify.InvalidArgument, match=r"'gpu'.*there are ort, reference"):
            use()


def test_one_whose_dependency_is_missing_says_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "acme_backend.py").write_text("import acme_runtime\nBACKEND = acme_runtime.Backend()\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(registry, "_ENTRIES", dict(registry._ENTRIES))
    registry.register("acme", "acme_backend", "pulsify[acme]")
    stream = pulsify.stream(models.causal(), pulse=PULSE, verify=False)
    with pytest.raises(pulsify.InvalidArgument, match=r"needs acme_runtime.*pip install 'pulsify\[acme\]'"):
        stream.session(backend="acme")


def test_a_back_end_is_a_module_and_a_name(monkeypatch: pytest.MonkeyPatch) -> None:
    module, seen = ModuleType("acme_backend"), list[int | None]()

    class Acme(reference.Reference):
        def lower(self, model: Any, spec: Any, batch: int | None) -> StepProgram:
            seen.append(batch)
            return super().lower(model, spec, batch)

    module.BACKEND = Acme()  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "acme_backend", module)
    monkeypatch.setattr(registry, "_ENTRIES", dict(registry._ENTRIES))
    registry.register("acme", "acme_backend", "acme")
    stream, x = pulsify.stream(models.causal("B"), pulse=PULSE, verify=False), frames(1, 2, 11)
    close(run_stream(stream.session(backend="acme"), x, [5]), run_batch(models.causal("B"), x)["y"])
    stream.session(backend="acme", batch=3)
    pulsify.Pool(stream, backend="acme")
    assert seen == [1, 2, None]


def test_the_reference_is_small() -> None:
    source = inspect.getsource(reference)
    assert source.count("\n") < 80
    assert "io_binding" not in source


def test_the_command_line_takes_a_back_end(tmp_path: Path) -> None:
    batch_file, stream_file = str(tmp_path / "batch.onnx"), str(tmp_path / "stream.onnx")
    onnx.save(models.causal(), batch_file)
    pulsify.stream(batch_file, pulse=PULSE, verify=False).save(stream_file)
    np.save(tmp_path / "x.npy", frames(1, 2, 9))
    run = CliRunner().invoke
    assert run(main, ["verify", batch_file, stream_file, "-n", "9", "--backend", "reference"]).exit_code == 0
    said = run(main, ["run", stream_file, str(tmp_path / "x.npy"), "--backend", "reference", "--compare", batch_file])
    assert said.exit_code == 0, said.output
    for command in (["verify", batch_file, stream_file], ["run", stream_file, str(tmp_path / "x.npy")]):
        wrong = run(main, [*command, "--backend", "gpu"])
        assert wrong.exit_code != 0
        assert "there are ort, reference" in wrong.output
