"""The line that shows long work: when it appears, where, what it says, and that nothing else is printed."""

from __future__ import annotations

import importlib
import io
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

import pulsify
from pulsify.core import status_line
from pulsify.core.progress import counted, heard, stage, tell
from pulsify.core.status_line import DELAY, NotebookLine, audience, short_name, showing, watched
from tests import models


class Screen(io.StringIO):
    """Something that takes text, a terminal or not."""

    def __init__(self, terminal: bool = True) -> None:
        super().__init__()
        self.terminal = terminal

    def isatty(self) -> bool:
        return self.terminal


class Clock:
    """Time that passes when a test says so, and what is due then."""

    def __init__(self) -> None:
        self.now = 0.0
        self.due: list[tuple[float, Callable[[], None]]] = []

    def later(self, seconds: float, action: Callable[[], None]) -> Callable[[], None]:
        entry = (self.now + seconds, action)
        self.due.append(entry)
        return lambda: self.due.remove(entry) if entry in self.due else None

    def pass_by(self, seconds: float) -> None:
        self.now += seconds
        ready = [entry for entry in self.due if entry[0] <= self.now]
        for entry in ready:
            self.due.remove(entry)
            entry[1]()


class Cell:
    """A notebook's output: what it shows, one after the other."""

    def __init__(self) -> None:
        self.shown: list[str] = []

    def display(self, bundle: dict[str, str], raw: bool, display_id: bool) -> Cell:
        assert raw and display_id
        return self.update(bundle, raw)

    def update(self, bundle: dict[str, str], raw: bool) -> Cell:
        assert raw
        self.shown.append(bundle["text/plain"])
        return self


