"""What exporters print is kept, and the module is as it was."""

from __future__ import annotations

import io
import os
import sys
import warnings

import pytest

torch = pytest.importorskip("torch")

from pulsify.frontend.torch_manners import evaluating, quiet  # noqa: E402


def test_prints_warnings_and_what_cpp_writes_go_to_the_log(capfd: pytest.CaptureFixture[str]) -> None:
    log = io.StringIO()
    with quiet(log, descriptors=True):
        print("printed")
        print("to stderr", file=sys.stderr)
        warnings.warn("warned", UserWarning, stacklevel=1)
        os.write(1, b"from C++\n")
        os.write(2, b"and its stderr\n")
    assert capfd.readouterr() == ("", "")
    for text in ("printed", "to stderr", "UserWarning: warned", "from C++", "and its stderr"):
        assert text in log.getvalue()
    os.write(1, b"after\n")
    assert capfd.readouterr().out == "after\n"


def test_the_log_is_there_if_something_fails() -> None:
    log = io.StringIO()
    with pytest.raises(ZeroDivisionError), quiet(log, descriptors=True):
        os.write(1, b"before it\n") // 0
    assert "before it" in log.getvalue()


def test_attributes_and_buffers_are_put_back() -> None:
    module = torch.nn.BatchNorm1d(2)
    module.cache = None
    with evaluating(module):
        module.cache, module.new = torch.ones(1), 1
        module.running_mean += 5
        module.running_var = torch.zeros(2)
        torch.rand(3)
    assert module.cache is None and not hasattr(module, "new") and module.training
    assert module.running_mean.tolist() == [0, 0] and module.running_var.tolist() == [1, 1]
