"""What a message costs in the event loop: CPU of its thread, by message in and out.

python -m benchmarks.messages [--streams 40] [--seconds 6]

live: streams that send a pulse when it would have been heard; flat: one that sends pulses as fast as they are taken;
small: the same with an eighth of a pulse a message. Each on uvloop, as `pulsify serve` does, and on asyncio's own loop.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from collections.abc import Callable, Coroutine
from typing import Any

from tests.serve.bystanders import PULSE, Bystander, serving_apart, spawn
from tests.serve.hostile import STREAM, Connected, Target, binary, text

Run = Callable[[str], Coroutine[Any, Any, int]]


def live(streams: int, seconds: float) -> Run:
    async def run(where: str) -> int:
        bystanders, stop = [Bystander(seed) for seed in range(streams)], asyncio.Event()
        tasks = [asyncio.create_task(each.live(where, stop)) for each in bystanders]
        await asyncio.sleep(seconds)
        stop.set()
        await asyncio.gather(*tasks)
        return sum(len(each.sent) for each in bystanders)

    return run


def flat(parts: int, pulses: int) -> Run:
    async def run(where: str) -> int:
        async with Connected(Target(where, time.monotonic() + 300), STREAM) as raw:
            frame = binary(bytes(4 * PULSE // parts))
            await raw.say(text('{"type": "open"}'))

            async def read() -> None:
                while await raw.reader.read(1 << 20):
                    pass

            reading = asyncio.create_task(read())
            for _ in range(pulses // 20):
                await raw.say(frame * parts * 20)
            await raw.say(text('{"type": "flush"}') + b"\x88\x80\0\0\0\0")
            await reading
        return pulses * parts

    return run


RUNS: dict[str, Callable[[int, float], Run]] = {
    "live": live,
    "flat": lambda streams, seconds: flat(1, 8000),
    "small": lambda streams, seconds: flat(8, 4000),
}


def _driving(name: str, streams: int, seconds: float, where: str, pipe: Any) -> None:
    pipe.send(asyncio.run(RUNS[name](streams, seconds)(where)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", type=int, default=40)
    parser.add_argument("--seconds", type=float, default=6)
    given = parser.parse_args()
    for turns in (False, True):
        for name in RUNS:
            with serving_apart(turns=turns) as apart:
                mine, other = spawn.Pipe()
                args = (name, given.streams, given.seconds, apart.where, other)
                process = spawn.Process(target=_driving, args=args, daemon=True)
                before = apart.figures()["loop"]
                process.start()
                messages = mine.recv()
                spent = apart.figures()["loop"] - before
                process.join(5)
            loop = "asyncio" if turns else "uvloop"
            print(f"{loop:8} {name:6} {messages:7d} messages, {1e6 * spent / messages:6.1f} µs each in the event loop")


if __name__ == "__main__":
    main()
