"""Figures as tables for a terminal. Everything said here is in the facts; this decides only how it looks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.console import RenderableType
from rich.text import Text

from pulsify.core.report import exact_text
from pulsify.report.figures import Figures, shape_text
from pulsify.report.sheet import Column, Sheet, shortened

MOST_ROWS = 40  # longer tables are cut; JSON has everything
LABELS = ("name", "output", "wire", "node", "state", "for node")
KEY = 20  # characters of a key in a summary


# ---- a machine


def backend_table(facts: Figures) -> Sheet:
    table = sheet("back end", "", "")
    for b in facts["backends"]:
        table.add(b["name"], "works" if b["works"] else f"no: {b['why_not']}", b["about"])
    return table


def extra_table(facts: Figures) -> Sheet:
    table = sheet("optional", "version", "for", "")
    for e in facts["extras"]:
        table.add(e["name"], e["version"] or "none", e["for"], "" if e["version"] else e["install"])
    return table


# ---- a stream


def stream_tables(facts: Figures) -> list[RenderableType]:
    """Ports, and states if there are any."""
    return [port_table(facts), *([state_table(facts)] if facts["states"] else [])]


def stream_lines(facts: Figures) -> list[tuple[str, str]]:
    """The summary: one line a subject."""
    pulse = count(facts["pulse"], "frame") + _ms(facts["pulse_ms"])
    grain = facts["granularity"]
    lines = [("pulse", pulse + ("; any size works" if grain == 1 else f"; any multiple of {grain} works"))]
    lines += natural_lines(facts)
    if facts["sample_rate"]:
        lines.append(("sample rate", f"{facts['sample_rate']:g} frames a second"))
    lines.append(("lengths", lengths_text(facts["lengths"])))
    lines += binding_lines(facts["bindings"])
    lines.append(("exact for", proof_text(facts["proof"])))
    if facts["exact_up_to"] is not None:
        lines.append(("forgets", exact_text(facts["exact_up_to"])))
    for o in facts["outputs"]:
        if o["axis"] is not None:
            lines.append(("delay" if len(facts["outputs"]) == 1 else f"delay {o['name']}", delay_text(o)))
    if facts["start_up_frames"]:
        lines.append(("start-up", start_up_text(facts)))
    lines.append(("latency", latency_text(facts)))
    if facts["opening_frames"]:
        lines.append(("opening", opening_text(facts)))
    lines.append(("state", f"{size(facts['state_bytes'])} a stream in {count(len(facts['states']), 'tensor')}"))
    lines.append(("step graph", f"{count(facts['nodes'], 'node')}, {size(facts['constant_bytes'])} of constants"))
    return lines + attention_lines(facts)


def binding_lines(bindings: Sequence[Figures]) -> list[tuple[str, str]]:
    """Inputs that the stream does not have: what they are, and how that is known."""
    return [("binds", binding_text(b)) for b in bindings]


def binding_text(b: Figures) -> str:
    """length = the number of frames 'T', guessed (Where 'mask' masks the frames of 'x' after it)."""
    what = f"all {b['value']}" if b["value"] in ("ones", "zeros") else f"the number of frames '{b['value']}'"
    return f"{b['name']} = {what}, {b['source']}" + (f" ({b['reason']})" if b["reason"] else "")


def attention_lines(facts: Figures) -> list[tuple[str, str]]:
    """Which attentions are one kernel on a card, and why others are not."""
    found = facts["attentions"]
    apart = [a for a in found if a["as_written"]]
    if not found:
        return []
    text = f"{len(found) - len(apart)} of {len(found)} are one kernel on a card"
    return [("attention", text), *(("", f"'{a['node']}' is computed as written: {a['as_written']}") for a in apart[:5])]


def natural_lines(facts: Figures) -> list[tuple[str, str]]:
    """What a pulse other than the natural one costs, if it does."""
    pulse, latency, own = facts["natural"]["pulse"], facts["natural"]["latency_frames"], facts["latency_frames"]
    if latency is None or own <= latency:
        return []
    text = f"{count(pulse, 'frame')}, {latency:,} from in to out (pulse + delay); with this pulse it is {own:,}"
    return [("natural pulse", text)]


def latency_text(facts: Figures) -> str:
    """Pulse and delay; and how many frames come first, where those are no pulse."""
    text = f"{count(facts['latency_frames'], 'frame')} from in to out, at the most (pulse + delay)"
    if facts["first_call_frames"] < facts["pulse"]:
        text += (
            f"; the first call takes {facts['first_call_frames']:,}, so that later ones end where frames are complete"
        )
    return text


def start_up_text(facts: Figures) -> str:
    taken = count(facts["start_up_frames"], "frame") + _ms(facts["start_up_ms"])
    return f"{taken} come before the first output can; nothing waits for them after that"


def opening_text(facts: Figures) -> str:
    taken = count(facts["opening_frames"], "frame") + _ms(facts["opening_ms"])
    return f"the first {taken} are one call, because the start shows later frames; nothing waits for it after that"


def delay_text(o: Figures) -> str:
    if not o["delay"]:
        return "none: every frame comes out at the pulse that completes it"
    same = o["delay"] == o["delay_input_frames"]
    text = count(o["delay"], "frame" if same else "output frame")
    if not same:
        text += f" = {o['delay_input_frames']:,} input frames"
    text += _ms(o["delay_ms"])
    if o["delay_after_start"] < o["delay"]:
        late = f"only {o['delay_after_start']}" if o["delay_after_start"] else "none"
        text += f"; for the first frames alone, which show later ones ({late} would be needed after them)"
    return text


def delay_lines(facts: Figures) -> list[tuple[str, str]]:
    """The delay of every output, and where most of it comes from."""
    lines = []
    for d in facts["delays"]:
        text = delay_text({**d, "delay_after_start": d["delay"]})
        lines.append(("delay" if len(facts["delays"]) == 1 else f"delay {d['output']}", text))
    return lines or [("delay", "none: nothing comes out before the stream has ended")]


def delay_table(d: Figures) -> Sheet:
    """What each layer adds, from the input to the output; the last line is the delay."""
    timed = d["delay_ms"] is not None
    table = sheet(">adds", "node", "op", "because it", *([">input frames", ">ms"] if timed else [">input frames"]))
    for w in d["waits"]:
        late = [rounded(w["added_ms"])] if timed else []
        table.add(_frames(w["added"]), w["node"], w["op"], w["says"], f"{w['added_input_frames']:,}", *late)
    table.add()
    total = [rounded(d["delay_ms"])] if timed else []
    table.add("", f"output {d['output']}", "", "in all", f"{d['delay_input_frames']:,}", *total)
    return table


def _frames(value: float) -> str:
    return count(value, "frame") if isinstance(value, int) else f"{value:g} frames"


def proof_text(proof: Figures) -> str:
    """For which lengths it is certain that the stream is the batch model."""
    if not proof["proven"]:
        return "only sampled: " + "; ".join(proof["sampled"])
    text = f"every length (looked at up to {count(proof['horizon'], 'frame')}, period {proof['period']:,})"
    text += f", up to {proof['limit']:,} frames: floats are exact no further" if proof["limit"] else ""
    return text + (", if " + "; ".join(proof["assumed"]) if proof["assumed"] else "")


def lengths_text(lengths: Figures) -> str:
    shortest, every, longest = lengths["shortest"], lengths["every"], lengths["longest"]
    if every is None:
        text = f"{', '.join(map(str, lengths['first']))}, ..."
    elif every == 1:
        text = "any" if shortest == 1 else f"{shortest} frames or more"
    else:
        text = f"{shortest}, {shortest + every}, {shortest + 2 * every}, ... (every {every})"
    return text + (f", at most {longest} (a table ends there)" if longest is not None else "")


def port_table(facts: Figures) -> Sheet:
    timed = facts["sample_rate"] is not None
    table = sheet("", "name", "type", "shape of a pulse", "time axis", ">rate", ">frames", ">delay")
    if timed:
        table.columns.append(Column("delay ms", "number"))
    for i in facts["inputs"]:
        table.add("in", i["name"], i["dtype"], shape_text(i["shape"]), str(i["axis"]), i["rate"], str(i["frames"]))
    for s in facts["statics"]:
        table.add("in", s["name"], s["dtype"], shape_text(s["shape"]), "given once")
    for o in facts["outputs"]:
        row = ["out", o["name"], o["dtype"], shape_text(o["shape"])]
        if o["axis"] is None:
            table.add(*row, "at the end")
            continue
        late = [rounded(o["delay_ms"])] if timed else []
        table.add(*row, str(o["axis"]), o["rate"], str(o["frames"]), str(o["delay"]), *late)
    return table


def state_table(facts: Figures) -> Sheet:
    table = sheet("state", "type", "shape", ">bytes", "for node")
    for s in facts["states"][:MOST_ROWS]:
        table.add(s["name"], s["dtype"], shape_text(s["shape"]), f"{s['bytes']:,}", s["node"])
    _rest(table, len(facts["states"]))
    table.add()
    table.add("total", "", "", f"{facts['state_bytes']:,}", "")
    return table


def verified_text(verified: Figures | None) -> str:
    if verified is None:
        return "no (--no-verify)"
    if not verified["runs"]:
        return "no: there is no length at which it is the batch model"
    runs = f"{count(verified['runs'], 'stream')} at lengths {', '.join(map(str, verified['lengths']))}"
    return f"largest relative error {error_text(verified['error'])}, limit {limit_text(verified['tolerance'])} ({runs})"


def verified_table(verified: Figures) -> Sheet:
    wide = any(o["from_double"] is not None for o in verified["outputs"])
    double = (">stream from float64", ">batch from float64") if wide else ()
    table = sheet("output", ">largest error", ">mean", ">limit", *double, ">at frame", ">of length", "pushed as", "")
    for o in verified["outputs"]:
        seen = bool(o["error"])
        distances = (o["from_double"], o["batch_from_double"]) if wide else ()
        table.add(
            o["name"],
            error_text(o["error"]),
            error_text(o["mean"]),
            limit_text(o["tolerance"]),
            *("" if d is None else error_text(d) for d in distances),
            str(o["frame"]) if seen and o["frame"] is not None else "",
            str(o["length"]) if seen and o["length"] is not None else "",
            o["chunks"] if seen else "",
            Text("", "") if o["ok"] and o["tolerance"] is None else _verdict(o["ok"]),
        )
    return table


def limit_text(tolerance: float | None) -> str:
    return "none" if tolerance is None else f"{tolerance:g}"


def _verdict(ok: bool) -> Text:
    return Text("ok", "green") if ok else Text("wrong", "red")


def node_table(facts: Figures) -> Sheet:
    """The worst of all nodes, and those that leave the range of their operator."""
    table = sheet("node", "op", "step", "on", ">largest error", ">limit", ">at pulse", "")
    worst = facts["nodes"][:MOST_ROWS]
    for n in [*worst, *(n for n in facts["outside"] if n not in worst)]:
        outside = "" if n["outside"] is None else f"from {n['outside'][0]} to {n['outside'][1]}"
        table.add(
            n["node"], n["op"], n["step"], "island" if n["reason"] else n["device"], error_text(n["error"]),
            limit_text(n["tolerance"]), str(n["pulse"]) if n["error"] else "",
            Text(outside, "red") if outside else _verdict(n["ok"]),
        )  # fmt: skip
    _rest(table, len(facts["nodes"]))
    return table


def node_lines(facts: Figures) -> list[tuple[str, str]]:
    pulses = ", ".join(f"{count(n, 'pulse')} of the {step} step" for step, n in facts["pulses"].items())
    nodes = f"{count(len(facts['nodes']), 'node')} on {facts['backend']} and on ONNX Runtime, over {pulses}"
    lines = [("node by node", f"{nodes}; both from the same states at every pulse")]
    if (n := facts["first"]) is not None:
        of = ", ".join(n["inputs"])
        lines.append(
            (
                "first apart",
                f"{n['op']} '{n['node']}' of {of} ({n['step']} step): relative error {error_text(n['error'])}",
            )
        )
    for n in facts["outside"]:
        lines.append(("out of range", f"{n['op']} '{n['node']}': from {n['outside'][0]} to {n['outside'][1]}"))
    islands = [n for n in facts["nodes"] if n["reason"]]
    if islands:
        said = "; ".join(dict.fromkeys(f"'{n['node']}' ({n['reason']})" for n in islands))
        lines.append(("islands", said))
    return lines


def exact_table(rows: Sequence[Figures]) -> Sheet:
    table = sheet(">length", ">streams", ">largest relative error", "")
    for row in rows:
        fine = isinstance(row["error"], float) and row["error"] <= row["limit"]
        word = "bit for bit" if row["error"] == 0 else "equal" if fine else "WRONG"
        verdict = Text(word, "green" if fine else "red")
        table.add(f"{row['length']:,}", str(row["runs"]), error_text(row["error"]), verdict)
    return table


# ---- a batch model


def time_lines(time: Figures) -> list[tuple[str, str]]:
    """Which axes of a batch model are time, and what else its inputs are."""
    lines = []
    for i in time["streamed"]:
        per = f", {i['frames_per_unit']} frames a unit" if i["frames_per_unit"] != 1 else ""
        lines.append(("time", f"'{time['symbol']}': axis {i['axis']} of {i['name']} {shape_text(i['shape'])}{per}"))
    for s in time["static"]:
        lines.append(("given once", f"{s['name']} {shape_text(s['shape'])}"))
    lines += binding_lines(time["bindings"])
    if time["batch"]:
        lines.append(("batch", f"'{time['batch']}' streams side by side"))
    for name, value in time["fixed"].items():
        lines.append(("fixed", f"'{name}' = {value}"))
    if time["step"] > 1:
        lines.append(("lengths", f"multiples of {time['step']}, as declared"))
    return lines


def trace_line(trace: Figures) -> str:
    return (
        f"at lengths {', '.join(map(str, trace['lengths']))}: {trace['data_nodes']} of {count(trace['nodes'], 'node')} "
        f"carry data, {trace['known_nodes']} follow from the length alone"
    )


def trace_table(trace: Figures) -> Sheet:
    """Every node: data or known; sizes that change with the length are given for each one traced."""
    table = sheet("op", "node", "", "shape", "value")
    for row in trace["values"]:
        style = "" if row["data"] else "dim"
        what = "data" if row["data"] else "known"
        shape = traced_shape(row["dims"], row["batch_axes"], trace["batch"])
        table.add(row["op"], row["node"], what, shape, _values(row["values"]), style=style)
    return table


def traced_shape(dims: Sequence[Sequence[int]], batch_axes: Sequence[int], batch: str | None) -> str:
    """[B, 32, 67|68|137]: the batch by its name, sizes that differ between the lengths side by side."""
    if len({len(d) for d in dims}) > 1:
        return " | ".join(shape_text(d) for d in dims)
    cells = []
    for axis, sizes in enumerate(zip(*dims, strict=True)):
        if len(set(sizes)) > 1:
            cells.append("|".join(map(str, sizes)))
        elif axis in batch_axes and batch:
            cells.append(batch)
        else:
            cells.append(str(sizes[0]))
    return shape_text(cells)


def _values(values: list[Any] | None) -> str:
    if values is None:
        return ""
    texts = list(dict.fromkeys(_short(v) for v in values))
    return " | ".join(texts)


def _short(value: Any) -> str:
    if isinstance(value, list):
        return "[" + ", ".join(_short(v) for v in value) + "]"
    return f"{value:g}" if isinstance(value, float) else str(value)


KINDS = {
    "static": "the same at every pulse",
    "length": "follows from the total length",
    "latch": "made of the first frames",
    "fold": "of the whole stream, at its end",
    "late": "frames beside a value of the whole stream",
    "field": "frames by frames, within an attention",
    "position": "any (from the position)",
}


def window_table(wires: Sequence[Figures], cut: bool = False) -> Sheet:
    """One line a wire: at pulse n it holds frames [n*p + start, n*p + end)."""
    table = sheet("wire", "op", ">rate", ">p", "window", ">delay", ">kept")
    shown = wires[:MOST_ROWS] if cut else wires
    for w in shown:
        if w["kind"] == "stream":
            start, end = w["window"]
            cells = [w["rate"], str(w["frames"]), f"[{start}, {end})", str(w["delay"]), str(w["kept"] or "")]
            table.add(w["wire"], w["op"], *cells)
        else:
            table.add(w["wire"], w["op"], "", "", KINDS.get(w["kind"], str(w["kind"])), style="dim")
    if cut:
        _rest(table, len(wires), "--stage windows lists all")
    return table


# ---- small things


def summary(lines: Sequence[tuple[str, str]]) -> Sheet:
    sheet = Sheet([Column("", "fixed", "bold"), Column("")], headed=False, margin=1)
    for key, value in lines:
        sheet.add(shortened(key, KEY), value)
    return sheet


def sheet(*columns: str) -> Sheet:
    """A header that starts with '>' makes a column of numbers; names are labels, all else is text."""
    return Sheet([_column(name) for name in columns])


def _column(name: str) -> Column:
    return Column(name.removeprefix(">"), "number" if name.startswith(">") else "label" if name in LABELS else "text")


def _rest(table: Sheet, total: int, where: str = "--json lists all") -> None:
    if total > MOST_ROWS:
        table.add(spans=f"... {total - MOST_ROWS} more ({where})", style="dim")


def count(n: int, noun: str) -> str:
    return f"{n:,} {noun}" if n == 1 else f"{n:,} {noun}s"


def size(n: int) -> str:
    if n < 1024:
        return count(n, "byte")
    for unit in ("KiB", "MiB"):
        n_units = n / 1024 if unit == "KiB" else n / 1024**2
        if n_units < 1024:
            return f"{n_units:.1f} {unit}"
    return f"{n / 1024**3:.1f} GiB"


def error_text(error: float | str) -> str:
    return error if isinstance(error, str) else "0" if error == 0 else f"{error:.1e}"


def _ms(value: float | None) -> str:
    return "" if value is None else f" = {rounded(value)} ms"


def rounded(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"
