"""What is known not to work yet, in one place: tests expect it to fail, the random draws leave it out."""

from __future__ import annotations

from tests.attention.graphs import Case

FINITE = ("where_1e4", "where_min", "where_not_1e4", "add_1e9")


def failure(case: Case, unbounded: object = "refuse") -> str:
    """Why this case fails, or nothing."""
    if case.product == "time_first" and case.batch != 1 and _by_phase(case):
        return "templates by phase need the batch in front: refused"
    if case.applied == "only_after":
        return "masked behind the softmax only: the softmax looks at everything, so it is refused"
    if case.padding in ("bool", "float", "keys") and case.applied in FINITE:
        return "a row without any key looks at the whole stream, evenly: refused"
    if unbounded == "grow":
        return _growing(case)
    return ""


def _by_phase(case: Case) -> bool:
    return case.scheme == "chunk_bias" or any(m.kind not in ("token", "dilated", "causal") for m in case.masks)


def _growing(case: Case) -> str:
    if case.layout == "folded":
        return "a growing cache of heads folded into the batch is refused"
    return ""
