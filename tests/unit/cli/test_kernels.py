from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest
from click.testing import CliRunner, Result

from pulsify.cli.main import main
from pulsify.kernels import checking, registry


def pulsify(*arguments: str, code: int = 0) -> Result:
    result = CliRunner(env={"COLUMNS": "80"}).invoke(main, ["kernels", *arguments])
    assert result.exit_code == code, result.output
    return result


@pytest.fixture(autouse=True)
def few_cases(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = registry.kernel("stream_attention")
    few = dataclasses.replace(whole, cases=whole.cases[:3])
    monkeypatch.setattr(registry, "kernels", lambda: [few])
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)


def test_the_kernels_are_listed() -> None:
    text = pulsify().stdout
    assert "stream_attention" in text and "triton" in text
    assert max(map(len, text.splitlines())) <= 80
    (one,) = json.loads(pulsify("--json").stdout)["kernels"]
    assert one["implementations"]["torch"] == ["cpu", "cuda"] and one["cases"] == 3


def test_every_implementation_is_checked() -> None:
    text = pulsify("check", "--device", "cpu").stdout
    assert "bfloat16" in text and "was not run" in text
    assert max(map(len, text.splitlines())) <= 80
    facts = json.loads(pulsify("check", "--device", "cpu", "--json").stdout)
    assert facts["ok"] and {one["target"] for one in facts["checked"]} == {"torch", "triton"}


def test_a_failed_case_ends_with_a_mismatch(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(*_: Any) -> Any:
        return float("inf"), 1.0

    monkeypatch.setattr(checking, "deviation", wrong)
    assert "FAILED: plain" in pulsify("check", "--device", "cpu", code=1).stdout
    assert not json.loads(pulsify("check", "--device", "cpu", "--json", code=1).stdout)["ok"]


def test_nothing_to_run_is_no_success() -> None:
    pulsify("check", "--device", "tpu", code=1)
