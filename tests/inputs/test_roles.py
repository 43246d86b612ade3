"""Numbers that look like the stream's length: kept as inputs they are exact, bound they are listed everywhere."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from click.testing import CliRunner

import pulsify
from pulsify.cli.main import main
from pulsify.core.spec import Binding
from pulsify.report.document import Asked, report_figures
from pulsify.report.page import page
from tests.inputs.graphs import masked
from tests.models import frames, model, node, weights, with_length
from tests.older import as_older
from tests.side import Batch, streamed


def prompted(name: str = "prompt_length", dims: tuple[int | str, ...] = (1,), batch: int | str = 1) -> onnx.ModelProto:
    """where(arange(T) < prompt_length, x, conv(x)): what was said first is kept as it is."""
    nodes = [
        node("Conv", "x w", "h", pads=[1, 1]), node("Shape", "x", "s"), node("Gather", "s two", "t"),
        node("Range", "zero t one", "places"), node("Less", f"places {name}", "prompt"),
        node("Where", "prompt x h", "y"),
    ]  # fmt: skip
    known = {"w": weights(2, 2, 3), "two": np.array(2), "zero": np.array(0), "one": np.array(1)}
    return model(nodes, {"x": [batch, 2, "T"], name: list(dims)}, ["y"], known, dtypes={name: np.int64})


@pytest.mark.parametrize("backend", ["ort", "native", "torch", "reference"])
def test_a_prompt_of_any_length_is_exact(backend: str) -> None:
    proto = prompted()
    stream, batch = pulsify.stream(proto, pulse=4), Batch(proto)
    assert [s.name for s in stream.statics] == ["prompt_length"] and not stream.bindings
    for length in (*range(1, 10), 17):
        x = frames(1, 2, length, seed=length)
        for prompt in (0, 1, 3, length, length + 5):
            feeds = {"x": x, "prompt_length": np.array([prompt])}
            want = batch.run(feeds)["y"]
            for cuts in ([length], [3] * (length // 3) + [length % 3]):
                got = streamed(stream, feeds, cuts, backend=backend)["y"]
                np.testing.assert_allclose(got, want, rtol=0, atol=1e-5)


def test_verify_tries_prompts_of_other_lengths_than_the_streams() -> None:
    """It fed the stream's length to both, and agreed with a stream that was wrong."""
    proto = prompted()
    wrong = pulsify.stream(proto, pulse=4, bind={"prompt_length": "T"}, verify=False)
    assert str(wrong.bindings[0]) == "prompt_length=T"
    report = pulsify.verify(proto, wrong)
    assert report.fed == ("prompt_length = number of frames",)
    other = prompted("prompt_len")
    other.graph.node[0].attribute[0].ints[:] = [2, 0]
    with pytest.raises(pulsify.Mismatch):
        pulsify.verify(other, pulsify.stream(prompted("prompt_len"), pulse=4, verify=False))


def test_the_lengths_of_notes_are_a_stream() -> None:
    nodes = [node("Cast", "note_length", "f", to=1), node("Mul", "x f", "m"), node("Conv", "m w", "y", pads=[1, 1])]
    inputs = {"x": [1, 2, "T"], "note_length": ["T"]}
    proto = model(nodes, inputs, ["y"], {"w": weights(2, 2, 3)}, dtypes={"note_length": np.int64})
    stream = pulsify.stream(proto, pulse=4)
    assert {i.name for i in stream.inputs} == {"x", "note_length"}
    for length in (1, 4, 6, 13):
        feeds = {"x": frames(1, 2, length), "note_length": np.arange(length) % 4}
        np.testing.assert_allclose(streamed(stream, feeds, [length])["y"], Batch(proto).run(feeds)["y"], atol=1e-5)


def test_the_remedies_work() -> None:
    """x * (arange(T) < max_len) looks the same for a length and for a limit."""
    proto = prompted("max_len")
    proto.graph.node[-1].input[2] = "nothing"
    proto.graph.initializer.append(onnx.numpy_helper.from_array(np.array(0, np.float32), "nothing"))
    proto.graph.node.remove(proto.graph.node[0])
    with pytest.raises(pulsify.InvalidArgument, match="Where 'y' masks the frames of 'x' after it") as asked:
        pulsify.stream(proto, pulse=4)
    assert 'bind={"max_len": "T"}' in str(asked.value) and 'bind={"max_len": None}' in str(asked.value)
    free, batch = pulsify.stream(proto, pulse=4, bind={"max_len": None}), Batch(proto)
    bound = pulsify.stream(proto, pulse=4, bind={"max_len": "T"})
    for length in (1, 5, 8, 11):
        for most in (0, 2, length, 40):
            feeds = {"x": frames(1, 2, length), "max_len": np.array([most])}
            want = batch.run(feeds)["y"]
            np.testing.assert_array_equal(streamed(free, feeds, [length])["y"], want)
            if most == length:
                np.testing.assert_array_equal(streamed(bound, feeds, [length])["y"], want)


