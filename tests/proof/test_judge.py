"""The judge sees what is wrong: streams of one model held against the batch runs of another."""

from __future__ import annotations

import numpy as np
import onnx

from tests.proof.graphs import CASES
from tests.proof.judge import Batch, at_length, convert, departure
from tests.proof.net import Net


def plain() -> onnx.ModelProto:
    net = Net()
    return net.model(net.x * 1.0)


def named(name: str) -> onnx.ModelProto:
    return next(c for c in CASES if c.name == name).model()


def verdict(streamed: onnx.ModelProto, batch: onnx.ModelProto, length: int, lenient: bool = False) -> str:
    """'' if all is well."""
    found = at_length(convert(streamed, 4, verify=False), Batch(batch), length, lenient)
    return " ".join(found) if found else ""


def test_other_numbers() -> None:
    assert verdict(plain(), named("factor_at_100"), 99) == ""
    assert "off by 0.5" in verdict(plain(), named("factor_at_100"), 100)


def test_another_number_of_frames() -> None:
    assert verdict(plain(), named("cut_min_3000"), 3000) == ""
    assert "instead of" in verdict(plain(), named("cut_min_3000"), 3001)


def test_turned_down() -> None:
    assert "wrong turned down" in verdict(named("emb_plain"), plain(), 51)
    assert verdict(named("emb_plain"), plain(), 51, lenient=True) == ""


def test_numbers_where_there_are_none() -> None:
    assert "batch fails" in verdict(plain(), named("emb_plain"), 51)
    assert verdict(named("emb_plain"), named("emb_plain"), 51) == ""


def test_departure() -> None:
    one = np.ones((1, 2, 3), np.float32)
    assert departure(one, one) == ""
    assert departure(one * np.nan, one) and departure(one, one * 1.001) and departure(one[..., 1:], one)
    assert departure(one * np.nan, one * np.nan) == "" and departure(one.astype(int), one)
