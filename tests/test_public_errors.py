"""Whatever fails below a public function or method, what leaves it is a PulsifyError.

Every function and method is called as users call it, and somewhere below it an exception is raised: at the first call
of any of pulsify's own functions, at the last and at some between.
"""

from __future__ import annotations

import asyncio
import inspect
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from functools import cached_property
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import onnx
import pytest

import pulsify
import pulsify.extend
import pulsify.testing
from pulsify.asr import Recogniser, Transcriber
from pulsify.core import boundary
from pulsify.core.custom import CUSTOM, WHOLE
from pulsify.ops.registry import RULES
from pulsify.runtime.lane import Lane
from pulsify.runtime.streams import Streams
from tests import models
from tests.models import frames

SOURCE = str(Path(pulsify.__file__).parent)
CLASSES = (pulsify.Stream, pulsify.Session, pulsify.Pool, Lane, Streams, Recogniser, Transcriber)
FUNCTIONS = ("chain", "compare_nodes", "export", "load", "stream", "verify")
PLACES = 6  # of each call
MOST = 3000  # calls below it that are looked at
# looks at locks and threads alone, before anything is done or after all is
BARE = {"_enter", "_leave", "_refuse", "__del__"}
Call = Callable[[], Any]


GUARDED_INSIDE = (
    pulsify.Session.push, pulsify.Session.flush, pulsify.Session.reset, pulsify.Session.restore, Lane.push, Lane.flush,
    pulsify.Pool.run, pulsify.Pool.step, pulsify.Pool.exchange, pulsify.Session.iterate,
)  # fmt: skip
HOT = {function.__code__ for function in GUARDED_INSIDE}


class Injected(RuntimeError):
    """What goes wrong."""


class Injecting:
    """Raises at the n-th call of a function of pulsify below the one that is called; counts them if n is None."""

    def __init__(self, at: int | None = None, error: type[BaseException] = Injected) -> None:
        self.at, self.error, self.count, self.depth_found = at, error, 0, False

    def __enter__(self) -> Injecting:
        sys.settrace(self.trace)
        return self

    def __exit__(self, *error: object) -> None:
        sys.settrace(None)

    def trace(self, frame: FrameType, event: str, argument: object) -> None:
        code = frame.f_code
        inside = code.co_filename.startswith(SOURCE) and code.co_filename != boundary.__file__
        if (
            event != "call"
            or not inside
            or code.co_flags & (inspect.CO_GENERATOR | inspect.CO_ASYNC_GENERATOR)
            or code.co_name in BARE
            or (self.depth_found and code in HOT)
        ):
            return
        if not self.depth_found:  # the function itself
            self.depth_found = True
            return
        self.count += 1
        if self.count == MOST:
            sys.settrace(None)
        if self.count - 1 == self.at:
            sys.settrace(None)
            raise self.error(f"injected into {code.co_name}")


@pytest.fixture(scope="module")
def stream() -> pulsify.Stream:
    out = pulsify.stream(models.look_ahead("B"), pulse=4, verify=False)
    out.session().push(frames(1, 2, 4))
    return out


