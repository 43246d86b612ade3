"""CPU seconds and counted work of every refusal that some tests raise, slowest first.

    python -m tests.refusals tests/attention/test_written_refused.py tests/proof/test_late_masks.py

Every conversion of a test that ends in an error counts; node, reason and the frames that were looked at are printed.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest

import pulsify.api.making as making
from pulsify.core.errors import PulsifyError
from pulsify.trace.evaluate import Evaluator

LIMIT = 5.0  # CPU seconds that a refusal may take


@dataclass(frozen=True)
class Refused:
    """cpu: seconds; nodes: that were evaluated, at all lengths together."""

    test: str
    error: str
    cpu: float
    nodes: int


@dataclass(eq=False)
class Collector:
    """A plugin of pytest that notes what is refused."""

    refused: list[Refused] = field(default_factory=list)
    test: str = ""

    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        self.test = item.nodeid

    @contextmanager
    def watching(self) -> Iterator[None]:
        plain, step, count = making.stream, Evaluator.step, [0]

        def counted(evaluator: Evaluator, *args: Any) -> Any:
            count[0] += 1
            return step(evaluator, *args)

        def stream(*args: Any, **options: Any) -> Any:
            began, before = time.process_time(), count[0]
            try:
                return plain(*args, **options)
            except PulsifyError as error:
                took = time.process_time() - began
                self.refused.append(Refused(self.test, " ".join(str(error).split()), took, count[0] - before))
                raise

        patch = pytest.MonkeyPatch()
        patch.setattr(Evaluator, "step", counted)
        patch.setattr("pulsify.stream", stream)
        patch.setattr("pulsify.api.stream", stream)
        try:
            yield
        finally:
            patch.undo()


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("tests", nargs="*", default=["tests/attention/test_written_refused.py"])
    parser.add_argument("--slowest", type=int, default=20)
    chosen = parser.parse_args(arguments)
    collector = Collector()
    options = ["-q", "-p", "no:cacheprovider", "-m", "slow or not slow"]
    with collector.watching():
        code = pytest.main([*options, *chosen.tests], plugins=[collector])
    found = sorted(collector.refused, key=lambda r: -r.cpu)
    print(f"\n{len(found)} refusals, {sum(r.cpu > LIMIT for r in found)} of them above {LIMIT} s")
    for r in found[: chosen.slowest]:
        print(f"{r.cpu:6.2f} s {r.nodes:7d} nodes  {r.test}\n       {r.error[:160]}")
    return int(code)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
