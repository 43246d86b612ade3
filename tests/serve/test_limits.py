"""What ends a stream ends that one alone: bad messages, bad frames, slow readers, time; and who may come in at all."""

from __future__ import annotations

import asyncio
import base64
import json
import socket
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import httpx
import numpy as np
import onnxruntime as ort
import pytest
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

import pulsify
from pulsify.serve import hosted
from pulsify.serve.hosted import Hosted, Machine
from pulsify.serve.protocol import Refused, Sound
from pulsify.serve.service import Limits, Service, Settings
from pulsify.serve.sound import memory
from pulsify.serve.sources import of_stream
from pulsify.serve.tokens import tokens
from tests.models import frames, look_ahead, model, node, weights
from tests.serve.live import cut, exchange, opened, serving

PROTO = look_ahead("B")
BATCH = ort.InferenceSession(PROTO.SerializeToString())
SERVED = of_stream("m", pulsify.stream(PROTO, 4, verify=False), None)
LIMITS = Limits(message_bytes=50_000, open_seconds=0.4, idle_seconds=1.0, total_seconds=2.5, waiting_bytes=200_000)
X = frames(1, 2, 40)


@pytest.fixture(scope="module")
def server() -> Iterator[tuple[Service, str]]:
    with serving([SERVED], Settings(Machine(most=8), LIMITS)) as found:
        yield found


def url(where: str) -> str:
    return f"ws://{where}/v1/stream/m"


async def told(where: str, *messages: bytes | str) -> tuple[str, int]:
    """The code of the error, and of the close, that these messages lead to."""
    async with connect(url(where), max_size=None) as ws:
        with suppress(ConnectionClosed):
            for message in messages:
                await ws.send(message)
        said = [json.loads(m) for m in await rest(ws) if isinstance(m, str)]
        return said[-1].get("code", ""), ws.close_code or 0


async def rest(ws: ClientConnection) -> list[bytes | str]:
    """All that comes until it is closed, however."""
    out: list[bytes | str] = []
    with suppress(ConnectionClosed):
        async for message in ws:
            out.append(message)
    return out


OPEN, FLUSH = '{"type": "open"}', '{"type": "flush"}'
NAN = np.full((1, 2, 4), np.nan, np.float32).tobytes()
GOOD = X[:, :, :4].tobytes()


def test_frames_behind_a_flush_are_refused_or_come_too_late(server: tuple[Service, str]) -> None:
    ended = asyncio.run(told(server[1], OPEN, GOOD, FLUSH, GOOD))
    assert ended in (("bad_message", 4400), ("", 1000))


@pytest.mark.parametrize(
    ("messages", "code", "close"),
    [
        ((GOOD,), "bad_message", 4400),
        (("nonsense",), "bad_message", 4400),
        ((FLUSH,), "bad_message", 4400),
        ((OPEN, OPEN), "bad_message", 4400),
        ((OPEN, b"123"), "bad_frames", 4422),
        ((OPEN, NAN), "bad_frames", 4422),
        ((OPEN, GOOD, NAN[:8], FLUSH), "bad_frames", 4422),
        (('{"type": "open", "format": "pcm16"}',), "unsupported", 4415),
        (('{"type": "open", "output": {"format": "pcm16"}}',), "unsupported", 4415),
        ((OPEN, bytes(50_001)), "too_large", 1009),
        ((), "idle", 4409),
        ((OPEN, GOOD), "idle", 4409),
        (('{"type": "open", "resume": "unheard-of", "have": {}}',), "unknown_stream", 4404),
    ],
)
def test_it_is_said_why_a_stream_ends_and_others_go_on(
    server: tuple[Service, str], messages: tuple[Any, ...], code: str, close: int
) -> None:
    async def beside_another() -> None:
        good = asyncio.create_task(exchange(server[1], "m", cut(X, 2, [4]), pause=0.01))
        ended = await told(server[1], *messages)
        made, said = await good
        assert said[-1]["type"] == "done"
        got = np.concatenate([np.frombuffer(m, "<f4").reshape(1, 3, -1) for m in made], 2)
        np.testing.assert_allclose(got, BATCH.run(None, {"x": X})[0], atol=1e-5)
        assert ended == (code, close)

    asyncio.run(beside_another())


