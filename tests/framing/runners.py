"""Everything that counts frames, on the same chunks: sessions, lanes, exchanges, a server's stage, exports."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

import pulsify
from pulsify.backends.seam import Opening
from pulsify.core.errors import InvalidLength
from pulsify.core.spec import Spec
from pulsify.export import portable, web
from pulsify.export.c import code_files, parts
from pulsify.serve.engine import open_engine
from pulsify.serve.stage import Stage
from tests.framing.vectors import ERROR, Call
from tests.models import Array

Pushes = list[list[int]]


def fed(spec: Spec, pushes: Pushes) -> Iterator[dict[str, Array]]:
    """The chunks: frame n is n. Those of a push that is refused are the next one's."""
    at = [0] * len(spec.inputs)
    for push in pushes:
        yield {i.name: np.arange(at[k], at[k] + push[k], dtype=np.float32)[None] for k, i in enumerate(spec.inputs)}
        tables = [c for c in spec.conditions if c.at_most is not None]
        after = [a + b for a, b in zip(at, push)]
        total = min(n // int(i.rate) for n, i in zip(after, spec.inputs))
        if all(c.length.at(total) <= (c.at_most or 0) for c in tables):
            at = after


def plain(made: Mapping[str, Any] | None) -> Call:
    return None if made is None else {name: np.ravel(array).tolist() for name, array in made.items()}


def in_session(stream: pulsify.Stream, pushes: Pushes) -> list[Call]:
    session, calls = stream.session(by_name=True), list[Call]()
    for chunk in fed(stream.spec, pushes):
        calls.append(_tried(lambda chunk=chunk: session.push(chunk)))
    return [*calls, _tried(session.flush)]


def _tried(call: Any) -> Call:
    try:
        return plain(call())
    except InvalidLength:
        return ERROR


def in_lanes(stream: pulsify.Stream, streams: Sequence[Pushes]) -> list[list[Call]]:
    """All at once; a run after every push. Calls that give nothing are empty."""
    pool = pulsify.Pool(stream, most=len(streams))
    lanes = [pool.open() for _ in streams]
    calls: list[list[Call]] = [[] for _ in streams]
    for turn in range(max(map(len, streams)) + 1):
        refused = set()
        for lane, pushes in zip(lanes, streams):
            try:
                if turn < len(pushes):
                    lane.push(list(fed(stream.spec, pushes[: turn + 1]))[-1])
                elif turn == len(pushes):
                    lane.flush()
            except InvalidLength:
                refused.add(lane)
        made = pool.run()
        for k, (lane, pushes) in enumerate(zip(lanes, streams)):
            if turn <= len(pushes):
                calls[k].append(ERROR if lane in refused else plain(made.get(lane, {})))
    return calls


def in_exchanges(stream: pulsify.Stream, streams: Sequence[tuple[int, list[int]]]) -> list[list[float]]:
    """Frames that wait in their lane, then pulses of each in one call; what came of the outputs, one after another."""
    spec, pool = stream.spec, pulsify.Pool(stream, most=len(streams))
    lanes, given = [pool.open() for _ in streams], [0] * len(streams)
    made: list[dict[str, list[float]]] = [{o.name: [] for o in spec.outputs if o.axis is not None} for _ in streams]

    def take(k: int, units: int) -> dict[str, Array]:
        rates = {i.name: int(i.rate) for i in spec.inputs}
        out = {n: np.arange(given[k] * r, (given[k] + units) * r, dtype=np.float32)[None] for n, r in rates.items()}
        given[k] += units
        return out

    def keep(k: int, result: Any) -> None:
        for name, array in result.items():
            if name in made[k]:
                made[k][name] += np.ravel(array).tolist()

    for k, (before, _) in enumerate(streams):
        lanes[k].push(take(k, before))
    for lane, result in pool.run().items():
        keep(lanes.index(lane), result)
    for turn in range(max(len(turns) for _, turns in streams)):
        rows = [k for k, (_, turns) in enumerate(streams) if turn < len(turns)]
        pulses = streams[rows[0]][1][turn]
        chunks = [take(k, spec.pulse * pulses) for k in rows]
        found = pool.exchange([lanes[k] for k in rows], {n: np.concatenate([c[n] for c in chunks]) for n in chunks[0]})
        assert not found.failures
        for row, k in enumerate(rows):
            keep(k, found.of(row))
    return [[x for each in found.values() for x in [*each, np.inf]] for found in made]


def in_stage(stream: pulsify.Stream, streams: Sequence[Pushes]) -> list[list[Call]]:
    """Many seats, stepped after every message; up to the first error, which ends a stream."""
    stage = Stage(open_engine(stream, len(streams), "ort", {}))
    seats, calls = [stage.open(k) for k in range(len(streams))], [list[Call]() for _ in streams]
    for turn in range(max(map(len, streams)) + 1):
        found: dict[int, dict[str, list[float]] | None] = {}
        for k, (seat, pushes) in enumerate(zip(seats, streams)):
            if turn <= len(pushes) and not seat.closed:
                found[k] = {}
                if turn == len(pushes):
                    seat.end()
                    continue
                for name, chunk in list(fed(stream.spec, pushes[: turn + 1]))[-1].items():
                    seat.feed(name, chunk, chunk.shape[1])
        while stage.ready:
            for step in stage.step():
                own = found[step.seat.owner]
                for name, array in step.made.items():
                    if own is not None:
                        own.setdefault(name, []).extend(np.ravel(array).tolist())
                if step.error is not None:
                    assert isinstance(step.error, InvalidLength)
                    found[step.seat.owner] = ERROR
        for k, each in found.items():
            calls[k].append(each)
    return calls


# ---- exports


def facts(spec: Spec) -> dict[str, Any]:
    return json.loads(json.dumps(portable.facts(spec)))


def in_client(frames: ModuleType, spec: Spec, pushes: Pushes) -> list[Call]:
    """frames: the module of an export."""

    def step(inputs: dict[str, Array], total: int | None, last: bool) -> dict[str, Array]:
        made = {f"echo{k}": inputs[i.name] for k, i in enumerate(spec.inputs)}
        for o in spec.outputs:
            if o.name.startswith("y"):
                made[o.name] = np.arange(o.frames, dtype=np.float32)[None] + own.pulses * o.frames - o.delay
        return {**made, "last": np.full((1, 1), own.pulses + 1, np.float32)}

    own, calls = frames.Frames(facts(spec), step), list[Call]()
    for call in [*((lambda c=c: own.push(c)) for c in fed(spec, pushes)), own.flush]:
        try:
            calls.append(plain(call()))
        except ValueError:
            calls.append(ERROR)
    return calls


NODE = """
import { readFileSync } from "node:fs";
import { Frames } from "./frames.js";

async function run({ facts, pushes }) {
  async function step(inputs) {
    const made = {};
    for (const o of facts.outputs) {
      const shape = o.axis === null ? [1, 1] : [1, o.frames], data = new Float32Array(shape[1]);
      if (o.name === "last") data[0] = stream.pulses + 1;
      else if (o.name.startsWith("echo")) data.set(inputs[o.name.replace("echo", "x")].data);
      else for (let k = 0; k < o.frames; k++) data[k] = stream.pulses * o.frames + k - o.delay;
      made[o.name] = { data, shape };
    }
    return made;
  }
  const stream = new Frames(facts, step), calls = [];
  const kept = async (call) => {
    try {
      const found = Object.entries(await call());
      calls.push(Object.fromEntries(found.map(([name, { data }]) => [name, Array.from(data)])));
    } catch { calls.push(null); }
  };
  const tensor = (data) => ({ data: Float32Array.from(data), shape: [1, data.length] });
  for (const push of pushes) {
    await kept(() => stream.push(Object.fromEntries(Object.entries(push).map(([n, data]) => [n, tensor(data)]))));
  }
  await kept(() => stream.flush());
  return calls;
}

const out = [];
for (const each of JSON.parse(readFileSync("streams.json"))) out.push(await run(each));
console.log(JSON.stringify(out));
"""


def in_javascript(folder: Path, streams: Sequence[tuple[Spec, Pushes]]) -> list[list[Call]]:
    """By node, with the page's own file."""
    listed = [
        {"facts": facts(spec), "pushes": [{n: x[0].tolist() for n, x in chunk.items()} for chunk in fed(spec, pushes)]}
        for spec, pushes in streams
    ]
    (folder / "streams.json").write_text(json.dumps(listed))
    (folder / "package.json").write_text('{"type": "module"}')
    (folder / "frames.js").write_text(str(web._page()["frames.js"]))
    (folder / "run.js").write_text(NODE)
    done = subprocess.run(["node", "run.js"], cwd=folder, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def in_c(folder: Path, stream: pulsify.Stream, streams: Sequence[Pushes]) -> list[list[Call]]:
    """Compiled by gcc; all inputs at once, up to a pulse a call."""
    spec = stream.spec
    opening = None if stream.opening is None else Opening(stream.opening.model, stream.opening.spec)
    for name, text in code_files(parts(stream.model, spec, "net", False, opening)).items():
        (folder / name).write_bytes(text if isinstance(text, bytes) else text.encode())
    (folder / "main.c").write_text(_main(spec))
    command = ["gcc", "-std=c11", "-O0", "-Wall", "-Wextra", "-Wno-psabi", "-Werror", "-fsanitize=address,undefined"]
    command += ["-fno-sanitize-recover=all", "main.c", "net.c", "net_weights.c", "-lm", "-o", "net"]
    built = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120, check=False)
    assert built.returncode == 0, built.stderr
    sizes = [[push[0] // int(spec.inputs[0].rate) for push in pushes] for pushes in streams]
    given = "\n".join(" ".join(map(str, [len(each), *each])) for each in sizes) + "\n"
    done = subprocess.run([folder / "net"], input=given, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def _main(spec: Spec) -> str:
    timed = [i for i, o in enumerate(spec.outputs) if o.axis is not None]
    ins = [f"in_{k}" for k in range(len(spec.inputs))]
    lines = ["#include <stdio.h>", '#include "net.h"', "static net_state s;"]
    lines += [f"static float in_{k}[NET_IN_{k}];" for k in range(len(spec.inputs))]
    lines += [f"static float out_{i}[NET_OUT_{i} + NET_FLUSH_{i}];" for i in range(len(spec.outputs))]
    lines += ["static void show(const char *name, const float *x, int n) {", '    printf("\\"%s\\": [", name);']
    lines += ['    for (int i = 0; i < n; i++) printf("%s%g", i ? ", " : "", (double)x[i]);', '    printf("]");', "}"]
    lines += ["int main(void) {", "    int count, size;", '    while (scanf("%d", &count) == 1) {']
    lines += ["        net_reset(&s);", "        int at = 0;", '        printf("[");']
    lines += [
        "        for (int turn = 0; turn < count; turn++) {",
        '            if (scanf("%d", &size) != 1) return 1;',
    ]
    for k, i in enumerate(spec.inputs):
        lines.append(f"            for (int t = 0; t < size * {i.rate}; t++) in_{k}[t] = (float)(at * {i.rate} + t);")
    push = ", ".join(["&s", *ins, "size", *(f"out_{i}" for i in timed)])
    lines += [f'            if (net_push({push}) < 0) printf("null, ");', "            else {"]
    lines += ["                at += size;", *_shown(spec, timed), '                printf(", ");', "            }"]
    flush = ", ".join(["&s", *(f"out_{i}" for i in range(len(spec.outputs)))])
    lines += ["        }", f'        if (net_flush({flush}) < 0) printf("null");', "        else if (at == 0) {"]
    lines += [*_shown(spec, timed), "        } else {", *_shown(spec, list(range(len(spec.outputs)))), "        }"]
    return "\n".join([*lines, '        printf("]\\n");', "    }", "}", ""])


def _shown(spec: Spec, places: list[int]) -> Iterator[str]:
    for k, i in enumerate(places):
        count = "1" if spec.outputs[i].axis is None else f"s.given[{i}]"
        yield f'                printf("{", " if k else "{"}");'
        yield f'                show("{spec.outputs[i].name}", out_{i}, {count});'
    yield '                printf("}");'
