from __future__ import annotations

import subprocess
import sys

import pytest

from pulsify.core.errors import InvalidArgument
from pulsify.kernels.registry import kernel, kernels


def test_kernels_have_names_cases_and_implementations() -> None:
    for one in kernels():
        assert kernel(one.name) is one
        names = [case.name for case in one.cases]
        assert len(names) == len(set(names)) > 0
        assert all(case.about for case in one.cases)
        assert "torch" in one.implementations


def test_an_unknown_name_is_answered_with_those_there_are() -> None:
    with pytest.raises(InvalidArgument, match="there are stream_attention"):
        kernel("flash")
    with pytest.raises(InvalidArgument, match="there are torch, triton"):
        kernel("stream_attention").implementation("cuda")


def test_a_specification_needs_neither_torch_nor_triton() -> None:
    script = (
        "import sys; from pulsify.kernels.registry import kernels; one = kernels()[0]; "
        "one.specification(**one.cases[0].make()); assert not {'torch', 'triton'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", script], check=True)
