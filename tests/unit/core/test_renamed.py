"""Code that reads `stream.report` as the result of the check still works, and is warned."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

import pulsify
from tests import models

SAYS = r"the result of the check is Stream\.verification"


def test_old_reads_work_with_a_warning() -> None:
    stream: Any = pulsify.stream(models.look_ahead(), pulse=4)
    for name in ("error", "ok", "runs", "outputs", "notes"):
        with pytest.warns(DeprecationWarning, match=SAYS) as caught:
            assert getattr(stream.report, name) == getattr(stream.verification, name)
        assert caught[0].filename == __file__
    with pytest.warns(DeprecationWarning, match=SAYS):
        assert stream.report
    with pytest.warns(DeprecationWarning, match=SAYS):
        assert str(stream.report) == str(stream.verification)
    assert stream.report is not None
    with pytest.warns(DeprecationWarning, match=SAYS):
        assert not pulsify.stream(models.look_ahead(), pulse=4, verify=False).report


@pytest.mark.filterwarnings("error")
def test_it_is_a_method_to_whoever_looks() -> None:
    report: Any = pulsify.stream(models.look_ahead(), pulse=4, verify=False).report
    assert list(inspect.signature(report).parameters) == ["path", "seconds", "quiet"]
    assert "pulsify report" in inspect.getdoc(report) and "pulsify report" in pulsify.Stream.report.__doc__
    with pytest.raises(AttributeError, match="no attribute '_repr_html_'"):
        report._repr_html_  # noqa: B018