def test_a_refusal_over_a_guessed_length_says_how_to_keep_it_as_an_input() -> None:
    """It named the length of the whole stream, and not that an input was taken for it."""
    nodes = [node("Cast", "length", "f", to=1), node("Conv", "x w", "h", pads=[1, 1]), node("Add", "h f", "y")]
    inputs = {"x": [1, 2, "T"], "length": [1]}
    proto = model(nodes, inputs, ["y"], {"w": weights(2, 2, 3)}, dtypes={"length": np.int64})
    with pytest.raises(pulsify.NotStreamable, match="the length of the whole stream") as refused:
        pulsify.stream(proto, pulse=4)
    *_, way = refused.value.remedies
    assert "'length' is not the stream's length" in way.text and way.options == {"bind": {"length": None}}
    stream, batch = pulsify.stream(proto, pulse=4, **way.options), Batch(proto)
    for value in (0, 3, 9):
        feeds = {"x": frames(1, 2, 9), "length": np.array([value])}
        np.testing.assert_allclose(streamed(stream, feeds, [4, 5])["y"], batch.run(feeds)["y"], atol=1e-5)
    with pytest.raises(pulsify.NotStreamable) as told:
        pulsify.stream(proto, pulse=4, bind={"length": "T"})
    assert not any("bind" in remedy.options for remedy in told.value.remedies)


LISTED: dict[str, tuple[Any, Binding]] = {
    "length": (
        lambda: with_length("B"),
        Binding("length", "T", "guessed", "it is counted in output 'encoded_lengths'"),
    ),
    "attention_mask": (masked, Binding("attention_mask", "ones", "guessed", "Mul 'kept' masks the frames of 'x'")),
}


@pytest.mark.parametrize("name", LISTED)
def test_a_guessed_binding_is_listed_everywhere(name: str, tmp_path: Path) -> None:
    build, binding = LISTED[name]
    path, out = tmp_path / "batch.onnx", tmp_path / "stream.onnx"
    onnx.save(build(), path)
    stream = pulsify.stream(path, pulse=4)
    stream.save(out)
    assert stream.bindings == pulsify.load(out).bindings == (binding,)
    assert f"binds {name}={binding.value} (guessed)" in repr(stream) and stream.verification is not None
    assert any(f"'{name}'" in said and "(guessed)" in said for said in stream.proof.assumed)
    assert stream.verification.fed[0].startswith(f"{name} = ") and stream.verification.fed[0].endswith("(guessed)")
    for command in (
        ["stream", str(path), "-p", "4"], ["inspect", str(path), "-p", "4"], ["inspect", str(out)],
        ["verify", str(path), str(out)],
    ):  # fmt: skip
        shown = CliRunner().invoke(main, command).output
        assert f"{name} = " in shown and "guessed" in shown, command
        facts = json.loads(CliRunner().invoke(main, [*command, "--json"]).stdout)
        if command[0] == "verify":
            assert facts["verified"]["fed"] == list(stream.verification.fed)
        else:
            (listed,) = facts.get("stream", facts)["bindings"]
            assert listed == {"name": name, "value": binding.value, "source": "guessed", "reason": binding.reason}
    html = page(report_figures(Asked(str(path), 4, seconds=0.001)))
    assert f"Bound: {name} = " in html and f"was fed {name} = " in html


def test_what_was_given_is_listed_too(tmp_path: Path) -> None:
    stream = pulsify.stream(with_length(name="n"), pulse=4, bind={"n": "T"})
    assert stream.bindings == (Binding("n", "T"),) and "binds n=T>" in repr(stream)
    assert stream.proof.assumed == ("'n' is the number of frames T (given)",)


def test_a_file_that_lists_no_bindings_is_loaded_and_verified(tmp_path: Path) -> None:
    """As they were written before."""
    path = tmp_path / "stream.onnx"
    pulsify.stream(with_length(), pulse=4).save(path)
    as_older(path, change=lambda props: {k: v for k, v in props.items() if k != "pulsify.bindings"})
    with pytest.warns(UserWarning, match="checksum"):
        old = pulsify.load(path)
    assert old.bindings == ()
    assert pulsify.verify(with_length(), old).fed == ("length = number of frames",)