@pytest.fixture(scope="module")
def saved(stream: pulsify.Stream, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("public") / "s.onnx"
    stream.save(path)
    return path


@pytest.fixture(scope="module")
def words(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A recogniser of one convolution over samples."""
    folder = tmp_path_factory.mktemp("words")
    conv = models.node("Conv", "x w", "y", strides=[16], pads=[15, 0])
    onnx.save(models.model([conv], {"x": ("B", 1, "S")}, ["y"], {"w": models.weights(4, 1, 16)}), folder / "e.onnx")
    (folder / "v.txt").write_text("▁a\n▁b\n▁c\n", "utf-8")
    (folder / "model.toml").write_text(
        'kind = "ctc"\nsample_rate = 1600\nencoder = "e.onnx"\nvocabulary = "v.txt"\n'
        '[encoder_options]\npulse = 32\ntime = "S"\nset = {B = 1}\n'
    )
    return folder / "model.toml"


@pytest.fixture(scope="module")
def recogniser(words: Path) -> Recogniser:
    return Recogniser.open(words, verify=False)


def _pushed(session: Any) -> Any:
    session.push(frames(1, 2, 10))
    return session


def calls(stream: pulsify.Stream, saved: Path, recogniser: Recogniser) -> dict[str, Callable[[], Call]]:
    """By name: what is set up, which gives what is called."""
    x, folder = frames(1, 2, 10), saved.parent
    three = frames(3, 2, 10)
    sound = np.zeros(4000, np.float32)
    batch = models.look_ahead("B")

    def session(name: str, *arguments: Any) -> Callable[[], Call]:
        def given() -> Call:
            opened = _pushed(stream.session())
            return lambda: getattr(opened, name)(*arguments)

        return given

    def lane(name: str, *arguments: Any) -> Callable[[], Call]:
        def given() -> Call:
            opened = _pushed(pulsify.Pool(stream, 2).open())
            return lambda: getattr(opened, name)(*arguments)

        return given

    def pool(name: str, *arguments: Any) -> Callable[[], Call]:
        def given() -> Call:
            opened = pulsify.Pool(stream, 2)
            opened.lane = _pushed(opened.open())  # type: ignore[attr-defined]
            return lambda: getattr(opened, name)(*arguments)

        return given

    def exchange() -> Call:
        opened = pulsify.Pool(stream, 2)
        lanes = [opened.open(), opened.open()]
        return lambda: opened.exchange(lanes, frames(2, 2, 4))

    def streams(name: str, *arguments: Any) -> Callable[[], Call]:
        def given() -> Call:
            opened = stream.session(batch=3, independent=True)
            opened.push(three)
            return lambda: getattr(opened, name)(*arguments)

        return given

    def transcriber(name: str, *arguments: Any) -> Callable[[], Call]:
        def given() -> Call:
            opened = recogniser.transcriber()
            opened.push(sound)
            return lambda: getattr(opened, name)(*arguments)

        return given

    def fresh() -> pulsify.Stream:
        return pulsify.load(saved)

    def of(make: Callable[[], Any], use: Callable[[Any], Any]) -> Callable[[], Call]:
        def given() -> Call:
            made = make()
            return lambda: use(made)

        return given

    toml = recogniser.settings.encoder.with_name("model.toml")
    blob = _pushed(stream.session()).state()
    again = models.model([models.node("Relu", "y", "z")], {"y": [1, 3, "T"]}, ["z"])
    return {
        "stream": lambda: lambda: pulsify.stream(batch, pulse=4, verify=False),
        "load": lambda: lambda: pulsify.load(saved),
        "verify": lambda: lambda: pulsify.verify(batch, stream, lengths=[9]),
        "export": lambda: lambda: pulsify.export(stream, "onnx", folder / "e.onnx"),
        "chain": lambda: lambda: pulsify.chain(models.look_ahead(), again),
        "compare_nodes": lambda: lambda: pulsify.compare_nodes(stream, backend="torch", length=8),
        "assert_streams": lambda: lambda: pulsify.testing.assert_streams(batch, pulse=4),
        "Stream.save": of(fresh, lambda s: s.save(folder / "again.onnx")),
        "Stream.export": of(fresh, lambda s: s.export(folder / "again.onnx", opset=18)),
        "Stream.session": of(fresh, lambda s: s.session()),
        "Stream.run": of(fresh, lambda s: s.run(x)),
        "Stream.quickest": of(fresh, lambda s: s.quickest()),
        "Stream.sources": of(fresh, lambda s: s.sources("torch")),
        "Stream.wired": of(fresh, lambda s: s.wired("torch")),
        "Stream.pooled": of(fresh, lambda s: s.pooled("ort", False, True, 1)),
        "Stream.opened_by": of(
            lambda: pulsify.stream(models.mirrored(), pulse=2, verify=False), lambda s: s.opened_by("ort", True, 1)
        ),
        "Stream.release_portable": of(fresh, lambda s: s.release_portable()),
        "Stream.natural_pulse": of(
            lambda: pulsify.stream(models.look_ahead(), pulse=8, verify=False), lambda s: _unknown(s).natural_pulse
        ),
        **{
            f"Stream.{name}": of(fresh, lambda s, name=name: getattr(s, name))
            for name in (
                "probes", "course", "pulse", "granularity", "first_call", "start_up", "latency", "sample_rate",
                "inputs", "statics", "outputs", "states", "bindings", "proof", "state_bytes", "quantised", "warm",
            )
        },
        "Session.push": session("push", x),
        "Session.flush": session("flush"),
        "Session.reset": session("reset"),
        "Session.state": session("state"),
        "Session.restore": session("restore", blob),
        "Session.fork": session("fork"),
        "Session.peek": session("peek"),
        "Session.made": session("made"),
        "Session.aiterate": lambda: (lambda opened: lambda: asyncio.run(drained(opened.aiterate([x]))))(
            stream.session()
        ),
        "Session.iterate": lambda: (lambda opened: lambda: list(opened.iterate([x])))(stream.session()),
        "Session.closed": lambda: (lambda opened: lambda: opened.closed)(stream.session()),
        "Session.placement": lambda: (lambda opened: lambda: opened.placement)(stream.session()),
        "Pool.__init__": lambda: lambda: pulsify.Pool(stream, 2),
        "Pool.open": lambda: pulsify.Pool(stream, 2).open,
        "Pool.run": pool("run"),
        "Pool.step": pool("step"),
        "Pool.exchange": exchange,
        "Pool.placement": lambda: (lambda opened: lambda: opened.placement)(pulsify.Pool(stream, 2)),
        "Pool.settles": lambda: (lambda opened: lambda: opened.settles)(pulsify.Pool(stream, 2)),
        "Lane.push": lane("push", x),
        "Lane.flush": lane("flush"),
        "Lane.check": lane("check", {"x": x}),
        "Lane.check_end": lane("check_end"),
        "Lane.reset": lane("reset"),
        "Lane.close": lane("close"),
        "Lane.state": lane("state"),
        "Lane.restore": lane("restore", blob),
        "Lane.fork": lane("fork"),
        "Lane.peek": lane("peek"),
        "Lane.alone": lane("alone"),
        "Lane.live": lambda: (lambda opened: lambda: opened.live)(pulsify.Pool(stream, 2).open()),
        "Streams.__init__": lambda: (lambda opened: lambda: Streams(opened))(pulsify.Pool(stream, 2)),
        "Streams.push": streams("push", three),
        "Streams.flush": streams("flush"),
        "Streams.peek": streams("peek"),
        "Streams.reset": streams("reset"),
        "Recogniser.open": lambda: lambda: Recogniser.open(toml, verify=False),
        "Recogniser.delay": lambda: lambda: recogniser.delay(4000),
        "Recogniser.transcriber": lambda: recogniser.transcriber,
        "Recogniser.batch": lambda: lambda: recogniser.batch(sound),
        "Recogniser.frame_seconds": lambda: lambda: recogniser.frame_seconds,
        "Recogniser.sample_rate": lambda: lambda: recogniser.sample_rate,
        "Recogniser.parts": lambda: lambda: recogniser.parts,
        "Transcriber.__init__": lambda: lambda: Transcriber(recogniser),
        "Transcriber.push": transcriber("push", sound),
        "Transcriber.flush": transcriber("flush"),
        "Transcriber.reset": transcriber("reset"),
        "Transcriber.seconds": lambda: (lambda opened: lambda: opened.seconds)(recogniser.transcriber()),
    }  # fmt: skip


async def drained(results: AsyncIterator[object]) -> list[object]:
    return [each async for each in results]


def _unknown(stream: pulsify.Stream) -> pulsify.Stream:
    """Asked for its natural pulse, it has to look."""
    from dataclasses import replace

    stream.spec = replace(stream.spec, natural_pulse=None)
    return stream


def public_names() -> list[str]:
    """Every public function, and every public method and property of the public classes."""
    functions = [n for n in pulsify.__all__ if inspect.isfunction(getattr(pulsify, n)) or n in FUNCTIONS]
    members = [
        f"{cls.__name__}.{name}"
        for cls in CLASSES
        for name, member in vars(cls).items()
        if (
            (not name.startswith("_") or (name == "__init__" and cls in (pulsify.Pool, Streams, Transcriber)))
            and isinstance(
                inspect.unwrap(member) if callable(member) else member, (property, cached_property, Callable)
            )
        )
        or (isinstance(member, staticmethod) and not name.startswith("_"))
    ]
    return sorted({*functions, *members, "assert_streams"})


def test_every_public_name_is_called_here(stream: pulsify.Stream, saved: Path, recogniser: Recogniser) -> None:
    assert sorted(calls(stream, saved, recogniser)) == public_names()


def places(count: int) -> list[int]:
    """Some of so many, the first and the last among them."""
    return sorted({round(i * (count - 1) / (PLACES - 1)) for i in range(PLACES)}) if count else []


def injected(call: Callable[[], Call], at: int, error: type[BaseException] = Injected) -> BaseException | None:
    use = call()
    try:
        with Injecting(at, error):
            use()
    except BaseException as caught:
        return caught
    return None


def caused(error: BaseException) -> Iterator[BaseException]:
    current: BaseException | None = error
    while current is not None:
        yield current
        current = current.__cause__ or current.__context__


@pytest.mark.parametrize("name", public_names())
def test_what_leaves_is_a_pulsify_error(
    name: str, stream: pulsify.Stream, saved: Path, recogniser: Recogniser, request: pytest.FixtureRequest
) -> None:
    if name in ("compare_nodes", "Stream.sources", "Stream.wired"):
        pytest.importorskip("torch")
    call = calls(stream, saved, recogniser)[name]
    use = call()
    with Injecting() as counting:
        use()
    outcomes = [injected(call, at) for at in places(counting.count)]
    for outcome in outcomes:
        if outcome is not None:  # else there was another way
            assert isinstance(outcome, pulsify.PulsifyError), outcome
            assert any(isinstance(each, Injected) for each in caused(outcome)), outcome
    if outcomes:
        assert any(isinstance(outcome, pulsify.InternalError) for outcome in outcomes), outcomes


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, MemoryError])
@pytest.mark.parametrize("name", ["stream", "load", "Session.flush", "Pool.run", "Lane.state", "Transcriber.push"])
def test_what_passes_through(
    name: str, error: type[BaseException], stream: pulsify.Stream, saved: Path, recogniser: Recogniser
) -> None:
    outcome = injected(calls(stream, saved, recogniser)[name], 0, error)
    assert type(outcome) is error


def test_the_hot_path_has_no_frame_of_its_own() -> None:
    """Between a result and its caller nothing may be called: see docs/design/runtime.md."""
    for function in GUARDED_INSIDE:
        assert inspect.unwrap(function) is function


# ---- what callers bring along


def acme() -> onnx.ModelProto:
    return onnx.parser.parse_model("""
        <ir_version: 10, opset_import: ["" : 17, "acme" : 1]>
        agraph (float[1, 2, T] x) => (float[1, 2, T] y) {
            y = acme.Boost (x)
        }""")


@pytest.fixture
def boost() -> Iterator[None]:
    yield
    RULES.pop("acme::Boost", None)
    CUSTOM.pop(("acme", "Boost"), None)
    WHOLE.discard(("acme", "Boost"))


@pytest.mark.usefixtures("boost")
@pytest.mark.parametrize("place", ["rule", "shapes"])
def test_errors_of_an_operator_from_outside_name_it(place: str) -> None:
    def shapes(attributes: Any, inputs: Any) -> Any:
        return {}["nothing"] if place == "shapes" else [inputs[0]]

    pulsify.extend.define("acme::Boost", shapes=shapes)

    @pulsify.extend.rule("acme::Boost", says="not at all")
    def boosted(ctx: pulsify.extend.Context, node: pulsify.extend.Node) -> None:
        raise KeyError("nothing")

    with pytest.raises(KeyError, match="nothing") as caught:
        pulsify.stream(acme(), pulse=4)
    assert caught.value.__notes__ == [f"raised by the {place} of 'acme::Boost', which is not part of pulsify"]


def test_errors_of_the_callers_chunks_pass(stream: pulsify.Stream) -> None:
    def chunks() -> Iterator[Any]:
        yield frames(1, 2, 4)
        raise KeyError("the microphone is gone")

    with pytest.raises(KeyError, match="microphone"):
        list(stream.session().iterate(chunks()))

    def cuts() -> Iterator[int]:
        yield 3
        raise KeyError("no more")

    with pytest.raises(KeyError, match="no more"):
        stream.run(frames(1, 2, 10), chunks=cuts())


def test_an_operator_is_named_well() -> None:
    with pytest.raises(pulsify.InvalidArgument, match="domain::Operator"):
        pulsify.extend.define("::x")
    with pytest.raises(pulsify.InvalidArgument, match="ops=7: expected str"):
        pulsify.extend.rule(7)  # type: ignore[arg-type]


def test_wrong_calls_are_pythons_to_report() -> None:
    with pytest.raises(TypeError, match="unexpected keyword argument 'puls'"):
        pulsify.stream(models.look_ahead(), puls=4)  # type: ignore[call-arg]


# ---- the node


def test_an_internal_error_names_the_node(monkeypatch: pytest.MonkeyPatch) -> None:
    from dataclasses import replace

    def broken(ctx: Any, node: Any) -> None:
        raise IndexError("list index out of range")

    broken.__module__ = RULES["Relu"].rule.__module__
    monkeypatch.setitem(RULES, "Conv", replace(RULES["Conv"], rule=broken))
    proto = models.look_ahead()
    with pytest.raises(pulsify.InternalError, match="this is a bug in pulsify at Conv node 'h'") as caught:
        pulsify.stream(proto, pulse=4)
    assert (caught.value.op, caught.value.node) == ("Conv", "h")
    assert isinstance(caught.value.__cause__, IndexError)
    for part in ("list index out of range", "onnxruntime ", "Python 3.", "pulsify report MODEL", "traceback"):
        assert part in str(caught.value)


# ---- wrong arguments are no bugs


WRONG: list[Any] = [
    None, -1, 1.5, "x", b"x", [1, 2], {1: 2}, object(), np.zeros(3), np.array("a"), [[1], [1, 2]], float("nan"), set(),
]  # fmt: skip


def test_wrong_arguments_are_said_to_be_wrong(stream: pulsify.Stream, saved: Path) -> None:
    """Of any kind, for any parameter: never the bug that an InternalError says it is, nor an exception of Python."""
    batch, x = models.look_ahead("B"), frames(1, 2, 10)
    uses: dict[str, tuple[Call, tuple[str, ...]]] = {
        "stream": (
            lambda **k: pulsify.stream(batch, **{"pulse": 4, "verify": False, **k}),
            ("pulse", "time", "bind", "set", "unbounded", "proof", "sample_rate"),
        ),
        "load": (lambda **k: pulsify.load(saved, **k), ("check",)),
        "verify": (
            lambda **k: pulsify.verify(batch, stream, **{"lengths": [9], **k}),
            ("lengths", "chunkings", "tolerance", "seed", "options"),
        ),
        "export": (lambda path: pulsify.export(stream, "onnx", path), ("path",)),
        "chain": (lambda **k: pulsify.chain(batch, batch, **k), ("connect",)),
        "session": (lambda **k: stream.session(**k), ("batch", "padding", "statics", "threads", "backend", "options")),
        "run": (lambda inputs: stream.run(inputs), ("inputs",)),
        "running": (
            lambda **k: stream.run(x, **k),
            ("chunks", "padding", "threads", "options", "batch", "independent"),
        ),
        "binding": (lambda **k: pulsify.stream(models.with_length(), **k, pulse=4), ("bind",)),
        "pool": (lambda **k: pulsify.Pool(stream, **k), ("most", "padding", "threads", "options")),
        "pool of": (lambda stream: pulsify.Pool(stream), ("stream",)),
        "step": (lambda **k: pulsify.Pool(stream, 1).step(**k), ("rounds", "budget")),
        "exchange": (lambda streams: pulsify.Pool(stream, 1).exchange(streams, x), ("streams",)),
        "push": (lambda chunk: stream.session().push(chunk), ("chunk",)),
        "restore": (lambda blob: stream.session().restore(blob), ("blob",)),
        "streams": (lambda **k: stream.session(batch=2, independent=True).flush(**k), ("which",)),
        "active": (lambda **k: stream.session(batch=2, independent=True).push(frames(2, 2, 4), **k), ("active",)),
        "define": (lambda **k: pulsify.extend.define(**k), ("name",)),
    }  # fmt: skip
    for name, (use, parameters) in uses.items():
        for parameter in parameters:
            for value in WRONG:
                if name == "export" and isinstance(value, (str, bytes)):
                    continue  # a path
                try:
                    use(**{parameter: value})
                except pulsify.InternalError as error:
                    raise AssertionError(f"{name}({parameter}={value!r})") from error
                except pulsify.PulsifyError:
                    continue


@pytest.mark.parametrize("options", [{"batch": 1}, {"independent": True}])
def test_run_takes_as_many_streams_as_the_input_has(stream: pulsify.Stream, options: dict[str, Any]) -> None:
    for inputs in (frames(1, 2, 9), [frames(1, 2, 9)]):
        with pytest.raises(pulsify.InvalidArgument, match=f"run\\(\\) has no option '{next(iter(options))}'"):
            stream.run(inputs, **options)


def test_a_padding_that_is_no_number_is_rejected_before_a_frame_is_taken(stream: pulsify.Stream) -> None:
    with pytest.raises(pulsify.InvalidArgument, match="padding='a': expected a number"):
        stream.session(padding="a")  # type: ignore[arg-type]
    with pytest.raises(pulsify.InvalidArgument, match="padding='a': expected a number"):
        pulsify.Pool(stream, padding="a").open()  # type: ignore[arg-type]


def test_values_of_a_mapping_are_looked_at_too() -> None:
    with pytest.raises(pulsify.InvalidArgument, match=r"bind=.*: expected Mapping\[str, str \| None\] \| None"):
        pulsify.stream(models.with_length(), pulse=4, bind={"length": ["T"]})  # type: ignore[dict-item]


def test_verify_without_chunkings_checks_nothing_and_says_so(stream: pulsify.Stream) -> None:
    with pytest.raises(pulsify.InvalidArgument, match="expected at least one of"):
        pulsify.verify(models.look_ahead("B"), stream, chunkings=[])


def test_a_null_byte_in_a_path_is_no_bug(stream: pulsify.Stream) -> None:
    for call in (stream.save, stream.export, stream.report):
        with pytest.raises(pulsify.InvalidArgument, match="null byte"):
            call("a\0b.onnx")


def test_a_wrong_argument_is_named_with_its_type(stream: pulsify.Stream) -> None:
    with pytest.raises(pulsify.InvalidArgument, match=r"lengths=7: expected Sequence\[int\] \| None"):
        pulsify.verify(models.look_ahead("B"), stream, lengths=7)  # type: ignore[arg-type]