def test_a_stream_may_not_last_for_ever(server: tuple[Service, str]) -> None:
    async def pinging() -> str:
        async with connect(url(server[1])) as ws:
            await opened(ws)
            while True:
                await ws.send('{"type": "ping", "id": 7}')
                said = json.loads(await ws.recv())
                if said["type"] == "error":
                    return str(said["code"])
                assert said == {"type": "pong", "id": 7}
                with suppress(TimeoutError):
                    said = json.loads(await asyncio.wait_for(ws.recv(), 0.2))
                    return str(said["code"])

    assert asyncio.run(pinging()) == "too_long"


def test_a_ping_of_the_websocket_keeps_a_silent_stream_alive(server: tuple[Service, str]) -> None:
    async def silent() -> str:
        async with connect(url(server[1]), ping_interval=0.2) as ws:
            await opened(ws)
            said = json.loads(await ws.recv())
            return str(said["code"])

    assert asyncio.run(silent()) == "too_long"


def raw(where: str, name: str = "m") -> socket.socket:
    """A websocket by hand, open and ready."""
    host, port = where.split(":")
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    sock.settimeout(5)
    sock.connect((host, int(port)))
    key = base64.b64encode(bytes(16)).decode()
    sock.sendall(
        f"GET /v1/stream/{name} HTTP/1.1\r\nHost: {where}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        f"Sec-WebSocket-Key: {key}\r\nSec-WebSocket-Version: 13\r\n\r\n".encode()
    )
    assert b"101" in sock.recv(4096)
    return sock


def frame(kind: int, payload: bytes) -> bytes:
    """A client's frame; masked with zeros, which leave it as it is."""
    size = bytes([0x80 | len(payload)]) if len(payload) < 126 else b"\xfe" + len(payload).to_bytes(2, "big")
    return bytes([0x80 | kind]) + size + bytes(4) + payload


def unframed(data: bytes) -> list[tuple[int, bytes]]:
    out, at = [], 0
    while at < len(data):
        size, start = data[at + 1], at + 2
        if size == 126:
            size, start = int.from_bytes(data[at + 2 : at + 4], "big"), at + 4
        out.append((data[at] & 15, data[start : start + size]))
        at = start + size
    return out


def test_a_reader_that_is_too_slow_is_told_and_closed_alone() -> None:
    wide = of_stream("wide", pulsify.stream(PROTO, 512, verify=False), None)
    with serving([SERVED, wide], Settings(limits=Limits(waiting_bytes=200_000))) as (_, where):
        sock = raw(where, "wide")
        sock.sendall(frame(1, OPEN.encode()))
        for _ in range(400):  # nothing is read: more than what the system holds and the server lets wait
            sock.sendall(frame(2, bytes(48_000)))
        _, said = asyncio.run(exchange(where, "m", cut(X, 2, [4])))
        assert said[-1]["type"] == "done"
        data = b""
        while part := sock.recv(1 << 20):
            data += part
            if data.endswith(b"slow_reader"):
                break
        codes = [json.loads(d).get("code") for kind, d in unframed(data) if kind == 1]
        assert codes == [None, "slow_reader", "slow_reader"]
        sock.close()


def test_more_streams_than_there_may_be_are_refused_at_once(server: tuple[Service, str]) -> None:
    async def many() -> tuple[int, str | None, bytes]:
        held = [await connect(url(server[1])) for _ in range(8)]
        try:
            with pytest.raises(InvalidStatus) as refused:
                await connect(url(server[1]))
            response = refused.value.response
            return response.status_code, response.headers.get("Retry-After"), response.body or b""
        finally:
            await asyncio.gather(*(ws.close() for ws in held))

    status, retry, body = asyncio.run(many())
    assert (status, retry) == (503, "1") and json.loads(body)["error"]["code"] == "too_many_streams"
    assert asyncio.run(exchange(server[1], "m", [GOOD]))[1][-1]["type"] == "done"


@pytest.mark.parametrize("how", ["tcp", "websocket"])
def test_a_client_that_closes_its_side_gets_the_rest(server: tuple[Service, str], how: str) -> None:
    sock = raw(server[1])
    sock.sendall(frame(1, OPEN.encode()) + frame(2, X.tobytes()))
    if how == "tcp":
        sock.shutdown(socket.SHUT_WR)
    else:
        sock.sendall(frame(8, (1000).to_bytes(2, "big")))
    data = b""
    while part := sock.recv(65536):
        data += part
    said = unframed(data)
    assert [kind for kind, _ in said][-2:] == [1, 8] and said[-1][1][:2] == (1000).to_bytes(2, "big")
    assert json.loads(said[-2][1])["type"] == "done"
    got = np.concatenate([np.frombuffer(d, "<f4").reshape(1, 3, -1) for kind, d in said if kind == 2], 2)
    np.testing.assert_allclose(got, BATCH.run(None, {"x": X})[0], atol=1e-5)


