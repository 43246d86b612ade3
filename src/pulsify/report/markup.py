"""Small pieces of a page: tables, bars, names and numbers as a person reads them. All text is escaped here."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from html import escape


def tag(name: str, content: str = "", **attributes: object) -> str:
    """An element around markup. `class_` is class; a dash is written as an underscore."""
    named = "".join(
        f' {k.rstrip("_").replace("_", "-")}="{escape(str(v))}"' for k, v in attributes.items() if v is not None
    )
    return f"<{name}{named}>{content}</{name}>"


def text(value: object) -> str:
    return escape(str(value))


def name(node: str, op: str = "") -> str:
    """A node by its module: the whole name is its title."""
    parts = [p for p in node.strip("/").split("/") if p]
    last = parts[-1] if parts else node
    if len(parts) > 1 and (op == "attention" or re.fullmatch(rf"{re.escape(op)}(_\d+)?", last)):
        parts = parts[:-1]
    shown = "/".join(parts) or node
    return tag("span", text(shown).replace("/", "/<wbr>").replace("_", "_<wbr>"), class_="name", title=node)


def table(heads: Sequence[str], rows: Iterable[Sequence[str]], caption: str, **attributes: object) -> str:
    """Cells are markup. A head that begins with '>' is of numbers. On a narrow screen cells carry their heads."""
    kinds = ["num" if h.startswith(">") else None for h in heads]
    plain = [h.removeprefix(">") for h in heads]
    head = "".join(tag("th", text(h), scope="col", class_=k) for h, k in zip(plain, kinds, strict=True))
    body = "".join(
        tag("tr", "".join(tag("td", c, class_=k, data_head=h) for c, h, k in zip(row, plain, kinds, strict=False)))
        for row in rows
    )
    made = tag("caption", text(caption)) + tag("thead", tag("tr", head)) + tag("tbody", body)
    return tag("div", tag("table", made, **attributes), class_="scroll")


def bar(parts: Sequence[tuple[float, str]], whole: float, says: str) -> str:
    """Stacked parts (size, class) of a whole, from the left."""
    x, rects = 0.0, ""
    for size, kind in parts:
        width = 1000 * size / whole if whole else 0.0
        rects += tag(
            "rect", "", x=round(x, 2), y=0, width=round(max(width, 2 if size else 0), 2), height=10, class_=kind
        )
        x += width
    return tag(
        "svg", rects, viewBox="0 0 1000 10", preserveAspectRatio="none", class_="bar", role="img", aria_label=says
    )


def details(summary: str, content: str) -> str:
    return tag("details", tag("summary", text(summary)) + content)


# ---- numbers


def number(value: float | str | None) -> str:
    if value is None:
        return "none"
    if isinstance(value, str):
        return value
    if isinstance(value, int) or float(value).is_integer():
        return f"{int(value):,}"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def percent(value: float) -> str:
    """Two digits, and never a power of ten: 700 %, 12 %, 0.015 %."""
    if 0 < value < 0.001:
        return "less than 0.001 %"
    return f"{value:,.0f} %" if value >= 10 else f"{value:.2g} %"


def frames(value: float, noun: str = "frame") -> str:
    return f"{number(value)} {noun}{'' if value == 1 else 's'}"


def bytes_text(n: float) -> str:
    for unit in ("bytes", "KB", "MB"):
        if n < 1024:
            return f"{number(n)} {unit}" if unit == "bytes" else f"{n:.3g} {unit}"
        n /= 1024
    return f"{n:.3g} GB"


def ms_text(ms: float) -> str:
    return f"{number(ms)} ms" if ms < 10_000 else f"{ms / 1000:.3g} s"


def us_text(us: float) -> str:
    return f"{us:.3g} µs" if us < 1000 else f"{us / 1000:.3g} ms"


def error_text(error: float | str) -> str:
    return error if isinstance(error, str) else "none" if error == 0 else f"{error:.1e}"


def decades(error: float | str, limit: float) -> float:
    """Where an error lies between 1e-9 and the limit, as a part of 1; logarithmic."""
    if isinstance(error, str):
        return 1.0
    low, high = -9.0, math.log10(limit)
    return 0.0 if error <= 10**low else min((math.log10(error) - low) / (high - low), 1.0)
