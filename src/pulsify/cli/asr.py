"""`pulsify asr`: speech in, a transcript that grows while it is spoken."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pulsify.cli import options
from pulsify.cli.outcome import MISMATCH, guarded, print_json
from pulsify.cli.screen import hushed, short, show, working
from pulsify.core.errors import InvalidArgument, InvalidChunk

if TYPE_CHECKING:
    from pulsify.asr.recogniser import Recogniser, Transcriber

Figures = dict[str, Any]
Grow = Callable[[float, str, str], None]  # seconds of sound so far, text added, all text
Stopped = Callable[[], bool]
RESAMPLE = "ffmpeg -i {name} -ar {rate} -ac 1 -c:a pcm_s16le resampled.wav"


@click.command(short_help="Recognise speech as it comes: a .wav file or the microphone.")
@click.argument("wav", required=False)
@click.option(
    "-m", "--model", metavar="TOML", help="What the recogniser is made of (docs/asr.md). [default: the built-in one]"
)
@click.option("--live", is_flag=True, help="Listen to the microphone until Ctrl-C (needs pulsify[live]).")
@click.option("--realtime/--no-realtime", default=True, help="Feed a file as fast as it was spoken. [default: yes]")
@click.option(
    "--chunk-ms", type=click.FloatRange(min=0, min_open=True), default=80, show_default=True, metavar="MS",
    help="Sound per push.",
)  # fmt: skip
@click.option(
    "--channel", type=click.IntRange(min=0), metavar="N", help="One channel, from 0. [default: the mean of all]"
)
@click.option("--batch-check", is_flag=True, help="Run the batch models on everything too; exit code 1 if they differ.")
@options.pulse
@options.no_verify
@options.as_json
@guarded
def asr(
    wav: str | None,
    model: str | None,
    live: bool,
    realtime: bool,
    chunk_ms: float,
    channel: int | None,
    batch_check: bool,
    pulse: int | None,
    no_verify: bool,
    as_json: bool,
) -> None:
    """Recognise the speech in the file WAV, or what the microphone hears, while it comes in.

    The batch models named in the TOML file are converted on the way. -p: frames of the encoder's input per call.
    Without --model, a small recogniser of English digits and commands is used, and without WAV a sound of its own.

    \b
    pulsify asr
    pulsify asr speech.wav --model model.toml
    pulsify asr speech.wav --model model.toml --no-realtime --batch-check
    pulsify asr --live --model model.toml
    """
    if model is None:
        from pulsify.asr.settings import BUILT_IN

        wav = wav if wav is not None or live else os.fspath(BUILT_IN / "lights.wav")
        model = os.fspath(BUILT_IN / "model.toml")
    if live == (wav is not None):
        raise InvalidArgument("give either a .wav file or --live, for the microphone")
    with working(f"opening {short(model)}", as_json):
        sounddevice = import_sounddevice() if live else None
        from pulsify.asr.recogniser import Recogniser

        recogniser = Recogniser.open(model, pulse=pulse, verify=not no_verify)
        chunk = max(round(recogniser.sample_rate * chunk_ms / 1000), 1)
        samples = None if wav is None else read_sound(wav, recogniser.sample_rate, channel)
    heard = recogniser.transcriber()
    with growing(quiet=as_json or hushed()) as grow, interruptible() as stopped:
        if samples is None:
            chunks = listen(sounddevice, recogniser.sample_rate, chunk, stopped)
        else:
            chunks = paced(samples, recogniser.sample_rate, chunk, realtime, stopped)
        facts = transcribe(heard, chunks, grow, keep=batch_check)
        facts["interrupted"] = samples is not None and stopped()
    facts = {"model": model, "input": wav, "sample_rate": recogniser.sample_rate, "chunk_ms": chunk_ms, **facts}
    facts["delay_seconds"] = recogniser.delay(chunk)
    kept = facts.pop("samples")
    if batch_check:
        with working("running the batch models on everything", as_json):
            facts["batch"] = batch_figures(recogniser, heard, kept)
    if as_json:
        print_json(facts)
    else:
        _show(facts)
    if batch_check and not facts["batch"]["agrees"]:
        click.get_current_context().exit(MISMATCH)


def transcribe(heard: Transcriber, chunks: Iterator[Any], grow: Grow, keep: bool) -> Figures:
    """All chunks, then flush. keep: the samples are wanted afterwards."""
    rate, count, pushes, kept = heard.recogniser.sample_rate, 0, 0, []

    def error_text(added: str) -> None:
        if added:
            grow(count / rate, added, heard.text)

    for samples in chunks:
        count, pushes = count + len(samples), pushes + 1
        if keep:
            kept.append(samples)
        error_text(heard.push(samples))
    error_text(heard.flush())
    return {
        "text": heard.text,
        "tokens": heard.tokens,
        "chunks": pushes,
        "audio_seconds": count / rate,
        **_work(heard.seconds, count / rate),
        "samples": kept,
    }


def _work(seconds: dict[str, float], audio: float) -> Figures:
    """Seconds of work by model, in all, and as a share of the sound's."""
    total = sum(seconds.values())
    return {"seconds": seconds, "total_seconds": total, "real_time_factor": total / audio if audio else None}


