"""`pulsify serve`: models put live."""

from __future__ import annotations

import logging
import os
import socket
import sys
from functools import partial
from typing import Any

import click

from pulsify.cli import configuration, options
from pulsify.cli.outcome import guarded, print_json
from pulsify.cli.screen import line
from pulsify.core.errors import InvalidArgument


@click.command(
    cls=configuration.Configured, short_help="Serve models over websockets: many live streams, and a page to see them."
)
@click.argument("sources", cls=configuration.Arguments, nargs=-1, metavar="[NAME=]SOURCE[@RATE]...")
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen at.")
@click.option("--port", type=click.IntRange(0, 65535), default=8000, show_default=True, help="Port; 0: any.")
@click.option("--most", type=click.IntRange(min=1), default=1024, show_default=True, help="Streams per model.")
@click.option("--workers", type=click.IntRange(min=1), metavar="N",
              help="Processes that share the port and the streams. [default: as many as pay off]")  # fmt: skip
@click.option("--wait", type=click.FloatRange(min=0), default=2, show_default=True, metavar="MS",
              help="A batch waits so long for company.")  # fmt: skip
@click.option("--token", multiple=True, envvar="PULSIFY_TOKEN", metavar="[NAME:]TOKEN",
              help="Clients must show it, or another one's. Repeatable. [env: PULSIFY_TOKEN]")  # fmt: skip
@click.option("--token-file", multiple=True, type=click.Path(),
              help="More of them: a line each, or a folder with a file each. Repeatable.")  # fmt: skip
@click.option("--alias", multiple=True, metavar="NAME=MODEL",
              help="More names of a model, for OpenAI's clients: 'gpt-*=recogniser'. Repeatable.")  # fmt: skip
@click.option("--detector", default="auto", show_default=True, metavar="WHICH",
              help="Hears who speaks, for OpenAI's clients: energy (built in), silero, auto (silero if its package is "
                   "installed), or a model: PATH[@RATE].")  # fmt: skip
@click.option("--origin", multiple=True, help="A page from elsewhere that may connect; '*': any. Repeatable.")
@click.option("--allow-host", multiple=True, metavar="NAME",
              help="A name of this server; '*': any. Default: localhost if --host is local, else any.")  # fmt: skip
@click.option("--connections", type=click.IntRange(min=1), default=4096, show_default=True,
              help="Connections of one address.")  # fmt: skip
@click.option("--store", default="memory", show_default=True, metavar="WHERE",
              help="Snapshots of streams that can be resumed: memory, a folder, or redis://...")  # fmt: skip
@click.option(
    "--key", envvar="PULSIFY_KEY", help="Signs snapshots; servers that share a store share it. [env: PULSIFY_KEY]"
)
@click.option("--keep", type=click.FloatRange(min=1), default=600, show_default=True, metavar="S",
              help="Seconds for which snapshots are kept.")  # fmt: skip
@click.option("--snapshot", type=click.FloatRange(min=0.1), default=2, show_default=True, metavar="S",
              help="Seconds between snapshots.")  # fmt: skip
@click.option("--drain", type=click.FloatRange(min=0), default=30, show_default=True, metavar="S",
              help="Seconds for streams to end when the server is told to.")  # fmt: skip
@click.option("--idle", type=click.FloatRange(min=0.1), default=60, show_default=True, metavar="S",
              help="Seconds without a message after which a stream ends.")  # fmt: skip
@click.option("--longest", type=click.FloatRange(min=0.1), default=14400, show_default=True, metavar="S",
              help="Seconds a stream may last.")  # fmt: skip
@click.option("--tls-cert", type=click.Path(dir_okay=False), help="Certificate, for wss.")
@click.option("--tls-key", type=click.Path(dir_okay=False), help="Its private key.")
@click.option("--log-level", type=click.Choice(["debug", "info", "warning", "error"]), default="info",
              show_default=True, help="Least severe messages that are logged, on stderr.")  # fmt: skip