def test_frames_that_come_in_pieces_are_put_together(server: tuple[Service, str]) -> None:
    sock = raw(server[1])
    data = X.tobytes()
    sent = frame(1, OPEN.encode())
    sent += b"\x02" + frame(2, data[:64])[1:] + frame(9, b"are you there") + b"\x80" + frame(0, data[64:])[1:]
    sent += frame(1, FLUSH.encode())
    for at in range(0, len(sent), 7):
        sock.sendall(sent[at : at + 7])
    got = b""
    while part := sock.recv(65536):
        got += part
        if (8, b"done") in [(k, d[2:]) for k, d in unframed_whole(got)]:
            break
    said = unframed_whole(got)
    assert (10, b"are you there") in said
    out = np.concatenate([np.frombuffer(d, "<f4").reshape(1, 3, -1) for kind, d in said if kind == 2], 2)
    np.testing.assert_allclose(out, BATCH.run(None, {"x": X})[0], atol=1e-5)
    sock.close()


@pytest.mark.parametrize("bad", [[NAN], [GOOD, NAN[:8]]])
def test_a_client_is_not_told_what_a_session_could_do(server: tuple[Service, str], bad: list[bytes]) -> None:
    _, said = asyncio.run(exchange(server[1], "m", bad))
    assert said[-1]["code"] == "bad_frames" and "session" not in said[-1]["message"]
    assert any(word in said[-1]["message"] for word in ("not finite", "has NaN at frame"))


def test_pieces_of_a_message_that_is_too_large_are_not_kept(server: tuple[Service, str]) -> None:
    sock = raw(server[1])
    sock.sendall(frame(1, OPEN.encode()) + b"\x02" + frame(2, bytes(30_000))[1:])
    for _ in range(100):
        sock.sendall(b"\x00" + frame(0, bytes(30_000))[1:])
    data = b""
    while not data.endswith(b"too_large"):
        data += sock.recv(65536)
    kept = [c.peer._parts for c in list(server[0].connections) if c.over]  # type: ignore[attr-defined]
    assert kept and all(sum(map(len, parts)) < 100_000 for parts in kept)
    sock.close()


def unframed_whole(data: bytes) -> list[tuple[int, bytes]]:
    """Those that have come whole."""
    return [(kind, payload) for kind, payload in unframed(data + bytes(200)) if kind]


@pytest.mark.parametrize(
    "bad",
    [
        b"\x82\x01a",
        frame(3, b""),
        b"\x42" + frame(2, b"")[1:],
        frame(0, b"a"),
        b"\x09" + frame(9, b"")[1:],
        frame(1, b"\xff"),
    ],
    ids=["unmasked", "reserved", "extended", "continued", "split", "text"],
)
def test_what_is_no_frame_of_a_websocket_ends_the_connection(server: tuple[Service, str], bad: bytes) -> None:
    sock = raw(server[1])
    sock.sendall(frame(1, OPEN.encode()) + bad)
    data = b""
    try:
        while part := sock.recv(65536):
            data += part
    except ConnectionResetError:
        pass
    assert b"bad_message" in data


def test_a_full_server_is_not_ready() -> None:
    async def through(where: str) -> tuple[int, int]:
        async with connect(url(where)) as ws:
            await opened(ws)
            async with httpx.AsyncClient() as http:
                ready, run = await http.get(f"http://{where}/ready"), await http.post(f"http://{where}/v1/run/m")
                return ready.status_code, run.status_code
        raise AssertionError

    with serving([SERVED], Settings(Machine(most=1, calibrate=False))) as (_, where):
        assert asyncio.run(through(where)) == (503, 503)