def watch(stderr: Screen | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """stderr as the line sees it; pytest has one of its own in `sys`."""
    monkeypatch.setattr(status_line, "sys", SimpleNamespace(stderr=stderr, modules=sys.modules))


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    out = Clock()
    monkeypatch.setattr(status_line, "later", out.later)
    return out


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Screen:
    screen = Screen()
    monkeypatch.setenv("TERM", "xterm")
    watch(screen, monkeypatch)
    return screen


@pytest.fixture
def cell(monkeypatch: pytest.MonkeyPatch) -> Cell:
    """IPython as it is in a notebook's kernel."""
    out, ipython, display = Cell(), ModuleType("IPython"), ModuleType("IPython.display")
    vars(ipython)["get_ipython"] = lambda: SimpleNamespace(kernel=object())
    vars(display)["display"] = out.display
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    monkeypatch.setitem(sys.modules, "IPython.display", display)
    return out


@pytest.fixture
def lines(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """All that any line says, instead of drawing it."""
    said: list[str] = []

    class Line:
        def __init__(self, text: str) -> None:
            said.append(text)

        def update(self, text: str) -> None:
            said.append(text)

        def close(self) -> None:
            said.append("")

    monkeypatch.setattr(status_line, "audience", lambda: Line)
    yield said
    assert not status_line._SHOWN.locked()


def test_nothing_is_drawn_before_two_seconds(terminal: Screen, clock: Clock) -> None:
    with showing("converting m.onnx"):
        clock.pass_by(DELAY - 0.01)
        tell("node 1 of 3")
    clock.pass_by(DELAY)
    assert terminal.getvalue() == "" and not clock.due


def test_a_terminal_shows_what_is_done_and_is_left_clean(terminal: Screen, clock: Clock) -> None:
    stderr = sys.stderr
    with showing("converting [m].onnx"):
        tell("node 1 of 3")
        clock.pass_by(DELAY)
        assert "converting [m].onnx: node 1 of 3" in terminal.getvalue()
        assert sys.stderr is stderr, "it is not redirected"
    assert terminal.getvalue().endswith("\x1b[2K"), "the line is erased"


def test_later_stages_follow(lines: list[str], clock: Clock) -> None:
    with showing("converting") as rename:
        clock.pass_by(DELAY)
        with stage("checking against the batch model"):
            assert list(counted("stream", "a")) == ["a"]
        rename("writing")
        tell("weights")
    check = "converting: checking against the batch model"
    assert lines == ["converting", check, f"{check}: stream 1 of 1", "writing", "writing: weights", ""]


def test_inside_another_there_is_one_line(lines: list[str], clock: Clock) -> None:
    with showing("writing a report"), showing("converting") as say:
        clock.pass_by(DELAY)
        tell("node 1 of 3")
        say("almost there")
    assert lines == ["writing a report", "writing a report: node 1 of 3", "writing a report: almost there", ""]


def test_quiet_holds_for_everything_inside(lines: list[str], clock: Clock) -> None:
    with showing("converting", quiet=True) as say, showing("opening"):
        say("almost there")
        tell("node 1 of 3")
        clock.pass_by(DELAY)
    assert lines == [] and not clock.due


def test_without_an_audience_no_clock_is_started(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    for stderr in (Screen(terminal=False), None):
        watch(stderr, monkeypatch)
        with showing("converting") as say:
            say("almost there")
            assert not clock.due
        assert stderr is None or stderr.getvalue() == ""


def test_a_second_thread_is_not_shown(lines: list[str], clock: Clock) -> None:
    def work() -> None:
        with showing("verifying"):
            clock.pass_by(DELAY)

    with showing("converting"):
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    assert lines == ["converting", ""]


def test_a_failure_ends_the_line(lines: list[str], clock: Clock) -> None:
    def fails() -> None:
        with showing("converting", delay=0.0):
            raise ValueError("wrong")

    with pytest.raises(ValueError, match="wrong"):
        fails()
    assert lines == ["converting", ""] and not clock.due


def test_a_notebook_has_a_line_of_its_own(cell: Cell, clock: Clock) -> None:
    with showing("converting"):
        clock.pass_by(DELAY - 0.01)
        assert cell.shown == []
        tell("node 1 of 3")
        clock.pass_by(0.01)
    assert cell.shown == ["converting: node 1 of 3", ""]


def test_a_notebook_is_not_flooded(cell: Cell) -> None:
    clock = Clock()
    line = NotebookLine("<converting>", lambda: clock.now)
    for number in range(10):
        clock.now += 0.125
        line.update(f"node {number}")
    line.close()
    assert cell.shown == ["<converting>", "node 1", "node 3", "node 5", "node 7", "node 9", ""]
    assert status_line._bundle("<x>")["text/html"] == "<i>&lt;x&gt;</i>"


def test_ipython_on_a_terminal_is_a_terminal(terminal: Screen, cell: Cell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules["IPython"], "get_ipython", lambda: SimpleNamespace(), raising=False)
    assert isinstance(audience(), object) and audience() is not NotebookLine
    terminal.terminal = False
    assert audience() is None


def test_the_real_timer_runs_in_the_context_it_was_started_in() -> None:
    said: list[str] = []
    done = threading.Event()

    def action() -> None:
        tell("from the timer")
        done.set()

    with heard(said.append):
        status_line.later(0.0, action)
        assert done.wait(60)
    assert said == ["from the timer"]
    status_line.later(3600.0, action)()  # what is returned cancels it


@pytest.mark.parametrize(
    ("subject", "name"),
    [("/a/m.onnx", "m.onnx"), (b"", "bytes"), (models.look_ahead(1), "ModelProto"), (None, "NoneType")],
)
def test_names_are_short(subject: Any, name: str) -> None:
    assert short_name(subject) == name


def test_watched_functions_keep_their_face(lines: list[str], clock: Clock) -> None:
    @watched("adding to {}")
    def add(a: int, b: int = 1, quiet: bool = False) -> int:
        """Adds."""
        clock.pass_by(DELAY)
        return a + b

    assert (add(1), add(a=2, b=3, quiet=True), add.__name__, add.__doc__) == (2, 5, "add", "Adds.")
    assert lines == ["adding to int", ""]
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'a'"):
        add()  # type: ignore[call-arg]


# ---- the public functions


def test_conversion_names_its_stages(lines: list[str], clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    check = importlib.import_module("pulsify.verify.check")
    batch = check._batch_runs

    def slow(*arguments: Any) -> Any:
        clock.pass_by(DELAY)
        return batch(*arguments)

    monkeypatch.setattr(check, "_batch_runs", slow)
    model = models.look_ahead(1)
    stream = pulsify.stream(model, pulse=4)
    assert lines[0] == "converting ModelProto: checking against the batch model"
    assert "converting ModelProto: checking against the batch model: by pulses, stream 1 of 2" in lines
    lines.clear()
    pulsify.verify(model, stream, lengths=[9])
    assert lines[0].startswith("comparing with the batch model") and lines[-1] == ""
    lines.clear()
    pulsify.stream(model, pulse=4, quiet=True)
    pulsify.verify(model, stream, lengths=[9], quiet=True)
    assert lines == []


def test_tracing_and_rules_are_reported() -> None:
    said: list[str] = []
    with heard(said.append):
        pulsify.stream(models.look_ahead(1), pulse=4, verify=False)
    assert any(text.startswith("tracing at ") and text.endswith(" frames") for text in said)
    assert any(text.startswith("node 1 of ") for text in said)


QUICK = """
import sys
import numpy as np
import pulsify
from tests import models
stream = pulsify.stream(models.look_ahead(1), pulse=4)
stream.session()
assert not {"rich", "IPython"} & set(sys.modules), "imported before anything is shown"
"""


def test_rich_is_imported_when_something_is_shown() -> None:
    done = subprocess.run([sys.executable, "-c", QUICK], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
