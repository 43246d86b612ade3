"""Everything pulsify can say no with."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pulsify.core.refusal import Kind, Remedies, as_remedies

if TYPE_CHECKING:
    from pulsify.core.report import Report


class PulsifyError(Exception):
    """The root of all errors raised on purpose by pulsify.

    lane: of several streams, the one that failed (a pool's lane, or its number among streams side by side).
    results: what the others gave, if it does not come out of a later call.
    log: what torch's exporters printed, if a module could not be exported.
    """

    lane: object = None
    results: object = None
    log: str = ""


class NotStreamable(PulsifyError):
    """No exact stream exists, or none that pulsify knows.

    Attributes:
        kind: What stands in the way, as `pulsify.core.refusal.Kind`.
        node, op: The node of the model and its operator; empty if no single node is the cause.
        reason: Why, in one sentence.
        remedies: What would help; those with `options` are arguments of `pulsify.stream`.
        hint: The remedies as text.
        line: Of a torch module, the line of its source that the node comes from; else empty.
    """

    line: str = ""

    def __init__(
        self, reason: str, *, node: str = "", op: str = "", hint: Remedies = (), kind: Kind = Kind.OPERATOR
    ) -> None:
        self.kind, self.node, self.op, self.reason = kind, node, op, reason
        self.remedies = as_remedies(hint)
        super().__init__(reason)

    @property
    def hint(self) -> str:
        return "; or ".join(remedy.text for remedy in self.remedies)

    def __str__(self) -> str:
        where = f"{self.op} node '{self.node}': " if self.op else ""
        line = f"\n  line: {self.line}" if self.line else ""
        return f"{where}{self.reason}{line}" + (f"\n  hint: {self.hint}" if self.hint else "")


class NotSupported(PulsifyError):
    """A back end or an export target has nothing for a node: which one, why, and what would help."""

    def __init__(self, reason: str, *, node: str = "", op: str = "", target: str = "", hint: str = "") -> None:
        self.node, self.op, self.target, self.reason, self.hint = node, op, target, reason, hint
        super().__init__(reason)

    def __str__(self) -> str:
        where = f"{self.op} node '{self.node}' cannot be written as {self.target}: " if self.op else ""
        return f"{where}{self.reason}" + (f"\n  hint: {self.hint}" if self.hint else "")


class CompileFailed(PulsifyError, RuntimeError):
    """A compiler did not make what was asked for, or there was no room to keep it."""


class InvalidPulse(PulsifyError, ValueError):
    """The pulse does not fit the model: it must be a multiple of `granularity`, and fit attention's `chunk`.

    natural_pulse: the one with the smallest latency. by: what needs the multiple, if it is not a stride.
    """

    def __init__(self, pulse: int, granularity: int, natural: int | None = None, chunk: int = 0, by: str = "") -> None:
        self.pulse, self.granularity, self.natural_pulse = pulse, granularity, natural or granularity
        near = -(-max(pulse, 1) // granularity) * granularity
        why = (
            f"{by} needs a multiple of {granularity}" if by else f"the model's strides need a multiple of {granularity}"
        )
        if chunk:
            near = -(-pulse // chunk) * chunk
            why = f"attention takes chunks of {chunk} frames, of which it is neither a part nor a multiple"
        known = self.natural_pulse in (near, granularity)
        soonest = "" if known else f", or pulse={self.natural_pulse}, which has the least latency"
        super().__init__(f"a pulse of {pulse} frames does not fit: {why}; try pulse={near}{soonest}")


class InvalidModel(PulsifyError, ValueError):
    """The file or object is not a model that pulsify can read."""


class Advised(PulsifyError):
    """An error whose message ends with advice for the caller.

    Attributes:
        summary: What is wrong, for whoever passes the error on to somebody else.
        advice: What the caller can do.
    """

    def __init__(self, summary: str, *, advice: str = "") -> None:
        self.summary, self.advice = summary, advice
        super().__init__(f"{summary}; {advice}" if advice else summary)


class InvalidArgument(Advised, ValueError):
    """An argument does not fit the model (an unknown dimension, a missing input, ...)."""


class InvalidChunk(Advised, ValueError):
    """A chunk passed to `push` has the wrong name, shape or dtype, or the model failed on it.

    Attributes:
        model_failed: The model failed; the chunk itself has the right form.
        not_finite: The chunk has NaN or infinite numbers.
    """

    model_failed = False
    not_finite = False


class InvalidLength(PulsifyError, ValueError):
    """The stream's total length is one the batch model itself does not take."""


class InvalidState(PulsifyError, ValueError):
    """A state blob is corrupt or belongs to another model."""


class SessionClosed(PulsifyError, RuntimeError):
    """The stream takes nothing: it was flushed, has failed or was interrupted. `reset()` or `restore()` first."""


class SessionBusy(PulsifyError, RuntimeError):
    """Two threads met in one stream: a stream is one thread's at a time."""


class FileFailed(PulsifyError, OSError):
    """A file or folder could not be read or written. As of any OSError, `errno`, `strerror` and `filename` say why."""

    def __str__(self) -> str:
        return f"{self.filename}: {self.strerror}" if self.filename else str(self.strerror)


class InternalError(PulsifyError):
    """A bug in pulsify. `node` and `op` say where in the model, if that is known; `__cause__` is the original error."""

    def __init__(self, reason: str, *, node: str = "", op: str = "", versions: str = "") -> None:
        self.node, self.op, self.reason, self.versions = node, op, reason, versions
        super().__init__(reason)

    def __str__(self) -> str:
        where = f" at {self.op} node '{self.node}'" if self.op else ""
        return (
            f"this is a bug in pulsify{where}: {self.reason}\n"
            f"  report it with the whole traceback, these versions ({self.versions}), and the model; "
            "if that cannot be shared, with the page that `pulsify report MODEL` writes"
        )


class Mismatch(PulsifyError):
    """The stream's output departs from the batch model's. `.report` has the details."""

    def __init__(self, message: str, report: Report | None = None) -> None:
        self.report = report
        super().__init__(message)
