"""For the test suite of whoever trains a model: does it still stream, soon enough, with a state small enough?

def test_it_can_be_live():
    assert_streams(Denoiser(), torch.randn(1, 1, 16000), sample_rate=16000, max_delay_ms=20, max_state_bytes=100_000)
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pulsify.api import Stream, stream
from pulsify.core.boundary import public
from pulsify.core.errors import InvalidArgument, Mismatch, NotStreamable
from pulsify.report.delays import delay_figures
from pulsify.report.figures import output_figures
from pulsify.report.render import count, size

if TYPE_CHECKING:
    import torch

    from pulsify.api import Example, Model

LARGEST = 8  # states that are named where there is too much of them


def assert_streams(
    model: Model | torch.nn.Module,
    example: Example | None = None,
    *,
    sample_rate: float | None = None,
    max_delay_ms: float | None = None,
    max_delay_frames: int | None = None,
    max_state_bytes: int | None = None,
    pulse: int | None = None,
    time: str | Mapping[str, int] | None = None,
    bind: Mapping[str, str | None] | None = None,
    set: Mapping[str, int | str] | None = None,
    unbounded: str | int = "refuse",
) -> Stream:
    """The stream of this model, or AssertionError that says why there is none, or what makes it late or large.

    model: as `pulsify.stream` takes it; a module needs an example. sample_rate: frames of the first input a second,
    needed for max_delay_ms. max_delay_frames: in frames of the first input. max_state_bytes: of one stream. The others:
    as for `pulsify.stream`. A stream is compared with the batch model at a few lengths; `pulsify.verify` does more.
    """
    if max_delay_ms is not None and sample_rate is None:
        raise InvalidArgument("max_delay_ms needs sample_rate: frames of the first input a second")
    meaning: dict[str, Any] = {"time": time, "bind": bind, "set": set}
    try:
        made = stream(model, pulse, example=example, unbounded=unbounded, sample_rate=sample_rate, **meaning)
    except NotStreamable as refusal:
        raise AssertionError(f"this model does not stream\n  {refusal}") from refusal
    except Mismatch as wrong:
        raise AssertionError(f"the stream is not the batch model\n  {wrong}") from wrong
    problems = _problems(made, max_delay_ms, max_delay_frames, max_state_bytes)
    if problems:
        raise AssertionError("\n".join(problems))
    return made


@public
def _problems(
    made: Stream, max_delay_ms: float | None, max_delay_frames: int | None, max_state_bytes: int | None
) -> list[str]:
    """What is later or larger than allowed, in words."""
    late = [o for o in made.outputs if o.axis is not None and _late(made, o, max_delay_ms, max_delay_frames)]
    problems = []
    if late:
        chains = {d["output"]: d["waits"] for d in delay_figures(made.course, made.sample_rate)} if made.course else {}
        problems += [_told(made, o, max_delay_ms, max_delay_frames, chains.get(o.name, [])) for o in late]
    if max_state_bytes is not None and made.state_bytes > max_state_bytes:
        problems.append(_large(made, max_state_bytes))
    return problems


def _late(made: Stream, output: Any, most_ms: float | None, most_frames: int | None) -> bool:
    found = output_figures(made.spec, output, made.sample_rate)
    beyond_ms = most_ms is not None and (found["delay_ms"] or 0) > most_ms
    return beyond_ms or (most_frames is not None and (found["delay_input_frames"] or 0) > most_frames)


def _told(made: Stream, output: Any, most_ms: float | None, most_frames: int | None, chain: list[Any]) -> str:
    found = output_figures(made.spec, output, made.sample_rate)
    limits = [f"{most:g} {unit}" for most, unit in ((most_ms, "ms"), (most_frames, "frames")) if most is not None]
    own = f"{count(found['delay_input_frames'], 'frame')} of the input" + _ms(found["delay_ms"])
    lines = [f"output '{output.name}' is {own} late, allowed are {' and '.join(limits)}; it comes from:"]
    for step in chain:
        lines.append(
            f"  {count(step['added'], 'frame')}{_ms(step['added_ms'])} at {step['op']} '{step['node']}': {step['says']}"
        )
    return "\n".join(lines)


def _ms(found: float | None) -> str:
    return "" if found is None else f" ({found:g} ms)"


def _large(made: Stream, most: int) -> str:
    states = sorted(made.states, key=lambda s: -s.nbytes)
    lines = [f"a stream's state is {size(made.state_bytes)}, allowed are {size(most)}; the largest parts:"]
    lines += [f"  {size(s.nbytes)} for '{s.node}' {list(s.shape)}" for s in states[:LARGEST]]
    return "\n".join(lines)
