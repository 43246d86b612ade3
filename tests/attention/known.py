"""What is known not to work yet, in one place: tests expect it to fail, the random draws leave it out."""

from __future__ import annotations

from tests.attention.graphs import Case

FINITE = ("where_1e4", "where_min", "where_not_1e4", "add_1e9")


def failure(case: Case, unbounded: object = "refuse") -> str:
    """Why this case fails, or nothing."""
    relative = case.scheme.startswith("xl_")
    if case.scheme.split("_")[:2][-1] in ("espnet", "legacy", "hf") and relative:
        return "a shift that begins with a Concat of zeros, or ends in a Reshape to a shape made of T, is refused"
    if relative and case.product == "swapped_einsum":
        return "offsets keep their sign through a Transpose: wrong rows of the table"
    if case.views in ("view", "fold") or (case.views == "expand" and case.padding in ("bool", "float", "keys")):
        return "a Reshape or Expand of scores to a shape made of T is refused"
    if case.layout == "folded" and case.batch != 1:
        return "heads folded into a symbolic batch: phases, positions and biases count B, not B*H"
    if case.product == "time_first" and case.batch != 1 and _by_phase(case):
        return "templates by phase need the batch in front: refused, or (one row a pulse) a graph that does not run"
    if case.applied in ("narrow", "only_after"):
        return "a mask behind the softmax hides what the softmax itself looked at: wrong"
    if case.padding in ("bool", "float") and case.applied in FINITE:
        return "a row without any key looks at the whole stream, evenly: wrong"
    if unbounded == "grow":
        return _growing(case)
    return ""


def _by_phase(case: Case) -> bool:
    return case.scheme == "chunk_bias" or any(m.kind not in ("token", "dilated", "causal") for m in case.masks)


def _growing(case: Case) -> str:
    if case.layout == "folded":
        return "a growing cache of heads folded into the batch: AssertionError"
    if case.scheme == "alibi":
        return "the slope is taken between two cells of the same distance: refused"
    if case.scheme.startswith("xl_"):
        return "a relative shift over growing columns: ValueError, or a graph that does not load"
    if case.padding == "keys":
        return "an Unsqueeze of a mask that has one row for all: tears the columns"
    return ""
