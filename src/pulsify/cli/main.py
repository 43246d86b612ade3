"""The command line. Only click is imported here: `pulsify --help` answers at once."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import click

from pulsify import __version__
from pulsify.cli.asr import asr
from pulsify.cli.bench import bench
from pulsify.cli.completion import completion
from pulsify.cli.demo import demo
from pulsify.cli.doctor import doctor
from pulsify.cli.export import export
from pulsify.cli.inspect import inspect
from pulsify.cli.kernels import kernels
from pulsify.cli.outcome import USAGE, print_json
from pulsify.cli.report import report
from pulsify.cli.run import run
from pulsify.cli.serve import serve
from pulsify.cli.stream import stream
from pulsify.cli.verify import verify

JSON = "pulsify.json"  # was it asked for?
EPILOG = """\b
Exit codes:
  0   done
  1   mismatch: the stream is not the batch model
  2   a wrong argument or option
  3   not streamable: no exact stream exists, or none is known
  4   invalid pulse: it is no multiple of what the model's strides need
  5   a model, file or input that cannot be used
  70  a bug in pulsify
  130 interrupted
"""


class Commands(click.Group):
    """Usage errors too are JSON for those who asked for it."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        ctx.meta[JSON] = "--json" in args
        with _told(ctx):
            return super().parse_args(ctx, args)

    def invoke(self, ctx: click.Context) -> object:
        with _told(ctx):
            return super().invoke(ctx)


@contextmanager
def _told(ctx: click.Context) -> Iterator[None]:
    try:
        yield
    except click.UsageError as error:
        if ctx.meta[JSON] and not isinstance(error, click.exceptions.NoArgsIsHelpError):
            print_json({"error": {"kind": "Usage", "exit_code": USAGE, "reason": error.format_message()}})
        raise


@click.group(
    cls=Commands,
    epilog=EPILOG,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(__version__, "--version", prog_name="pulsify")
def main() -> None:
    """Turn a batch ONNX model with a time axis into an exactly equivalent streaming model.

    \b
    pulsify demo                                 see it work, no model needed
    pulsify stream model.onnx -p 8 -o out.onnx   convert
    pulsify run out.onnx speech.wav -o out.npy   stream a file through it

    Commands take --json (one JSON object on stdout, and nothing else there) and --quiet (errors only).
    """


for command in (stream, inspect, report, verify, run, export, asr, serve, bench, kernels, demo, doctor, completion):
    main.add_command(command)

if __name__ == "__main__":
    main()
