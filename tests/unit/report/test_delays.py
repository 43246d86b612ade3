"""Where delay comes from: what the chain adds is the delay, whatever the model."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from pulsify.analysis.options import Options
from pulsify.core.errors import PulsifyError
from pulsify.core.spec import lateness
from pulsify.report.delays import delay_figures
from pulsify.report.figures import Figures
from pulsify.report.stages import analysed, open_batch
from tests.models import look_ahead, mirrored, mirrored_lstm, model, strided, two_rates
from tests.unit.graphs import parsed

ZOO = Path(__file__).parents[2] / "zoo" / "fixtures" / "legacy"


def delays(source: object, pulse: int | None = None, **options: object) -> list[Figures]:
    found = delay_figures(analysed(open_batch(source), pulse, Options(**options)).course, 1000)  # type: ignore[arg-type]
    loaded: list[Figures] = json.loads(json.dumps(found, allow_nan=False))
    return loaded


def added(found: Figures) -> list[tuple[str, float]]:
    return [(w["node"], w["added"]) for w in found["waits"]]


@pytest.mark.parametrize("path", sorted(ZOO.glob("*.onnx")), ids=lambda p: p.stem)
def test_what_the_chain_adds_is_the_delay_of_every_model_of_the_zoo(path: Path) -> None:
    try:
        tracer = open_batch(path)
        plan = analysed(tracer, None, Options("grow"))
    except PulsifyError:
        pytest.skip("refused: it has no delay")
    for grow in (1, 3):
        plan = analysed(tracer, grow * plan.ctx.pulse, Options("grow")) if grow > 1 else plan
        outputs = {o.name: o for o, _ in plan.outputs}
        found = delay_figures(plan.course)
        assert [d["output"] for d in found] == [n for n, o in outputs.items() if o.axis is not None]
        for d in found:
            out = outputs[d["output"]]
            late = lateness(out, plan.ctx.phase)
            assert d["delay"] == float(late) and d["delay_input_frames"] == float(late / out.rate)
            for part in ("chain", "waits"):
                assert sum(s["added_input_frames"] for s in d[part]) == d["delay_input_frames"], part
            assert all(w["added"] for w in d["waits"]) and all(w["says"] for w in d["waits"] if w["added"] > 0)
            assert d["chain"][0]["op"] == "input" and d["chain"][-1]["late_input_frames"] == d["delay_input_frames"]


def test_each_layer_is_told_with_the_frames_it_reads_ahead() -> None:
    (found,) = delays(ZOO / "conv_same.onnx")
    assert added(found) == [("/0/Conv", 2), ("/2/Conv", 2), ("/4/Conv", 1)]
    assert [w["late_input_frames"] for w in found["waits"]] == [2, 4, 5] and found["delay_ms"] == 5
    (slow,) = delays(ZOO / "conv_same_stride.onnx")
    assert [w["rate"] for w in slow["waits"]] == ["1", "1/4"], "in frames that it reads"
    assert sum(w["added_input_frames"] for w in slow["waits"]) == slow["delay_input_frames"] == 5


def test_attention_waits_for_its_chunk_at_a_pulse_that_is_shorter() -> None:
    (short,), (whole,) = delays(ZOO / "attn_chunk_lookahead.onnx", 1), delays(ZOO / "attn_chunk_lookahead.onnx", 4)
    assert [w["op"] for w in short["waits"]] == ["attention"] and short["waits"][0]["why"] == "look"
    assert short["waits"][0]["added"] == short["delay"] > whole["delay"] == 4


def test_a_pad_is_told_with_what_reads_it() -> None:
    (found,) = delays(
        model(
            parsed("Pad x pads > h mode='constant'; Conv h w > y"),
            {"x": [1, 2, "T"]},
            ["y"],
            {"pads": np.array([0, 0, 1, 0, 0, 1]), "w": np.ones((2, 2, 3), np.float32)},
        )
    )
    assert [(s["op"], s["added"]) for s in found["chain"]] == [("input", 0), ("Pad", -1), ("Conv", 2)]
    assert [(w["op"], w["added"]) for w in found["waits"]] == [("Conv", 1)]


def test_the_start_is_waited_for_only_without_an_opening() -> None:
    (opened,), (waiting,) = delays(mirrored(), 1), delays(mirrored(), 1, opening=False)
    assert sum(w["added"] for w in opened["waits"]) == opened["delay"]
    assert waiting["delay"] > opened["delay"] and "start" in [s["why"] for s in waiting["chain"]]
    assert all(sum(s["added_input_frames"] for s in d["chain"]) == d["delay"] for d in delays(mirrored_lstm(), 1))


def test_outputs_have_chains_of_their_own_and_times_count_the_first_input() -> None:
    for proto in (look_ahead(), strided(), two_rates()):
        for d in delays(proto):
            assert sum(s["added_input_frames"] for s in d["chain"]) == d["delay_input_frames"] == d["delay_ms"]