def batch_figures(recogniser: Recogniser, heard: Transcriber, samples: list[Any]) -> Figures:
    """The offline path on the same samples, and whether it hears the same."""
    import numpy as np

    joined = np.concatenate(samples) if samples else np.zeros(0, np.float32)
    batch = recogniser.batch(joined)
    agrees = list(batch.tokens) == heard.tokens
    return {
        "text": batch.text,
        "tokens": list(batch.tokens),
        "agrees": agrees,
        **_work(batch.seconds, joined.size / recogniser.sample_rate),
    }


# ---- sound in


@contextmanager
def interruptible() -> Iterator[Stopped]:
    """Ctrl-C ends the sound, between two chunks, and not the command; a second one ends that too."""
    import signal

    pressed = False

    def press(*_: Any) -> None:
        nonlocal pressed
        if pressed:
            raise KeyboardInterrupt
        pressed = True

    before = signal.signal(signal.SIGINT, press)
    try:
        yield lambda: pressed
    finally:
        signal.signal(signal.SIGINT, before)


def read_sound(path: str, rate: int, channel: int | None) -> Any:
    """The samples of a .wav file, one channel or the mean of all, at the model's rate."""

    from pulsify.asr.wav import read_wav

    if not Path(path).is_file():
        raise InvalidChunk(f"no such input file: {path!r}")
    samples, found = read_wav(path, channel)
    if found != rate:
        fix = RESAMPLE.format(name=short(path), rate=rate)
        raise InvalidChunk(f"{path!r} has {found} samples a second, the model takes {rate}; resample it: {fix}")
    return samples


def paced(samples: Any, rate: int, chunk: int, realtime: bool, stopped: Stopped) -> Iterator[Any]:
    """Chunks, each given out when its last sample would have been spoken."""
    import time

    start = time.perf_counter()
    for at in range(0, len(samples), chunk):
        if stopped():
            return
        piece = samples[at : at + chunk]
        if realtime:
            time.sleep(max(start + (at + len(piece)) / rate - time.perf_counter(), 0))
        yield piece


def import_sounddevice() -> Any:
    """The optional extra, said to be missing before a model is converted."""
    try:
        import sounddevice  # type: ignore[import-not-found, import-untyped, unused-ignore]
    except ImportError as error:
        raise InvalidArgument("--live needs sounddevice: pip install 'pulsify[live]'") from error
    except OSError as error:  # it is there, the library it speaks to is not
        raise InvalidArgument(f"--live needs PortAudio ({error}): on Debian, apt install libportaudio2") from error
    return sounddevice


def listen(sounddevice: Any, rate: int, chunk: int, stopped: Stopped) -> Iterator[Any]:
    """Chunks from the default microphone. Those that come while the models work wait in line."""
    import queue

    waiting: queue.SimpleQueue[Any] = queue.SimpleQueue()

    def take(block: Any, frames: int, when: Any, status: Any) -> None:
        waiting.put(block[:, 0].copy())  # the block is the device's memory

    try:
        device = sounddevice.InputStream(samplerate=rate, blocksize=chunk, channels=1, dtype="float32", callback=take)
    except sounddevice.PortAudioError as error:
        raise InvalidArgument(f"--live: no microphone at {rate} samples a second ({error})") from error
    with device:
        while not (stopped() and waiting.empty()):
            with suppress(queue.Empty):
                yield waiting.get(timeout=0.1)


# ---- text out


@contextmanager
def growing(quiet: bool) -> Iterator[Grow]:
    """Where text appears: in place on a terminal, else a line with every addition."""
    if quiet:
        yield lambda seconds, added, text: None
    elif not sys.stdout.isatty():
        yield lambda seconds, added, text: click.echo(f"{seconds:8.2f} s  {added.strip()}")
    else:
        from rich.live import Live
        from rich.text import Text

        with Live(Text(""), transient=True, auto_refresh=False) as live:

            def grow(seconds: float, added: str, text: str) -> None:
                room = live.console.width * max(live.console.height - 2, 1)  # the end of a long one
                live.update(Text(text[-room:]), refresh=True)

            yield grow


def _show(facts: Figures) -> None:
    from pulsify.report.render import count, summary

    rate = facts["sample_rate"]
    pieces = f"{count(facts['chunks'], 'chunk')} of {facts['chunk_ms']:g} ms"
    sound = f"{facts['audio_seconds']:.2f} s at {rate} Hz, in {pieces}"
    lines = [
        ("text", facts["text"]),
        ("sound", sound + (", interrupted" if facts["interrupted"] else "")),
        ("delay", f"a frame is given out {facts['delay_seconds'] * 1000:.0f} ms after its sound at the latest"),
        *_work_lines(facts),
    ]
    if "batch" in facts:
        batch = facts["batch"]
        lines.append(("batch", "agrees: the same transcript" if batch["agrees"] else f"DIFFERS: {batch['text']}"))
        lines += [(f"batch {name}", text) for name, text in _work_lines(batch)]
    show([summary(lines)])


def _work_lines(facts: Figures) -> list[tuple[str, str]]:
    lines = [(name, f"{seconds * 1000:.1f} ms") for name, seconds in facts["seconds"].items()]
    factor = facts["real_time_factor"]
    share = "" if factor is None else f", real-time factor {factor:.4f}"
    return [*lines, ("total", f"{facts['total_seconds'] * 1000:.1f} ms{share}")]
