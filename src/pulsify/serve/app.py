"""The server as an ASGI application: routes, and the bytes of a websocket to and from its connection."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping
from contextlib import ExitStack, asynccontextmanager
from dataclasses import replace
from itertools import count
from typing import Any
from urllib.parse import parse_qs

from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from pulsify.serve import access, page, transcriptions
from pulsify.serve.connection import Connection
from pulsify.serve.dialect import dialect
from pulsify.serve.exposition import Exposition
from pulsify.serve.protocol import CLOSE, Refused
from pulsify.serve.service import Service
from pulsify.serve.transcribe import Transcription
from pulsify.serve.uploads import Held, body
from pulsify.serve.whole import Reply, run_whole

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Scope = MutableMapping[str, Any]
Call = Callable[[Request], Awaitable[Response]]
STREAM, REALTIME = "/v1/stream/", "/v1/realtime"
AT_ONCE = 16  # messages before somebody else has a turn, on another server's websockets
ELSEWHERE = ("too_many_streams", "starting")  # another worker may have room
STATUS = {
    "too_many_streams": 503, "starting": 503, "too_many_requests": 429,
    "bad_message": 400, "bad_frames": 422, "unsupported": 415, "too_large": 413, "idle": 408,
}  # fmt: skip


class Application:
    """HTTP is starlette's; websockets are taken here, where every microsecond is paid once a message."""

    def __init__(self, service: Service) -> None:
        self.service = service
        self._http = _routes(service)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            await websocket(self.service, scope, receive, send)
        elif scope["type"] == "http":
            await self.service.turns.request()
            await (self._misled(scope) or self._http)(scope, receive, send)
        else:
            await self._http(scope, receive, send)

    def _misled(self, scope: Scope) -> Response | None:
        """The answer to who calls this server by a name it does not have. Probes may: they learn nothing."""
        if scope["path"] in ("/health", "/ready"):
            return None
        try:
            access.check_host(access.headers(scope["headers"]).get("host"), self.service.settings.hosts)
        except Refused as refused:
            self.service.rejected(refused, access.Client(access.address(scope.get("client"))))
            return refusal(refused)
        return None


# ---- websockets