def test_comparing_a_run_feeds_a_mask_of_ones(tmp_path: Path) -> None:
    path, out, x = tmp_path / "batch.onnx", tmp_path / "stream.onnx", tmp_path / "x.npy"
    onnx.save(masked(), path)
    pulsify.stream(path, pulse=4).save(out)
    np.save(x, frames(1, 9, 4))
    done = CliRunner().invoke(main, ["run", str(out), str(x), "--compare", str(path)])
    assert done.exit_code == 0, done.output


def test_modules_with_numbers_that_sound_like_lengths() -> None:
    torch = pytest.importorskip("torch")
    kernel = torch.from_numpy(weights(2, 2, 3))

    class Notes(torch.nn.Module):  # type: ignore[misc, name-defined]
        def forward(self, x: Any, note_length: Any) -> Any:
            return torch.nn.functional.conv1d(x * note_length, kernel, padding=1)

    class Prompted(torch.nn.Module):  # type: ignore[misc, name-defined]
        def forward(self, x: Any, prompt_length: Any) -> Any:
            smoothed = torch.nn.functional.conv1d(x, kernel, padding=1)
            return torch.where(torch.arange(x.shape[2]) < prompt_length, x, smoothed)

    x = torch.from_numpy(frames(1, 2, 9))
    notes = pulsify.stream(Notes(), 4, example=(x, torch.arange(9)))
    assert {i.name for i in notes.inputs} == {"x", "note_length"} and not notes.bindings
    got = notes.run({"x": x.numpy(), "note_length": np.arange(9)}, 2)
    np.testing.assert_allclose(got, Notes()(x, torch.arange(9)).numpy(), atol=1e-5)
    prompts = pulsify.stream(Prompted(), 4, example=(x, torch.tensor([3])))
    assert [s.name for s in prompts.statics] == ["prompt_length"]
    for prompt in (0, 4, 12):
        got = prompts.run({"x": x.numpy(), "prompt_length": np.array([prompt])}, 2)
        np.testing.assert_allclose(got, Prompted()(x, torch.tensor([prompt])).numpy(), atol=1e-5)


@pytest.mark.parametrize("dims", [(2, "T"), ("T", 2), ("T", "B")], ids=str)
def test_a_length_a_stream_of_a_fixed_number_of_streams(dims: tuple[int | str, ...]) -> None:
    """Time may come first, and the batch after it."""
    batch = next(d for d in dims if d != "T")
    first = [] if dims[0] == "T" else [node("Transpose", "x", "t", perm=[1, 0, 2])]
    nodes = [*first, node("RNN", f"{'t' if first else 'x'} w r _ x_lens", "all", hidden_size=2)]
    nodes += [node("Squeeze", "all one", "y")]
    known = {"w": weights(1, 2, 2), "r": weights(1, 2, 2, seed=1), "one": np.array([1])}
    proto = model(nodes, {"x": [*dims, 2], "x_lens": [batch]}, ["y"], known, dtypes={"x_lens": np.int32})
    stream = pulsify.stream(proto, pulse=3)
    assert [b.name for b in stream.bindings] == ["x_lens"] and pulsify.verify(proto, stream).ok


@pytest.mark.parametrize("streams", [1, 2])
@pytest.mark.parametrize("build", [masked, lambda: with_length("B")], ids=["mask", "length"])
def test_a_free_number_of_masks_or_lengths_beside_a_fixed_number_of_streams(build: Any, streams: int) -> None:
    """The mask's dimension has no size of its own: KeyError."""
    proto = build()
    proto.graph.input[0].type.tensor_type.shape.dim[0].dim_value = streams
    stream = pulsify.stream(proto, pulse=4)
    name = stream.bindings[0].name
    for length in (1, 6, 13):
        x = frames(streams, length, 4) if name == "attention_mask" else frames(streams, 2, length)
        given = np.ones((streams, length), np.int64) if name == "attention_mask" else np.full(streams, length)
        want, got = Batch(proto).run({"x": x, name: given}), streamed(stream, {"x": x}, [length])
        for each in want:
            assert got[each].shape == want[each].shape
            np.testing.assert_allclose(got[each], want[each], rtol=0, atol=1e-5)


def test_a_mask_whose_first_dimension_has_a_name_of_its_own() -> None:
    proto = masked()
    proto.graph.input[1].type.tensor_type.shape.dim[0].dim_param = "N"
    stream = pulsify.stream(proto, pulse=4)
    x, mask = frames(3, 7, 4), np.ones((3, 7), np.int64)
    want, got = Batch(proto).run({"x": x, "attention_mask": mask}), streamed(stream, {"x": x}, [7])
    np.testing.assert_allclose(got["y"], want["y"], rtol=0, atol=1e-5)
    np.testing.assert_array_equal(got["lengths"], want["lengths"])
