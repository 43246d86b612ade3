"""First columns that every stream begins with: they are there before any frame of the input."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.zoo.harness import check

torch = pytest.importorskip("torch")


class Memory(torch.nn.Module):  # type: ignore[misc,name-defined]
    """Two learned tokens in front, none behind, and every row's own frame."""

    def __init__(self) -> None:
        super().__init__()
        self.front = torch.nn.Parameter(torch.randn(1, 2, 6))
        self.behind = torch.nn.Parameter(torch.randn(1, 0, 6))
        self.key = torch.nn.Linear(6, 6)

    def forward(self, x: Any) -> Any:
        b, t = x.shape[:2]
        k = torch.cat([self.front.expand(b, -1, -1), self.key(x), self.behind.expand(b, -1, -1)], 1)
        own = torch.arange(t)[:, None] == torch.arange(t)[None]
        scores = x @ k.transpose(1, 2)
        hidden = ~torch.nn.functional.pad(own, (2, 0), value=True)
        return scores.masked_fill(hidden, float("-inf")).softmax(-1) @ k


@pytest.mark.parametrize("streams", [1, 3])
def test_learned_tokens_joined_with_nothing_behind(streams: int, tmp_path: Path) -> None:
    torch.manual_seed(0)
    path, rng = tmp_path / "m.onnx", np.random.default_rng(0)
    torch.onnx.export(
        Memory().eval().requires_grad_(False), (torch.randn(2, 9, 6),), path, input_names=["x"], output_names=["y"],
        dynamic_axes={"x": {0: "B", 1: "T"}}, dynamo=False,
    )  # fmt: skip
    result = check(
        path, lambda t: {"x": rng.standard_normal((streams, t, 6)).astype(np.float32)}, {"x": 1}, 3, range(1, 12)
    )
    assert result.status == "exact" and result.delays == {"y": 0}, result.detail
