"""The opening of a stream: its first pulses as one, by a step of their own, whose states are those of the pulses after.

backlog  ........  until so many are there, or the stream has ended
opening  [      )  frames out, states -> the stepper or the slot that goes on from here
pulses           [ ) [ ) [ ) ...
"""

from __future__ import annotations

from pulsify.backends.seam import Array, Stepper
from pulsify.core.errors import InvalidChunk
from pulsify.core.runner import error_text
from pulsify.runtime.blame import guilty, said
from pulsify.runtime.framer import Framer


def run_opening(stepper: Stepper, framer: Framer, total: int | None) -> dict[str, Array]:
    """Run it on what is there and collect its frames. What the stream remembers then; total: its length, at its end."""
    framer.load(stepper.inputs, padded=total is not None)
    length = framer.relative(total)
    try:
        out = stepper.run(length)
    except Exception as error:  # runtimes have no common class for them
        what, rows = error_text(error), guilty(stepper, framer.spec, framer.batch, length)
        what = f"{said(rows, framer.batch)}: {what}" if rows else what
        failed = InvalidChunk(f"the model failed on the first chunks ({what})")
        failed.model_failed, failed.lane = True, rows[0] if rows else None
        raise failed from error
    states = stepper.states()
    framer.collect(out, total)
    return states