def test_a_file_on_its_way_takes_a_place_and_may_not_rest() -> None:
    """Or files that never come to their end would fill the memory, as many as are begun."""

    async def through(where: str) -> tuple[bytes, int, int]:
        reader, writer = await asyncio.open_connection(*where.split(":"))
        writer.write(f"POST /v1/run/m HTTP/1.1\r\nHost: {where}\r\nContent-Length: 1000\r\n\r\n12345678".encode())
        await asyncio.sleep(0.3)
        async with httpx.AsyncClient() as http:
            full = await http.post(f"http://{where}/v1/run/m", content=X.tobytes())
            said = await asyncio.wait_for(reader.readuntil(b"\r\n"), 10)
            again = await http.post(f"http://{where}/v1/run/m", content=X.tobytes())
        writer.close()
        return said, full.status_code, again.status_code

    settings = Settings(Machine(most=1, calibrate=False), Limits(idle_seconds=1.0))
    with serving([SERVED], settings) as (_, where):
        assert asyncio.run(through(where)) == (b"HTTP/1.1 408 Request Timeout\r\n", 503, 200)


def test_a_client_that_leaves_with_half_a_file_is_no_fault(
    server: tuple[Service, str], caplog: pytest.LogCaptureFixture
) -> None:
    host, port = server[1].split(":")
    with socket.create_connection((host, int(port))) as sock:
        sock.sendall(f"POST /v1/run/m HTTP/1.1\r\nHost: {host}\r\nContent-Length: 1000\r\n\r\n12345678".encode())
        while not server[0].uploads.held:
            time.sleep(0.01)
    while server[0].uploads.held:
        time.sleep(0.01)
    time.sleep(0.1)
    assert not caplog.records


def test_a_reply_that_would_be_too_large_says_so(caplog: pytest.LogCaptureFixture) -> None:
    proto = model([node("Expand", "x nine", "y")], {"x": ["B", 1, "T"]}, ["y"], {"nine": np.array([1, 9, 1])})
    settings = Settings(Machine(most=2, calibrate=False), Limits(run_bytes=10_000))
    with serving([of_stream("m", pulsify.stream(proto, 4, verify=False), None)], settings) as (_, where):
        made = httpx.post(f"http://{where}/v1/run/m", content=frames(1, 1, 2400).tobytes())
    assert made.status_code == 413 and made.json()["error"]["code"] == "too_large"
    assert not caplog.records


def test_rates_that_nobody_sends_any_more_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """Or a server would take no new ones some day; those that are in use stay."""
    monkeypatch.setattr(hosted, "RATES", 3)
    proto = model([node("Conv", "x w", "y", pads=[2, 0])], {"x": ["B", 1, "T"]}, ["y"], {"w": weights(1, 1, 3)})
    served = of_stream("m", pulsify.stream(proto, 80, verify=False), 8000)

    async def one(where: str, rate: int) -> dict[str, Any]:
        _, said = await exchange(where, "m", [bytes(2 * rate)], {"format": "pcm16", "rate": rate})
        return said[-1]

    async def through(where: str) -> None:
        for rate in (16000, 24000, 32000, 40000, 48000, 16000):
            assert (await one(where, rate))["received"] == {"x": rate}
        ways = [connect(url(where)) for _ in range(3)]
        sockets = [await way for way in ways]
        for ws, rate in zip(sockets, (16000, 24000, 32000), strict=True):
            assert (await opened(ws, format="pcm16", rate=rate))["type"] == "ready"
        async with connect(url(where)) as ws:
            assert (await opened(ws, format="pcm16", rate=40000))["code"] == "unsupported"
        assert (await one(where, 24000))["received"] == {"x": 24000}
        for ws in sockets:
            await ws.close()

    with serving([served], Settings(Machine(most=8, calibrate=False))) as (service, where):
        asyncio.run(through(where))
        assert len(service.models["m"].scheduler._stages) <= 5


def test_odd_rates_take_so_much_memory_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """Usual rates are let in however many odd ones there are, and odd ones once others are no longer in use."""
    proto = model([node("Neg", "x", "y")], {"x": ["B", "T"]}, ["y"])
    host = Hosted(
        of_stream("m", pulsify.stream(proto, 160, verify=False), 16000),
        Machine(most=4, calibrate=False),
        lambda _: None,
    )
    odd = [8016, 8048, 8112, 8144]
    monkeypatch.setattr(hosted, "RATES_BYTES", int(2.5 * memory(odd[0], 16000)))
    chains = [host.chain(Sound("pcm16", rate), Sound()) for rate in (48000, *odd)]
    assert [key[0] for key in host._resamplers] == [48000, *odd[2:]]
    assert host.known(Sound("pcm16", odd[0]), Sound()) is None
    assert host.known(Sound("pcm16", 48000), Sound()) is not None
    for chain in chains[-2:]:
        chain.links[0].stage.seats += 1  # they are in use
    with pytest.raises(Refused, match="too many rates"):
        host.chain(Sound("pcm16", odd[0]), Sound())
    host.chain(Sound("pcm16", 44100), Sound())
    chains[-1].links[0].stage.seats -= 1
    host.chain(Sound("pcm16", odd[0]), Sound())
    assert [key[0] for key in host._resamplers] == [48000, odd[2], 44100, odd[0]]