@click.option("--log-format", type=click.Choice(["text", "json"]), default="text", show_default=True,
              help="Log lines for people, or a JSON object each.")  # fmt: skip
@options.pulse
@options.meaning
@options.sample_rate
@options.backend_or_auto
@options.no_verify
@configuration.config
@options.as_json
@guarded
def serve(sources: tuple[str, ...], as_json: bool, **given: Any) -> None:
    """Serve models: each SOURCE a batch model, a stream file, or the model.toml of a recogniser.

    Without SOURCE: the recogniser and the enhancer that come with pulsify. RATE: frames a second of a model's input,
    which makes it one of sound. docs/serve.md has the protocol.

    \b
    pulsify serve
    pulsify serve denoiser=gtcrn.onnx@16000 --token secret
    pulsify serve --config server.toml
    """
    try:
        import prometheus_client
        import starlette
        import uvicorn
        import websockets
    except ImportError as error:
        raise InvalidArgument(f"serving needs {error.name}: pip install 'pulsify[serve]'") from error
    del prometheus_client, starlette, uvicorn, websockets
    from pulsify.serve import logs
    from pulsify.serve.listening import Options, bound
    from pulsify.serve.reload import HANGUPS
    from pulsify.serve.workers import child

    HANGUPS.catch()
    try:
        if os.environ.get("PULSIFY_TOKEN", "x").strip() == "":
            raise InvalidArgument("PULSIFY_TOKEN is set but empty: everyone could come; unset it, or put a token there")
        where = Options(given["host"], given["port"], given["tls_cert"], given["tls_key"])
        link = child.link()
        if link is not None:
            logs.configure(given["log_level"], given["log_format"])
            _worker(sources, given, where, link)
            return
        count = _wanted(sources, given)
        listening = bound(where)
        logs.configure(given["log_level"], given["log_format"])
        if count == 1:
            _alone(sources, given, where, listening, as_json)
        else:
            _many(count, given, where, listening, as_json)
    finally:
        HANGUPS.ignore()


def _wanted(sources: tuple[str, ...], given: dict[str, Any]) -> int | None:
    """How many workers: 1 is this very process; None: as many as pay off, which is measured."""
    from pulsify.serve.workers import counts

    count: int | None = given["workers"]
    if not hasattr(socket, "send_fds"):
        if count is not None and count > 1:
            raise InvalidArgument("--workers needs Unix sockets; on Windows, start several servers behind a proxy")
        return 1
    if count is None:
        elsewhere = given["machine"].backend not in (options.AUTO, *counts.OWN_THREAD)
        if elsewhere or counts.cores() < 2 or not counts.has_rate(sources, given["sample_rate"]):
            return 1
    return count


def _alone(sources: tuple[str, ...], given: dict[str, Any], where: Any, listening: Any, as_json: bool) -> None:
    from pulsify.serve.running import run

    service = _service(sources, given)

    def listens(url: str) -> None:
        if as_json:  # one object, with everything about the models: once they are open
            service.when_open.append(
                lambda: print_json({"url": url, "models": [hosted.facts for hosted in service.models.values()]})
            )
        else:
            line(f"serving {', '.join([*service.models, *service.starting])} at {url}")
        sys.stdout.flush()

    run(service, where, listening, listens, _read_tokens())


def _many(count: int | None, given: dict[str, Any], where: Any, listening: Any, as_json: bool) -> None:
    import asyncio

    from pulsify.serve.listening import url
    from pulsify.serve.workers import parent

    def joined(models: list[str]) -> None:
        if not as_json:
            line(f"serving {', '.join(models)} at {url(where, listening)}")
            sys.stdout.flush()

    def opened(models: list[dict[str, Any]]) -> None:
        if as_json:
            print_json({"url": url(where, listening), "models": models})
            sys.stdout.flush()

    context = click.get_current_context()
    command = parent.command(configuration.arguments(context))
    plan = parent.Plan(command, count, given["most"], given["keep"], given["drain"])
    context.exit(asyncio.run(parent.run(plan, listening, joined, opened)))


