"""Live streams beside clients that try to hurt them: the table that isolation began with, and a hundred others.

How long a pulse takes depends on who else is on the machine: `python -m benchmarks.isolation` measures it. Here it is
how long a turn of the event loop computes, whatever the clients do, and that live streams get every frame, in the end.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import httpx
import onnxruntime as ort
import pytest

from tests.serve.behaviours import ROWS, behaviours
from tests.serve.bystanders import Apart, Bystander, detector, serving_apart, spawn
from tests.serve.hostile import Target

SECONDS, AT_ONCE = 0.8, 12
LONGEST_TURN = 0.1  # seconds of CPU: a few milliseconds are usual, and seconds it was for each of the rows
PROMPT = 5.0  # seconds for /health, on a machine that does other things as well
MEGABYTES = 600  # of files and replies there are 320 at the most, for one address
BATCH = ort.InferenceSession(detector().SerializeToString())
EVERY = {each.name: each for each in (*ROWS, *behaviours())}
INVENTED = [each.name for each in behaviours()]
GROUPS = [INVENTED[at : at + AT_ONCE] for at in range(0, len(INVENTED), AT_ONCE)]


def _attacking(where: str, pipe: Any) -> None:
    """Behaviours by name, all at once, as often as told to."""
    while (names := pipe.recv()) is not None:
        target = Target(where, time.monotonic() + SECONDS * (2 if len(names) == 1 else 1))

        async def attack(names: Sequence[str] = names, target: Target = target) -> None:
            await asyncio.gather(*(EVERY[name].attack(target) for name in names))

        asyncio.run(attack())
        pipe.send("done")


@pytest.fixture(scope="module")
def apart() -> Iterator[tuple[Apart, Any]]:
    """The server, and whoever attacks it, each in a process of its own."""
    with serving_apart(turns=True) as server:
        mine, other = spawn.Pipe()
        attacker = spawn.Process(target=_attacking, args=(server.where, other), daemon=True)
        attacker.start()
        yield server, mine
        mine.send(None)
        attacker.join(5)
        attacker.kill()


@dataclass
class Seen:
    """While clients attacked. turn: seconds of CPU in the event loop's longest turn; health: for the slowest answer."""

    bystanders: list[Bystander]
    turn: float = 0.0
    health: float = 0.0
    megabytes: float = 0.0


async def beside(server: Apart, attacker: Any, names: Sequence[str]) -> Seen:
    """Live streams while these attack."""
    seen, stop = Seen([Bystander(seed) for seed in range(4)]), asyncio.Event()
    living = [asyncio.create_task(each.live(server.where, stop)) for each in seen.bystanders]
    while not all(each.latencies for each in seen.bystanders):
        await asyncio.sleep(0.01)
    server.figures()  # what came before does not count
    attacker.send(names)
    async with httpx.AsyncClient(timeout=20) as http:
        while not attacker.poll():
            start = time.monotonic()
            assert (await http.get(f"http://{server.where}/health")).status_code == 200
            seen.health = max(seen.health, time.monotonic() - start)
            figures = server.figures()
            seen.turn, seen.megabytes = max(seen.turn, figures["turn"]), max(seen.megabytes, figures["rss"] / 2**20)
            await asyncio.sleep(0.1)
    attacker.recv()
    stop.set()
    await asyncio.wait_for(asyncio.gather(*living), 60)
    return seen


@pytest.mark.parametrize(
    "names", [*([row.name] for row in ROWS), *GROUPS], ids=lambda names: names[0].replace(" ", "_")
)
def test_nobody_hurts_anybody_else(apart: tuple[Apart, Any], names: list[str]) -> None:
    server, attacker = apart
    before = server.figures()["rss"] / 2**20
    seen = asyncio.run(beside(server, attacker, names))
    for each in seen.bystanders:
        each.check(BATCH)
    assert seen.turn < LONGEST_TURN
    assert seen.health < PROMPT
    assert seen.megabytes - before < MEGABYTES
    assert server.figures()["errors"] == []


def test_nothing_of_them_is_left(apart: tuple[Apart, Any]) -> None:
    """Behind all of the above."""
    end = time.monotonic() + 20
    while server_streams := apart[0].figures()["streams"]:
        assert time.monotonic() < end, server_streams
        time.sleep(0.05)
