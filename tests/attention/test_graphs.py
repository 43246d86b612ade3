"""Attention graphs, one combination each, exact from the first frame to the last at ragged lengths."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import pulsify
from tests.attention.build import Builder
from tests.attention.check import Batch, check, compare, difference, ragged, run_stream
from tests.attention.graphs import Case, build
from tests.attention.known import failure
from tests.attention.masks import TABLE, Mask, Writing
from tests.selection import turns

CHUNK = Mask("chunk", 4, 2)
AHEAD = Mask("chunk", 3, 1, 1)
TOKEN = Mask("token", 1, 7)
LOOK = Mask("token", 1, 5, 3)
BOTH = Mask("chunk_causal", 4, 2)
BLOCK = Mask("block", 5)
DILATED = Mask("dilated", 1, 8, 2)
STRIDED = Mask("strided", 4, 12)
COLUMNS = Mask("columns", 4, 12)
NEMO = Mask("chunk_token", 4, 6)

CASES = {
    # masks, and how they are written
    "chunk_int": Case(CHUNK),
    "chunk_float": Case(CHUNK, Writing("float", "not"), applied="where_not_1e4", rank=3),
    "chunk_cumsum": Case(CHUNK, Writing("cumsum", "where"), applied="add_inf", rank=4),
    "chunk_gather": Case(CHUNK, Writing("gather", "mul"), applied="add_1e9"),
    "chunk_buffer": Case(CHUNK, Writing("buffer"), applied="where_min", rank=4),
    "chunk_ahead": Case(AHEAD, Writing("float", "where"), scheme="alibi", rank=3),
    "token_tril": Case(TOKEN, Writing("tril"), scheme="rope_half_table"),
    "token_where": Case(TOKEN, Writing("int", "where"), applied="add_1e9", scheme="clip", rank=3),
    "look_tril": Case(LOOK, Writing("tril"), applied="where_not_1e4", scheme="alibi", rank=4),
    "look_not": Case(LOOK, Writing("cumsum", "not"), applied="nemo", scheme="t5"),
    "both_tril": Case(BOTH, Writing("tril", "mul"), applied="where_min", scheme="chunk_bias"),
    "both_float": Case(BOTH, Writing("float", "where"), applied="mul_after", scheme="rope_pair_arange"),
    "block_cumsum": Case(BLOCK, Writing("cumsum", "and"), applied="where_not_inf", scheme="absolute"),
    "block_gather": Case(BLOCK, Writing("gather", "not"), applied="add_inf", scheme="clip", layout="single"),
    "dilated_int": Case(DILATED, Writing("int", "mul"), applied="where_1e4"),
    "dilated_tril": Case(DILATED, Writing("tril", "not"), applied="nemo", scheme="alibi", product="einsum"),
    "strided_gather": Case(STRIDED, Writing("gather", "where"), applied="mul_after", scheme="t5"),
    "columns_float": Case(COLUMNS, Writing("float", "not"), applied="add_1e9", scheme="rope_half_arange"),
    "nemo_context": Case(NEMO, Writing("int", "not"), applied="nemo", scheme="xl_nemo_slice", rank=3),
    "nemo_context_uneven": Case(replace(NEMO, left=5), Writing("float", "and"), applied="nemo"),
    "self_only": Case(Mask("token", 1, 0), Writing("int", "and"), applied="add_1e9"),
    # how they are applied
    "narrower_behind": Case(CHUNK, applied="narrow"),
    "in_sequence": Case(LOOK, applied="sequence", scheme="alibi", rank=4),
    "relu_weights": Case(LOOK, applied="relu", scheme="clip"),
    "retention": Case(TOKEN, applied="decay", scheme="rope_pair_table"),
    "sigmoid_weights": Case(CHUNK, applied="sigmoid", scheme="alibi"),
    "scaled_after": Case(CHUNK, applied="add_1e9", scale="after", rank=3),
    "scaled_scores": Case(LOOK, applied="where_1e4", scale="div", scheme="clip"),
    "scaled_after_bias": Case(BOTH, applied="add_inf", scale="mul", scheme="xl_nemo_gather"),
    # position schemes
    "sinusoid": Case(LOOK, applied="where_min", scheme="sinusoid", layout="folded"),
    "relative_key": Case(CHUNK, Writing("float"), scheme="relative_key", applied="add_inf"),
    "alibi_heads": Case(TOKEN, applied="where_not_1e4", scheme="alibi", heads=4, product="einsum_time"),
    "t5_chunk": Case(CHUNK, scheme="t5", applied="add_1e9", product="einsum", rank=3),
    "clip_ahead": Case(AHEAD, scheme="clip", layout="folded", rank=3),
    "rope_ahead": Case(AHEAD, scheme="rope_half_arange", layout="single", product="einsum"),
    "rope_look": Case(LOOK, scheme="rope_pair_table", layout="folded", product="swapped"),
    "absolute_sparse": Case(STRIDED, scheme="absolute", product="swapped"),
    "xl_nemo_sin": Case(AHEAD, scheme="xl_nemo_sin", applied="where_1e4", heads=4),
    "xl_nemo_look": Case(LOOK, scheme="xl_nemo_slice", applied="add_inf", layout="single"),
    "xl_nemo_dilated": Case(DILATED, scheme="xl_nemo_gather", applied="nemo", layout="folded"),
    "xl_nemo_layers": Case(CHUNK, scheme="xl_nemo_sin", applied="nemo", layers=2),
    "xl_espnet_slice": Case(CHUNK, scheme="xl_espnet_slice", applied="where_min"),
    "xl_espnet_gather": Case(LOOK, scheme="xl_espnet_gather", applied="where_min", batch="B"),
    "xl_espnet_layers": Case(BOTH, scheme="xl_espnet_sin", applied="where_min", layers=2),
    "xl_xlnet_slice": Case(CHUNK, scheme="xl_xlnet_slice", applied="add_1e9"),
    "xl_xlnet_gather": Case(LOOK, scheme="xl_xlnet_gather", applied="add_inf", product="einsum"),
    "xl_xlnet_sin": Case(STRIDED, scheme="xl_xlnet_sin", applied="where_1e4", layout="single"),
    "xl_legacy_slice": Case(TOKEN, scheme="xl_legacy_slice", applied="where_min"),
    "xl_legacy_sin": Case(BOTH, scheme="xl_legacy_sin", applied="add_inf", layout="single"),
    "xl_hf_gather": Case(TOKEN, scheme="xl_hf_gather", applied="add_1e9", product="time_first"),
    "xl_hf_sin": Case(BOTH, scheme="xl_hf_sin", applied="where_inf", product="time_first", layers=2),
    "xl_swapped": Case(LOOK, scheme="xl_nemo_slice", product="swapped"),
    "xl_swapped_einsum": Case(LOOK, scheme="xl_nemo_slice", product="swapped_einsum"),
    # operators and layouts
    "swapped_einsum": Case(LOOK, scheme="clip", product="swapped_einsum", applied="nemo"),
    "swapped_single": Case(CHUNK, scheme="alibi", product="swapped_einsum", layout="single", applied="mul_after"),
    "time_first": Case(CHUNK, scheme="alibi", product="time_first", rank=4),
    "time_first_look": Case(LOOK, scheme="t5", product="time_first", batch="B", applied="nemo"),
    "einsum_folded": Case(LOOK, scheme="none", product="einsum", layout="folded", applied="sequence"),
    "views_expand": Case(CHUNK, views="expand", applied="nemo"),
    "views_expand_streamed": Case(CHUNK, views="expand", padding="bool", batch="B"),
    "views_fairseq": Case(CHUNK, views="view", layout="folded", rank=3),
    "views_fairseq_batch": Case(CHUNK, views="view", layout="folded", rank=3, batch="B"),
    # padding: by length, or streamed
    "length": Case(CHUNK, padding="length", applied="nemo"),
    "length_batch": Case(LOOK, padding="length", applied="where_1e4", scheme="xl_nemo_slice", batch="B"),
    "length_subsampled": Case(CHUNK, padding="length", subsample=True, applied="nemo", scheme="xl_nemo_sin", layers=2),
    "length_single": Case(BOTH, padding="length", layout="single", applied="add_1e9", batch="B"),
    "length_expand": Case(CHUNK, padding="length", views="expand", batch="B", applied="add_1e9"),
    "pad_bool": Case(CHUNK, padding="bool", applied="where_inf"),
    "pad_bool_batch": Case(LOOK, padding="bool", applied="nemo", scheme="alibi", batch="B"),
    "pad_float": Case(BOTH, padding="float", applied="add_inf", layout="single"),
    "pad_float_batch": Case(DILATED, padding="float", applied="mul_after", scheme="rope_half_table", batch="B"),
    "pad_keys": Case(replace(TOKEN, left=11), padding="keys", applied="nemo", product="swapped"),
    "pad_swapped": Case(AHEAD, padding="bool", applied="nemo", product="swapped_einsum"),
    "pad_time_first": Case(CHUNK, padding="bool", applied="where_inf", product="time_first"),
    # rates, islands, streams, batch
    "keys_conv": Case(CHUNK, keys="conv", scheme="alibi"),
    "keys_conv_uneven": Case(Mask("chunk", 3, 2), keys="conv", applied="nemo", batch="B"),
    "keys_slice": Case(TOKEN, keys="slice", scheme="clip", applied="add_1e9"),
    "keys_slice_swapped": Case(replace(LOOK, right=2), keys="slice", product="swapped", applied="where_1e4"),
    "keys_rope": Case(CHUNK, Writing("float"), keys="conv", scheme="rope_half_arange", layout="single"),
    "slow_queries": Case(CHUNK, keys="slow_queries", scheme="rope_half_table"),
    "slow_queries_token": Case(TOKEN, keys="slow_queries", applied="nemo", scheme="alibi", batch="B"),
    "islands": Case((CHUNK, Mask("chunk", 3, 1))),
    "islands_three": Case((Mask("chunk", 2, 2), Mask("chunk", 8, 1), Mask("token", 1, 3, 1)), scheme="alibi"),
    "cross": Case(CHUNK, cross=True, scheme="alibi"),
    "cross_look": Case(LOOK, cross=True, applied="nemo", scheme="rope_pair_arange", layers=2, batch="B"),
    "cross_conv": Case(CHUNK, cross=True, keys="conv"),
    "cross_subsampled": Case(BOTH, cross=True, subsample=True, padding="length", scheme="xl_nemo_slice"),
    "batch": Case(CHUNK, scheme="rope_half_arange", batch="B", rank=4),
    "batch_time_first": Case(CHUNK, product="time_first", batch="B"),
    "batch_folded": Case(CHUNK, layout="folded", batch="B"),
    "batch_folded_alibi": Case(CHUNK, layout="folded", batch="B", scheme="alibi"),
    "batch_folded_rope": Case(TOKEN, layout="folded", batch="B", scheme="rope_half_arange"),
    "batch_layers": Case(TOKEN, scheme="xl_nemo_slice", batch="B", layers=2, applied="sequence"),
}


def expected(name: str, case: Case, unbounded: object = "refuse", place: int | None = None) -> Any:
    """The case, marked if it is known to fail. place: in a long list, which takes turns."""
    reason = failure(case, unbounded)
    marks = [] if place is None else turns(place, 3)
    return pytest.param(
        case, id=name, marks=[*marks, *([pytest.mark.xfail(reason=reason, strict=True)] if reason else [])]
    )


def slow(case: Case) -> bool:
    """Does it need an even pulse?"""
    return case.subsample or case.keys != "same"


def pulses(case: Case) -> list[int]:
    chunk = max(case.masks[0].chunk, 2)
    if case.subsample:
        return [2, 6, 2 * chunk, 4 * chunk]
    return [2, 6, 2 * chunk, 4 * chunk] if slow(case) else sorted({1, 3, chunk, 2 * chunk})


def delay(mask: Mask, pulse: int) -> int:
    """The smallest there can be, where that is plain to see."""
    if mask.kind in ("token", "dilated"):
        return mask.right
    if mask.kind in ("chunk", "block", "chunk_token"):
        ahead = mask.right if mask.kind == "chunk" else 0
        return (ahead + 1) * mask.chunk - math.gcd(pulse, mask.chunk)
    return 0


@pytest.mark.parametrize("case", [expected(n, c, place=i) for i, (n, c) in enumerate(CASES.items())])
def test_exact(case: Case) -> None:
    """At pulses that are multiples of the chunk and at others; the delay is the smallest possible."""
    built = build(case)
    for pulse in pulses(case):
        stream = check(built, pulse, ragged(pulse, case.masks[0].chunk))
        if not slow(case) and len(case.masks) == 1 and case.applied != "narrow":
            assert stream.outputs[0].delay == delay(case.masks[0], pulse)


def test_enough() -> None:
    assert sum(not failure(c) for c in CASES.values()) >= 40


@pytest.mark.parametrize("name", ["chunk_int", "token_tril", "nemo_context", "pad_bool_batch"])
def test_state_is_the_window(name: str) -> None:
    """What is kept depends on the mask, not on how long the models were that it was read from."""
    stream = pulsify.stream(build(CASES[name]).model, pulse=4, verify=False)
    assert stream.state_bytes < 4 * 8 * 4 * 14


@pytest.mark.parametrize(
    ("table", "free"),
    [
        (Case(CHUNK, Writing("buffer")), Case(CHUNK)),
        (Case(TOKEN, Writing("gather")), Case(TOKEN)),
        pytest.param(
            Case(CHUNK, scheme="xl_nemo_gather", longest=200),
            Case(CHUNK, scheme="xl_nemo_sin"),
        ),
        (Case(CHUNK, scheme="xl_nemo_gather", longest=300), Case(CHUNK, scheme="xl_nemo_sin")),
        pytest.param(
            Case(CHUNK, scheme="xl_nemo_slice", longest=200),
            Case(CHUNK, scheme="xl_nemo_sin"),
        ),
        (Case(CHUNK, scheme="xl_nemo_slice"), Case(CHUNK, scheme="xl_nemo_sin")),
    ],
)
def test_tables_do_not_cap_the_stream(table: Case, free: Case) -> None:
    """A mask or a table of relative positions ends where the batch model does; the stream goes on."""
    length = TABLE + 77
    stream = pulsify.stream(build(table).model, pulse=32, verify=False)
    other = build(free)
    feeds = other.feeds(length)
    got = run_stream(stream, build(table), feeds, [32] * (length // 32) + [length % 32])
    assert not difference(got["y"], Batch(other.model).run(feeds)["y"])


# ---- without bound

CAUSAL = Mask("causal")
GROWING = {
    "plain": Case(CAUSAL),
    "tril": Case(CAUSAL, Writing("tril"), applied="nemo", product="einsum"),
    "cumsum": Case(CAUSAL, Writing("cumsum", "not"), applied="add_1e9", product="swapped"),
    "buffer": Case(CAUSAL, Writing("buffer"), applied="where_min", rank=4),
    "absolute": Case(CAUSAL, scheme="absolute", layout="single"),
    "rope": Case(CAUSAL, scheme="rope_half_arange", product="einsum_time"),
    "folded": Case(CAUSAL, layout="folded"),
    "alibi": Case(CAUSAL, scheme="alibi"),
    "shift": Case(CAUSAL, scheme="xl_nemo_sin"),
    "prefix": Case(Mask("prefix", 4)),
    "batch": Case(CAUSAL, batch="B"),
    "pad": Case(CAUSAL, padding="bool", applied="nemo"),
    "pad_keys": Case(CAUSAL, padding="keys", applied="nemo"),
    "length": Case(CAUSAL, padding="length", subsample=True),
    "keys_conv": Case(CAUSAL, keys="conv"),
    "cross": Case(CAUSAL, cross=True),
    "islands": Case((CAUSAL, Mask("chunk", 4, 1), CAUSAL)),
    "look_ahead_before": Case((Mask("token", 1, 3, 2), CAUSAL)),
}


@pytest.mark.parametrize("case", [expected(n, c, "grow") for n, c in GROWING.items()])
def test_grows(case: Case) -> None:
    built = build(case)
    with pytest.raises(pulsify.NotStreamable, match="unbounded look-back") as caught:
        pulsify.stream(built.model, pulse=4, verify=False)
    assert caught.value.node.startswith("values") and "grow" in caught.value.hint
    for pulse in (2, 4) if slow(case) else (1, 3):
        check(built, pulse, [1, 6, 29], unbounded="grow")


@pytest.mark.parametrize("scheme", ["none", "alibi", "clip", "rope_half_table"])
def test_keeps_the_last_frames(scheme: str) -> None:
    """unbounded=N: exact up to N frames, and no longer so beyond (the caller asked for it)."""
    built = build(Case(CAUSAL, scheme=scheme))
    stream = check(built, 3, [1, 5, 12, 16], unbounded=16)
    assert stream.state_bytes < 17 * 8 * 4 * 2 + 64
    with pytest.raises(AssertionError, match="error"):
        compare(built, stream, [60])


def framed_causal(up: int = 1, stride: int = 1, front: int = 0, behind: int = 0) -> onnx.ModelProto:
    """Causal attention over frames that are not those of the stream: upsampled, every so many, padded."""
    b, x = Builder(), "x"
    if up > 1:
        x = b.transpose(b.op("ConvTranspose", b.transpose(x, 0, 2, 1), b.weight(4, 4, up), strides=[up]), 0, 2, 1)
    if stride > 1:
        x = b.transpose(b.op("Conv", b.transpose(x, 0, 2, 1), b.weight(4, 4, stride), strides=[stride]), 0, 2, 1)
    x = b.op("Pad", x, b.ints(0, front, 0, 0, behind, 0), b.const(np.float32(0.5)))
    n = b.range(b.size(x, 1))
    seen = b.op("GreaterOrEqual", b.unsqueeze(n, 1), b.unsqueeze(n, 0))
    scores = b.op("Where", seen, b.op("MatMul", x, b.transpose(x, 0, 2, 1)), b.const(np.float32(-np.inf)))
    b.op("MatMul", b.op("Softmax", scores, axis=-1), x, called="y")
    return b.model({"x": ([1, "T", 4], np.float32)}, {"y": (3, np.float32)})


@pytest.mark.parametrize("pulse", [2, 6, 24])
@pytest.mark.parametrize(
    "frames",
    [{}, {"front": 6}, {"behind": 6}, {"front": 40}, {"up": 2}, {"up": 3, "front": 5}, {"stride": 2, "behind": 3}],
    ids=str,
)
def test_what_is_kept_counts_keys_and_what_is_exact_counts_the_stream(
    frames: dict[str, int], pulse: int, tmp_path: Path
) -> None:
    """Conversion passes its own check, and up to where it says the stream is the batch model, but not much further."""
    model = framed_causal(**frames)
    stream = pulsify.stream(model, pulse=pulse, unbounded=16)
    stream.save(tmp_path / "stream.onnx")
    for made in (stream, pulsify.load(tmp_path / "stream.onnx")):
        exact = made.spec.exact_up_to
        assert exact is not None
        assert f"up to {exact} frames" in str(stream.verification)
        if exact:
            assert max(pulsify.verify(model, made).lengths) == exact
        else:  # the pad alone is more than is kept
            assert frames["front"] > 16
            with pytest.raises(pulsify.Mismatch, match="nothing was checked"):
                pulsify.verify(model, made)
        with pytest.raises(pulsify.Mismatch):
            pulsify.verify(model, made, lengths=[exact + 4 * frames.get("stride", 1)])


# ---- refusals


def refusal(model: onnx.ModelProto, **options: Any) -> pulsify.NotStreamable:
    with pytest.raises(pulsify.NotStreamable) as caught:
        pulsify.stream(model, pulse=4, verify=False, **options)
    return caught.value


@pytest.mark.parametrize("unbounded", ["refuse", "grow", 16])
@pytest.mark.parametrize(
    "case",
    [
        pytest.param(Case(Mask("none")), id="no mask"),
        pytest.param(Case(Mask("none"), padding="length", batch="B"), id="the length only"),
        pytest.param(Case(Mask("ahead")), id="to the end"),
        pytest.param(Case(Mask("ahead"), Writing("tril"), applied="add_inf", scheme="alibi"), id="to the end, triu"),
        pytest.param(Case((CHUNK, Mask("none"))), id="only the first layer is masked"),
        pytest.param(
            Case(CHUNK, applied="only_after"),
            id="masked behind the softmax only",
        ),
    ],
)
def test_looks_ahead_without_bound(case: Case, unbounded: str | int) -> None:
    error = refusal(build(case).model, unbounded=unbounded)
    assert error.node.startswith("values") and error.op == "MatMul"
    assert "ahead without bound" in error.reason
    assert "mask" in error.hint


@pytest.mark.parametrize("unbounded", ["refuse", "grow", 16])
@pytest.mark.parametrize(("padding", "applied"), [("bool", "where_inf"), ("keys", "nemo")])
def test_masks_of_data_bound_nothing(padding: str, applied: str, unbounded: str | int) -> None:
    error = refusal(build(Case(Mask("none"), padding=padding, applied=applied)).model, unbounded=unbounded)
    assert error.op == "Where"
    assert "depends on the data" in error.reason
    assert "mask" in error.hint


@pytest.mark.parametrize("applied", ["where_1e4", "where_min", "add_1e9"])
def test_rows_without_keys_look_everywhere(applied: str) -> None:
    """A streamed padding mask that fills with finite numbers: padded rows see all keys alike, the last one too."""
    error = refusal(build(Case(CHUNK, padding="bool", applied=applied)).model)
    assert error.node and error.reason and error.hint


def over_time(kind: str) -> onnx.ModelProto:
    b = Builder()
    if kind == "Softmax":
        b.op("Softmax", "x", axis=1, called="y")
    else:
        b.op("Sub", "x", b.op("ReduceMean", "x", b.ints(1), called="mean"), called="y")
    return b.model({"x": ([1, "T", 8], np.float32)}, {"y": (3, np.float32)})


@pytest.mark.parametrize(("kind", "node"), [("Softmax", "y"), ("ReduceMean", "mean")])
def test_mixes_all_of_time(kind: str, node: str) -> None:
    error = refusal(over_time(kind))
    assert error.node == "y" and (error.op == kind or f"{kind} '{node}'" in error.reason)
    assert "over the whole stream" in error.reason and error.hint


def test_length_dependent_bias() -> None:
    """A bias by how far the end is."""
    b = Builder()
    size = b.size("x", 1)
    p = b.range(size)
    i, j = b.unsqueeze(p, 1), b.unsqueeze(p, 0)
    near = b.op("And", b.op("LessOrEqual", j, i), b.op("Less", b.op("Sub", i, j), b.scalar(4)))
    left = b.cast(b.op("Sub", size, i), np.float32)
    scores = b.op("MatMul", "x", b.transpose("x", 0, 2, 1))
    biased = b.op("Add", scores, b.op("Mul", b.cast(j, np.float32), left), called="biased")
    weights = b.op("Softmax", b.op("Where", near, biased, b.const(-np.inf)), axis=-1)
    b.op("MatMul", weights, "x", called="y")
    error = refusal(b.model({"x": ([1, "T", 8], np.float32)}, {"y": (3, np.float32)}))
    assert error.node == "biased" and error.reason and error.hint


@pytest.mark.parametrize("pulse", [2, 4])
def test_rows_without_keys_at_the_end(pulse: int) -> None:
    """Half as many keys as rows: at some lengths the last row has none, and a finite fill makes it look at all."""
    case = Case((Mask("chunk_token", 3, 0),), keys="conv", applied="where_1e4")
    with pytest.raises(pulsify.NotStreamable, match="see no key") as caught:
        pulsify.stream(build(case).model, pulse=pulse)
    assert caught.value.node == "values"
