"""The networks of `examples/pooling`: one result about a whole recording, out of a stream."""

from __future__ import annotations

import numpy as np
import pytest

import pulsify

torch = pytest.importorskip("torch")

from examples.pooling.__main__ import main  # noqa: E402
from examples.pooling.model import BANDS, build  # noqa: E402


@pytest.mark.parametrize("name", ["keywords", "speaker", "x-vector"])
def test_a_recording(name: str) -> None:
    """At every length near the shortest, and at one that is long."""
    module = build(name)
    stream = pulsify.stream(module, pulse=10, example=torch.zeros(1, 100, BANDS), time={"frames": 1}, verify=False)
    rng = np.random.default_rng(0)
    for length in (*range(stream.spec.shortest, stream.spec.shortest + 5), 43, 400):
        x = rng.standard_normal((1, length, BANDS)).astype(np.float32)
        with torch.no_grad():
            want = module(torch.from_numpy(x)).numpy()
        np.testing.assert_allclose(stream.run(x, 7, padding=float("nan")), want, atol=2e-5, equal_nan=True)


def test_it_says_how_it_fares(capsys: pytest.CaptureFixture[str]) -> None:
    main()
    said = capsys.readouterr().out
    assert all(f"{name}: off batch by" in said for name in ("keywords", "speaker", "x-vector"))
