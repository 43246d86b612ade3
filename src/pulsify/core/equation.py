"""Einsum's equation, written out: a letter for every axis, and a result."""

from __future__ import annotations

from collections.abc import Sequence

LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"


def explicit(equation: str, ranks: Sequence[int]) -> str:
    """'...c,cd->...d' of ranks 3 and 2 is 'ABc,cd->ABd'; 'ij,jk' is 'ij,jk->ik'.

    What an ellipsis stands for is aligned at its end, as broadcasting does.
    """
    terms, arrow, result = equation.replace(" ", "").partition("->")
    parts = terms.split(",")
    free = [c for c in LETTERS if c not in equation]
    hidden = max((r - len(t) + 3 for t, r in zip(parts, ranks, strict=True) if "..." in t), default=0)
    letters = "".join(free[:hidden])

    def written(term: str, rank: int) -> str:
        return term.replace("...", letters[hidden - (rank - len(term) + 3) :] if "..." in term else "")

    full = [written(t, r) for t, r in zip(parts, ranks, strict=True)]
    if not arrow:
        once = sorted(c for c in {*terms} - {",", "."} if terms.count(c) == 1)
        result = ("..." if "..." in terms else "") + "".join(once)
    return f"{','.join(full)}->{result.replace('...', letters)}"