async def websocket(service: Service, scope: Scope, receive: Receive, send: Send) -> None:
    await receive()  # websocket.connect
    try:
        make = entrance(service, scope)
        assert make is not None
    except Refused as refused:
        await _denied(scope, send, refused)
        return
    peer = AsgiPeer(send)
    handler = make(peer)  # before anything is waited for: what was admitted is counted
    try:
        await send({"type": "websocket.accept", "subprotocol": access.spoken(scope.get("subprotocols", ()))})
        both = [peer.writing(), _reading(peer, handler, receive, service.settings.limits.message_bytes)]
        writing, reading = (asyncio.create_task(each) for each in both)
        aborted = asyncio.create_task(peer.aborted.wait())
        try:
            await asyncio.wait({reading, aborted}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (writing, reading, aborted):
                task.cancel()
            await asyncio.gather(writing, reading, aborted, return_exceptions=True)
    finally:
        handler.gone()


def entrance(service: Service, scope: Scope, pass_on: Callable[[], bool] | None = None) -> Callable[[Any], Any] | None:
    """What makes the handler of a websocket; Refused if there is none, or not for this client.

    pass_on: gives it to another worker, if that can be. None: it has it.
    """
    client = access.Client(access.address(scope.get("client")))
    try:
        return _entrance(service, scope, client)
    except Refused as refused:
        if refused.code in ELSEWHERE and pass_on is not None and pass_on():
            return None
        service.rejected(refused, client)
        raise


def _entrance(service: Service, scope: Scope, client: access.Client) -> Callable[[Any], Any]:
    head = access.headers(scope["headers"])
    offered = scope.get("subprotocols", ())
    access.check_host(head.get("host"), service.settings.hosts)
    access.check_origin(head.get("origin"), head.get("host"), service.settings.origins)
    token = access.check_token(service.tokens, head.get("authorization"), offered)
    who = replace(client, token=token, trace=head.get("traceparent"))
    path = scope["path"].removeprefix(scope.get("root_path", ""))
    if path.startswith(STREAM):
        hosted = service.admit(path.removeprefix(STREAM))
        return lambda peer: Connection(service, hosted, peer, who)
    if path == REALTIME:
        query = {k: v[-1] for k, v in parse_qs(scope.get("query_string", b"").decode("latin-1")).items()}
        model = query.get("model")
        hosted = service.admit(service.recogniser() if model is None else service.named(model))
        if hosted.served.kind != "text":
            raise Refused("unknown_model", f"{hosted.served.name!r} is no recogniser")
        speaks = dialect(head, offered)
        return lambda peer: Transcription(service, hosted, peer, who, speaks, model)
    raise Refused("unknown_model", "streams are at /v1/stream/NAME")


async def _reading(peer: AsgiPeer, handler: Any, receive: Receive, largest: int) -> None:
    for number in count(1):
        message = await receive()
        if not number % AT_ONCE:
            await asyncio.sleep(0)  # a server that has many of them would go on for ever
        if message["type"] == "websocket.disconnect":
            return
        text, data = message.get("text"), message.get("bytes")
        if len(text or data or b"") > largest:
            handler.refuse(Refused("too_large", f"a message has {largest} bytes at the most"))
        elif text is not None:
            handler.text(text)
        elif data is not None:
            handler.binary(data)
        if peer.paused:
            await peer.unpaused.wait()


async def _denied(scope: Scope, send: Send, refused: Refused) -> None:
    """The answer to the websocket's own request."""
    status = STATUS.get(refused.code, CLOSE[refused.code])
    if "websocket.http.response" not in scope.get("extensions", {}):
        await send({"type": "websocket.close", "code": 1008, "reason": refused.code})
        return
    said = refusal(refused)
    head = [(k.encode(), v.encode()) for k, v in said.headers.items()]
    await send({"type": "websocket.http.response.start", "status": status, "headers": head})
    await send({"type": "websocket.http.response.body", "body": bytes(said.body)})


class AsgiPeer:
    """What is to be sent waits here until the server has taken it."""

    def __init__(self, send: Send) -> None:
        self._send, self._line, self._size = send, deque[bytes | str](), 0
        self._more, self.unpaused, self.aborted = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self._closing: tuple[int, str] | None = None
        self.paused = False

    def send(self, message: bytes | str) -> None:
        if self._closing is None:
            self._line.append(message)
            self._size += len(message)
            self._more.set()

    def close(self, code: int, reason: str) -> None:
        if self._closing is None:
            self._closing = code, reason
            self._more.set()
            self.pause(False)

    def abort(self) -> None:
        self.aborted.set()

    def pause(self, paused: bool) -> None:
        self.paused = paused
        self.unpaused.clear() if paused else self.unpaused.set()

    def waiting(self) -> int:
        return self._size

    async def writing(self) -> None:
        while True:
            await self._more.wait()
            self._more.clear()
            while self._line:
                message = self._line.popleft()
                key = "text" if isinstance(message, str) else "bytes"
                await self._send({"type": "websocket.send", key: message})
                self._size -= len(message)
            if self._closing is not None:
                code, reason = self._closing
                await self._send({"type": "websocket.close", "code": code, "reason": reason})
                return


# ---- HTTP


def refusal(refused: Refused) -> JSONResponse:
    status = STATUS.get(refused.code, CLOSE[refused.code])
    head = {"Retry-After": "1"} if status in (429, 503) else {}
    kind = "server_error" if status >= 500 else "invalid_request_error"  # as OpenAI's clients know them
    about = {"error": {"code": refused.code, "message": refused.message, "type": kind, "param": None}}
    return JSONResponse(about, status if status < 600 else 500, head)


def _routes(service: Service) -> Starlette:
    figures, since = Exposition(service), int(time.time())

    def guarded(call: Callable[[Request, access.Client], Awaitable[Response]]) -> Call:
        async def answer(request: Request) -> Response:
            client = access.Client(access.address(request.client), trace=request.headers.get("traceparent"))
            try:
                token = access.check_token(service.tokens, request.headers.get("authorization"))
                return await call(request, replace(client, token=token))
            except Refused as refused:
                service.rejected(refused, client)
                return refusal(refused)

        return answer

    async def models(request: Request, client: access.Client) -> Response:
        facts = [h.facts for h in service.models.values()]
        ours = {"models": facts, "starting": list(service.starting)}
        return JSONResponse({"object": "list", "data": transcriptions.listed(service, since), **ours})

    async def model(request: Request, client: access.Client) -> Response:
        name = request.path_params["name"]
        about = next((each for each in transcriptions.listed(service, since) if each["id"] == name), None)
        if about is None:  # as it will be said to who uses it, and a name that fits a pattern
            service.hosted(service.named(name))
            about = {"id": name, "object": "model", "created": since, "owned_by": "pulsify"}
        return JSONResponse(about)

    async def health(request: Request) -> Response:
        return PlainTextResponse("ok\n")

    async def ready(request: Request) -> Response:
        reason = service.unready
        return PlainTextResponse("ready\n") if reason is None else PlainTextResponse(f"not ready: {reason}\n", 503)

    async def metrics(request: Request, client: access.Client) -> Response:
        text, kind = await figures.render(request.headers.get("accept", ""))
        return Response(text, headers={"Content-Type": kind})

    async def run(request: Request, client: access.Client) -> Response:
        access.check_origin(request.headers.get("origin"), request.headers.get("host"), service.settings.origins)
        query = {k: v[-1] for k, v in parse_qs(request.url.query).items()}
        kind, name = request.headers.get("content-type", ""), request.path_params["name"]
        with ExitStack() as holds:
            held = holds.enter_context(service.uploads.file(access.host(client.address)))
            file = await _body(service, name, request, held)
            reply = await run_whole(service, name, file, kind, query, client, held)
            return reply if isinstance(reply, Response) else Reply(reply, holds.pop_all())

    async def transcribe(request: Request, client: access.Client) -> Response:
        access.check_origin(request.headers.get("origin"), request.headers.get("host"), service.settings.origins)
        with service.uploads.file(access.host(client.address)) as held:
            form = await _body(service, service.recogniser(), request, held)
            return await transcriptions.transcribed(
                service, form, request.headers.get("content-type", ""), client, held
            )

    routes: list[Any] = [
        Route("/v1/models", guarded(models)),
        Route("/v1/models/{name}", guarded(model)),
        Route("/v1/audio/transcriptions", guarded(transcribe), methods=["POST"]),
        Route("/health", health),
        Route("/ready", ready),
        Route("/metrics", guarded(metrics)),
        Route("/v1/run/{name}", guarded(run), methods=["POST"]),
    ]
    routes += page.routes()

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        await service.start()
        if service.siblings is not None:
            service.siblings.gives(figures.own)
        yield
        await service.stop()

    return Starlette(routes=routes, lifespan=lifespan)


async def _body(service: Service, name: str, request: Request, held: Held) -> memoryview:
    """A file that comes takes a stream's place already: it waits here until it is whole."""
    service.admit(name)
    service.uploads.models[name] += 1
    try:
        return await body(aiter(request.stream()), request.headers.get("content-length"), service.settings.limits, held)
    except ClientDisconnect as error:
        raise Refused("bad_message", "the file has not come to its end") from error  # nobody hears it
    finally:
        service.uploads.models[name] -= 1
