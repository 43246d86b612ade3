"""Of a refused model: the way to the node that refuses, and ways out that do what they say."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import onnx
import pytest

import pulsify
from pulsify.core.errors import NotStreamable
from pulsify.core.refusal import SAMPLED, declare
from pulsify.report.document import Asked, report_figures
from pulsify.report.figures import Figures
from pulsify.report.refusal import cut, path_to
from pulsify.report.stages import open_batch
from pulsify.report.ways import ways_out
from tests.models import model, weights
from tests.unit.graphs import parsed

ZOO = Path(__file__).parents[2] / "zoo" / "fixtures" / "legacy"
REFUSED = [
    "attn_full", "attn_full_causal", "concat_time_double", "cumsum_reverse", "divide_by_length", "flip", "instancenorm",
    "lstm_bidirectional", "posenc_reverse", "softmax_time", "sort_time",
]  # fmt: skip


def refusal(path: Path, **options: Any) -> Figures:
    facts: Figures = json.loads(json.dumps(report_figures(Asked(str(path), **options)), allow_nan=False))
    found: Figures = facts["refusal"]
    return found


@pytest.mark.parametrize("name", REFUSED)
def test_the_way_leads_from_the_input_to_the_node_that_refuses(name: str) -> None:
    path = ZOO / f"{name}.onnx"
    try:
        pulsify.stream(path, verify=False)
    except NotStreamable as error:
        refused = error
    else:
        pytest.skip("it streams by now")
    found = refusal(path)
    assert (found["node"], found["reason"]) == (refused.node, refused.reason)
    steps, nodes = found["path"], {n.name: n for n in open_batch(path).model.nodes}
    assert steps[0]["op"] == "input" and steps[-1]["node"] == refused.node
    for before, after in pairwise(steps):
        assert before["wire"] in nodes[after["node"]].inputs, "each reads the one before it"
    assert found["ways"], "there is something to say"


def test_attention_that_looks_back_is_tried_with_caches() -> None:
    ways = {w["title"]: w for w in refusal(ZOO / "attn_full_causal.onnx")["ways"]}
    grow, kept = ways["Keep all of the past"], ways["Keep the last 256 frames"]
    assert grow["ok"] and grow["exact"] and grow["stream"]["grows"] and grow["stream"]["error"] < 1e-4
    assert grow["command"] == "pulsify stream attn_full_causal.onnx --unbounded grow -o stream.onnx"
    assert kept["ok"] and not kept["exact"] and kept["stream"]["exact_up_to"] >= 256
    change = ways["Bound how far attention looks back"]
    assert not change["tried"] and "masked_fill" in change["code"]


def two_outputs() -> onnx.ModelProto:
    return model(
        parsed("Conv x w > h; Relu h > y; ReduceMean h > m axes=[2] keepdims=1; Sub h m > z"),
        {"x": [1, 2, "T"]},
        ["y", "z"],
        {"w": weights(2, 2, 3)},
    )


def test_another_output_and_a_cut_in_front_are_tried(tmp_path: Path) -> None:
    path = tmp_path / "two.onnx"
    onnx.save(two_outputs(), path)
    found = refusal(path)
    ways = {w["title"]: w for w in found["ways"]}
    assert ways["Give out 'y' alone"]["ok"] and ways["Give out 'y' alone"]["stream"]["delays"] == [
        {"output": "y", "delay": 0}
    ]
    (front,) = (w for t, w in ways.items() if t.startswith("Cut the model"))
    assert front["ok"] and "extract_model('two.onnx', 'cut.onnx', ['x'], ['h'])" in front["code"]
    assert {r["wire"]: r["kind"] for r in found["reads"]} == {"h": "stream", "m": "fold"}
    assert [s["wire"] for s in found["path"]] == ["x", "h", "m", "z"], "by what it waits for, not by the shortest way"


def test_what_is_said_to_cut_a_model_cuts_it(tmp_path: Path) -> None:
    path = tmp_path / "two.onnx"
    onnx.save(onnx.shape_inference.infer_shapes(two_outputs()), path)  # onnx's checker wants shapes of outputs
    assert [o.name for o in cut(str(path), ("y",)).graph.output] == ["y"]
    onnx.utils.extract_model(str(path), str(tmp_path / "cut.onnx"), ["x"], ["h"])
    assert pulsify.stream(tmp_path / "cut.onnx").outputs[0].name == "h"
    with pytest.raises(ValueError, match="no value of the file"):
        cut(str(path), ("nowhere",))


def test_a_cut_is_told_with_the_inputs_that_it_needs(tmp_path: Path) -> None:
    path = tmp_path / "scaled.onnx"
    both = model(
        parsed("Relu x > h; Mul h s > r; ReduceMean r > m axes=[2] keepdims=1; Sub r m > z"),
        {"x": [1, 2, "T"], "s": [1, 2, 1]},
        ["h", "z"],
    )
    onnx.save(both, path)
    ways = {w["title"]: w for w in refusal(path)["ways"]}
    assert "['x'], ['h'])" in ways["Give out 'h' alone"]["code"] and ways["Give out 'h' alone"]["ok"]
    (front,) = (w for t, w in ways.items() if t.startswith("Cut the model"))
    assert "['x', 's'], ['r'])" in front["code"] and front["ok"]


def test_no_way_is_begun_when_the_time_is_over(tmp_path: Path) -> None:
    from pulsify.report.refusal import refusal_figures

    path = str(ZOO / "attn_full_causal.onnx")
    with pytest.raises(NotStreamable) as caught:
        pulsify.stream(path)
    found = refusal_figures(caught.value, path, open_batch(path), lambda *_: pytest.fail("tried"), seconds=-1)
    assert [w["result"] for w in found["ways"] if w["command"]] == ["not tried: out of time"] * 2


def test_what_is_refused_before_time_is_followed_has_a_report_too(monkeypatch: pytest.MonkeyPatch) -> None:
    from pulsify.report import document
    from pulsify.report.page import page

    def refuse(*_: Any) -> Any:
        raise NotStreamable("its branch depends on the data", node="choose", op="If", hint="export one branch")

    monkeypatch.setattr(document, "open_batch", refuse)
    facts = report_figures(Asked(str(ZOO / "gru.onnx")))
    assert facts["refusal"]["path"] == [] and [w["says"] for w in facts["refusal"]["ways"]] == ["Export one branch."]
    assert "its branch depends on the data" in page(facts)


def test_remedies_with_options_are_ways_that_can_be_tried() -> None:
    error = NotStreamable("it goes wrong", node="n", op="Reshape", hint=(declare("frames", "8*n"), "or not"))
    (way,) = (w for w in ways_out(error, [], []) if w.can_be_tried)
    assert way.options == {"set": {"frames": "8*n"}} and way.exact
    unsure = NotStreamable("it is not certain", hint=SAMPLED)
    assert [w.options for w in ways_out(unsure, [], []) if w.can_be_tried] == [{"proof": "sampled"}]


def test_the_way_to_a_node_is_the_shortest() -> None:
    tracer = open_batch(two_outputs())
    node = next(n for n in tracer.model.nodes if n.op == "Sub")
    assert path_to(tracer.model, node, {"x"}) == ["x", "h", "z"]
