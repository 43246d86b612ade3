"""What a node says of itself, and what it does not."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import onnx_ir as ir
import pytest

from pulsify.backends.seam import Array
from pulsify.backends.site import NodeSite, Uncovered
from pulsify.backends.subgraphs import bodies, reads
from tests.models import node
from tests.unit.backends.alike import small
from tests.unit.backends.torch.test_ops_recurrent import body


@dataclass(frozen=True)
class Scope:
    opset: int = 20
    constants: dict[ir.Value, Array] = field(default_factory=dict)

    def array(self, value: ir.Value | None) -> Array | None:
        return None if value is None else self.constants.get(value)


def test_inputs_sizes_and_attributes() -> None:
    made = small("Split x k > y z axis=-2", {"x": [2, 4, 6]}, {"k": np.array([1, 3])}, "y", opset=20)
    k = made.graph.initializers["k"]
    site = NodeSite(next(iter(made.graph)), Scope(constants={k: np.array([1, 3])}))
    assert (site.op, site.opset, site.count(), site.has(1), site.has(2)) == ("Split", 20, 2, True, False)
    assert site.ints(1, "parts") == [1, 3] and site.sizes() == (2, 4, 6) and site.gives() == (2, 1, 6)
    assert site.axis() == 1 and site.text("how", "so") == "so" and site.wanted(0) and not site.wanted(1)
    site.only(0)


@pytest.mark.parametrize(
    ("ask", "said"),
    [
        (lambda s: s.given(7), "input 7 is missing"), (lambda s: s.known(0, "weights"), "weights must be known"),
        (lambda s: s.only(1), "output 0 is not made here"), (lambda s: s.rank(7), "axes of its input 7"),
        (lambda s: s.sizes(7), "sizes of its input 7 are not known"),
    ],
)  # fmt: skip
def test_what_is_missing_is_said(ask, said: str) -> None:  # type: ignore[no-untyped-def]
    site = NodeSite(next(iter(small("Relu x > y", {"x": [2, 4]}).graph)), Scope())
    with pytest.raises(Uncovered, match=said):
        ask(site)


def test_a_node_reads_what_its_body_reads_from_outside() -> None:
    inner = body([node("Add", "s outer", "n"), node("Mul", "n r", "o")], {"s": [3], "r": [3]}, {"n": [3], "o": [3]})
    scan = node("Scan", "z x", "last all", body=inner, num_scan_inputs=1)
    made = small([node("Relu", "z", "outer"), scan], {"x": [4, 3], "z": [3]}, {}, "last all")
    found = next(n for n in made.graph if n.op_type == "Scan")
    assert [v.name for v in reads(found)] == ["z", "x", "outer"]
    assert [len(list(g)) for g in bodies(found)] == [2]