def _worker(sources: tuple[str, ...], given: dict[str, Any], where: Any, link: Any) -> None:
    from pulsify.serve.running import run_worker

    service = _service(sources, given, link)
    if link.guarded and not service.tokens:
        raise InvalidArgument("there is no token any more, and everyone could come")
    run_worker(service, where, link, _read_tokens())


def _read_tokens() -> Any:
    context = click.get_current_context()
    return partial(_tokens_now, context, dict(context.params))


def _tokens_now(context: click.Context, before: dict[str, Any]) -> Any:
    """As files say at a SIGHUP, the configuration file too; of that nothing else is taken."""
    from pulsify.serve.tokens import tokens

    try:
        now = configuration.reread(context)
    except click.ClickException as error:
        raise InvalidArgument(error.format_message()) from error
    names = {each.name: key for key, each in configuration.keys(context.command).items()}
    reloaded = ("token", "token_file")
    if changed := [names.get(k, k) for k, value in before.items() if now[k] != value and k not in reloaded]:
        logging.getLogger("pulsify.serve").warning("only a restart changes: %s", ", ".join(changed))
    return tokens(now["token"], now["token_file"])


def _service(sources: tuple[str, ...], given: dict[str, Any], link: Any = None) -> Any:
    """link: of a worker, which has its parent's memory, key and converted models."""
    from pulsify.serve.detectors import detector_source
    from pulsify.serve.hosted import Machine
    from pulsify.serve.service import Limits, Service, Settings
    from pulsify.serve.sources import Meaning, aliases, model_sources, parse_source, whole
    from pulsify.serve.store import open_store
    from pulsify.serve.tokens import tokens

    if given["store"] != "memory" and not given["key"]:
        raise InvalidArgument("a store that is shared needs a key that is: --key, or PULSIFY_KEY")
    shared = link is not None and given["store"] == "memory"
    store = link.snapshots if shared else open_store(given["store"], given["keep"])
    meant = {"time": given["time"], "bind": given["bind"], "set": given["fixed"]}
    meant |= {name: given[name] for name in ("unbounded", "proof", "opening", "phase")}
    plain: dict[str, Any] = {
        "time": None,
        "bind": {},
        "set": {},
        "unbounded": "refuse",
        "proof": "proven",
        "opening": True,
        "phase": True,
    }
    meant = {k: v for k, v in meant.items() if v != plain[k]}
    rate = given["sample_rate"]
    served = model_sources(
        [parse_source(text) for text in sources],
        Meaning(given["pulse"], not given["no_verify"], meant, None if link is None else link.folder),
        None if rate is None else whole(rate),
    )
    machine = given["machine"]
    backend = None if machine.backend == options.AUTO else machine.backend
    key = {"key": given["key"].encode()} if given["key"] else {"key": link.key} if link is not None else {}
    settings = Settings(
        Machine(given["most"], backend, machine.options, given["wait"] / 1000),
        Limits(idle_seconds=given["idle"], total_seconds=given["longest"], connections=given["connections"]),
        tokens(given["token"], given["token_file"]),
        tuple(given["origin"]),
        aliases(given["alias"], [source.name for source in served]),
        detector=detector_source(given["detector"]),
        hosts=_hosts(given["host"], given["allow_host"]),
        snapshot_seconds=given["snapshot"],
        keep_seconds=given["keep"],
        drain_seconds=given["drain"],
        **key,
    )
    return Service(served, settings, store)


def _hosts(listening: str, allowed: tuple[str, ...]) -> tuple[str, ...]:
    """Names by which clients may call a server that listens there, beside addresses."""
    from pulsify.serve.access import is_local

    if is_local(listening):
        return ("localhost", *allowed)
    return allowed or ("*",)
