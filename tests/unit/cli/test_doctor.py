"""What is said of a machine, with and without what may be missing; scripts for shells."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from pulsify.backends import registry
from pulsify.cli.main import main
from pulsify.core.errors import InvalidArgument
from pulsify.report import doctor


def test_all_that_is_needed_is_there_and_named() -> None:
    facts = json.loads(CliRunner().invoke(main, ["doctor", "--json"]).stdout)
    assert all(d["version"] for d in facts["core"])
    assert {b["name"] for b in facts["backends"]} == set(registry.names())
    assert next(b for b in facts["backends"] if b["name"] == "ort")["works"]
    text = CliRunner().invoke(main, ["doctor"]).stdout
    assert "onnxruntime" in text and max(map(len, text.splitlines())) <= 80


def test_what_is_missing_is_named_with_what_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def none() -> tuple[str, ...]:
        raise InvalidArgument("there is no compiler: install one")

    monkeypatch.setattr(doctor, "_found_compiler", none)
    monkeypatch.setattr(doctor, "_version", lambda name: None if name in ("torch", "ziglang") else "1.0")
    facts = doctor.doctor_figures()
    assert facts["missing"] == ["torch", "ziglang"] and facts["devices"] == []
    native = next(b for b in facts["backends"] if b["name"] == "native")
    assert not native["works"] and native["why_not"] == facts["compiler"]["why_not"]
    told = " ".join(CliRunner().invoke(main, ["doctor"]).stdout.split())
    assert "there is no compiler: install one" in told and "'pulsify[native]'" in told


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_shells_get_their_script(shell: str) -> None:
    out = CliRunner().invoke(main, ["completion", shell])
    assert out.exit_code == 0 and "_PULSIFY_COMPLETE" in out.stdout


def test_quiet_leaves_errors_only(tmp_path: object) -> None:
    assert CliRunner().invoke(main, ["doctor", "--quiet"]).output == ""
    bad = CliRunner().invoke(main, ["inspect", "-q", "none.onnx"])
    assert bad.exit_code == 5 and bad.stdout == "" and "no such model file" in bad.stderr