# ---- who may come in


@pytest.fixture(scope="module")
def guarded() -> Iterator[str]:
    with serving([SERVED], Settings(tokens=tokens(["s3cret"]), origins=("https://friend.example",))) as (_, where):
        yield where


def status(where: str, **how: Any) -> int:
    async def come() -> int:
        try:
            async with connect(url(where), **how) as ws:
                return 101 if (await opened(ws))["type"] == "ready" else 0
        except InvalidStatus as refused:
            return refused.response.status_code

    return asyncio.run(come())


def subprotocol(token: str) -> list[str]:
    return ["pulsify.v1", "pulsify.token." + base64.urlsafe_b64encode(token.encode()).decode().rstrip("=")]


def test_a_token_is_shown_by_header_or_subprotocol(guarded: str) -> None:
    assert status(guarded) == 401
    assert status(guarded, additional_headers={"Authorization": "Bearer wrong"}) == 401
    assert status(guarded, additional_headers={"Authorization": "Bearer s3cret"}) == 101
    assert status(guarded, subprotocols=subprotocol("s3cret")) == 101
    assert status(guarded, subprotocols=subprotocol("wrong")) == 401
    assert status(guarded, subprotocols=["realtime", "openai-insecure-api-key.s3cret"]) == 101


def test_pages_from_elsewhere_are_not_let_in(guarded: str) -> None:
    shown = {"additional_headers": {"Authorization": "Bearer s3cret"}}
    assert status(guarded, origin=f"http://{guarded}", **shown) == 101
    assert status(guarded, origin="https://friend.example", **shown) == 101
    assert status(guarded, origin="https://evil.example", **shown) == 403
    assert status(guarded, origin="null", **shown) == 403


def test_http_wants_the_token_too_but_for_health(guarded: str) -> None:
    shown = {"Authorization": "Bearer s3cret"}
    for path in ("/v1/models", "/metrics"):
        assert httpx.get(f"http://{guarded}{path}").status_code == 401
        assert httpx.get(f"http://{guarded}{path}", headers=shown).status_code == 200
    assert httpx.get(f"http://{guarded}/health").status_code == 200
    assert httpx.get(f"http://{guarded}/ready").status_code == 200
    body = X.tobytes()
    assert httpx.post(f"http://{guarded}/v1/run/m", content=body).status_code == 401
    got = httpx.post(f"http://{guarded}/v1/run/m", content=body, headers=shown).content
    want = BATCH.run(None, {"x": X})[0]
    np.testing.assert_allclose(np.frombuffer(got, "<f4").reshape(want.shape), want, atol=1e-5)
    assert httpx.post(f"http://{guarded}/v1/run/m", content=body[:-1], headers=shown).status_code == 422
    assert httpx.post(f"http://{guarded}/v1/run/m?format=pcm16", content=body, headers=shown).status_code == 415
    assert httpx.post(f"http://{guarded}/v1/run/m?rate=x", content=body, headers=shown).status_code == 415
    assert httpx.post(f"http://{guarded}/v1/run/m?path=x", content=body, headers=shown).status_code == 400


@pytest.mark.parametrize("name", ["nobody", "../m", "m/../../etc/passwd", "%2e%2e%2fm", "m%00"])
def test_no_name_of_a_client_reaches_the_file_system(server: tuple[Service, str], name: str) -> None:
    async def come() -> int:
        with pytest.raises(InvalidStatus) as refused:
            await connect(f"ws://{server[1]}/v1/stream/{name}")
        return refused.value.response.status_code

    assert asyncio.run(come()) == 404
    assert httpx.post(f"http://{server[1]}/v1/run/{name}", content=b"").status_code in (404, 405)
