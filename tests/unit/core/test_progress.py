"""Progress goes to whoever listens, and to nobody else."""

from __future__ import annotations

import pytest

from pulsify.core.progress import counted, heard, listener, stage, tell


def test_it_is_heard_inside_and_not_outside() -> None:
    said: list[str] = []
    tell("before")

    def fails() -> None:
        with heard(lambda text: said.append(text.upper())):
            tell("nested")
            raise ValueError("wrong")

    with heard(said.append):
        tell("inside")
        with pytest.raises(ValueError, match="wrong"):
            fails()
        assert list(counted("node", "ab")) == ["a", "b"]
    tell("after")
    assert said == ["inside", "NESTED", "node 1 of 2", "node 2 of 2"]


def test_stages_are_named_before_what_is_reported_inside() -> None:
    said: list[str] = []
    with stage("unheard"):
        tell("nothing")
        assert listener() is None
    with heard(said.append), stage("checking"), stage("by pulses"):
        tell("stream 1 of 2")
    assert said == ["checking", "checking: by pulses", "checking: by pulses: stream 1 of 2"]
