"""Connections that ask for nothing, ask too much, or call the server by another's name."""

from __future__ import annotations

import asyncio
import logging
import socket
import sys
import time
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from websockets.asyncio.client import connect

import pulsify
from pulsify.cli.serve import _hosts
from pulsify.serve import access, doors
from pulsify.serve.door import HEAD_BYTES
from pulsify.serve.hosted import Machine
from pulsify.serve.protocol import Refused
from pulsify.serve.service import Limits, Settings
from pulsify.serve.sources import of_stream
from pulsify.serve.turns import Turns
from tests.models import frames, look_ahead, run_batch
from tests.serve.fuzz import masked
from tests.serve.hostile import RNG
from tests.serve.live import exchange, opened, serving

SERVED = of_stream("m", pulsify.stream(look_ahead("B"), 4, verify=False), None)
QUICK = Limits(request_seconds=0.5, idle_seconds=1.0, connections=6)


def settings(limits: Limits = QUICK, **more: Any) -> Settings:
    return Settings(Machine(most=8, calibrate=False), limits, **more)


def until_closed(where: str, *said: bytes, most: float = 10) -> tuple[bytes, float]:
    """What a raw connection gets, and after how long it is closed."""
    host, port = where.split(":")
    start = time.monotonic()
    with socket.create_connection((host, int(port)), timeout=most) as sock:
        for data in said:
            sock.sendall(data)
        got = b""
        while part := sock.recv(65536):
            got += part
    return got, time.monotonic() - start


@pytest.mark.parametrize(
    "said",
    [
        b"",
        b"GET /hea",
        b"GET /health HTTP/1.1\r\nHost: x\r\n",
        b"GET /health HTTP/1.1\r\nHost: x\r\n\r\nGET /hea",
        b"POST /v1/run/nobody HTTP/1.1\r\nHost: x\r\nContent-Length: 99\r\n\r\n",
    ],
)
@pytest.mark.parametrize("ws", [None, "uvloop"])
def test_a_connection_that_never_asks_is_closed(said: bytes, ws: str | None) -> None:
    with serving([SERVED], settings(), ws=ws) as (service, where):
        _, seconds = until_closed(where, said)
        assert 0.2 < seconds < 8
        for _ in range(100):
            if not service.doors.addresses:
                break
            time.sleep(0.01)
        assert not service.doors.addresses and not service.doors.doors


def test_a_head_that_has_no_end_is_refused() -> None:
    with serving([SERVED], settings()) as (_, where):
        got, _ = until_closed(where, b"GET / HTTP/1.1\r\n" + b"a: b\r\n" * (HEAD_BYTES // 6 + 800))
        assert got.startswith(b"HTTP/1.1 4")


def test_an_address_has_so_many_connections(caplog: pytest.LogCaptureFixture) -> None:
    async def through(where: str) -> None:
        async with connect(f"ws://{where}/v1/stream/m") as one:
            await opened(one)
            bare = [await asyncio.open_connection(*where.split(":")) for _ in range(5)]
            reader, writer = await asyncio.open_connection(*where.split(":"))
            assert (await reader.read()).startswith(b"HTTP/1.1 429 ")
            for _, each in (*bare, (reader, writer)):
                each.close()
            while True:  # a closed one is not counted any more
                reader, writer = await asyncio.open_connection(*where.split(":"))
                writer.write(b"GET /health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
                said = await reader.read()
                writer.close()
                if said.startswith(b"HTTP/1.1 200 "):
                    break

    with caplog.at_level(logging.WARNING), serving([SERVED], settings()) as (service, where):
        asyncio.run(asyncio.wait_for(through(where), 20))
        time.sleep(0.1)
        assert not service.doors.addresses
    assert [r.getMessage() for r in caplog.records if "--connections" in r.getMessage()] == [
        "127.0.0.1 has 6 connections, and may have no more; see --connections"
    ]


def test_an_answer_that_nobody_reads_is_given_up() -> None:
    with serving([SERVED], settings()) as (service, where):
        host, port = where.split(":")
        sock = socket.socket()
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        sock.connect((host, int(port)))
        sock.sendall(f"GET / HTTP/1.1\r\nHost: {where}\r\n\r\n".encode() * 400)
        end = time.monotonic() + 15
        while service.doors.addresses or time.monotonic() < end - 14:
            assert time.monotonic() < end
            time.sleep(0.05)
        sock.close()


def test_what_comes_in_excess_is_taken_apart_in_slices() -> None:
    """Thousands of chunks of a byte in one segment; and the file is what it was."""
    x = frames(1, 2, 4000)
    data = x.tobytes()
    body = b"".join(b"1\r\n%c\r\n" % byte for byte in data[:20_000])
    body += f"{len(data) - 20_000:x}\r\n".encode() + data[20_000:] + b"\r\n0\r\n\r\n"
    with serving([SERVED], settings(Limits())) as (_, where):
        head = f"POST /v1/run/m HTTP/1.1\r\nHost: {where}\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n"
        got, _ = until_closed(where, head.encode() + body, most=30)
    want = run_batch(look_ahead("B"), x)["y"]
    assert got.startswith(b"HTTP/1.1 200 ")
    assert len(got.split(b"\r\n\r\n", 1)[1]) == want.nbytes


def test_many_requests_wait_for_their_turn_and_are_all_answered() -> None:
    async def through(where: str) -> list[int]:
        async with httpx.AsyncClient(limits=httpx.Limits(max_connections=30), timeout=30) as http:
            return [
                a.status_code for a in await asyncio.gather(*(http.get(f"http://{where}/ready") for _ in range(90)))
            ]

    with serving([SERVED], settings(Limits())) as (service, where):
        joined = list[int]()
        join = service.turns.join
        service.turns.join = lambda work: (joined.append(1), join(work))[1]  # type: ignore[method-assign]
        assert asyncio.run(through(where)) == [200] * 90
        assert joined


def test_frames_right_behind_the_handshake_do_not_stop_the_server() -> None:
    with serving([SERVED], settings(Limits(open_seconds=0.3))) as (_, where):
        shake = f"GET /v1/stream/m HTTP/1.1\r\nHost: {where}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        shake += "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Version: 13\r\n\r\n"
        host, port = where.split(":")
        with socket.create_connection((host, int(port))) as sock:
            sock.sendall(shake.encode() + masked(2, bytes(100_000), RNG))
            assert sock.recv(100).startswith(b"HTTP/1.1 101 ")
        _, said = asyncio.run(exchange(where, "m", [bytes(64)]))
        assert said[-1]["type"] == "done"


@pytest.mark.parametrize("size", [100, 60_000])
def test_what_comes_right_behind_the_handshake_is_the_streams(size: int) -> None:
    """A client may not wait for the answer: what it says is neither lost nor misread, wherever it is cut."""
    said = masked(1, b'{"type": "open"}', RNG) + masked(2, bytes(8 * size), RNG) + masked(1, b'{"type": "flush"}', RNG)
    with serving([SERVED], settings(Limits(open_seconds=3))) as (_, where):
        shake = f"GET /v1/stream/m HTTP/1.1\r\nHost: {where}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        whole = (
            shake.encode() + b"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Version: 13\r\n\r\n" + said
        )
        for cut in (len(whole), len(whole) - len(said) + 9, len(whole) - 5):
            host, port = where.split(":")
            with socket.create_connection((host, int(port)), timeout=10) as sock:
                sock.sendall(whole[:cut])
                time.sleep(0.1)
                sock.sendall(whole[cut:])
                heard = b""
                while (part := sock.recv(1 << 16)) and b'"done"' not in heard:
                    heard += part
            assert f'"done","received":{{"x":{size}}}'.encode() in heard


# ---- names


@pytest.mark.parametrize(
    ("named", "fits"),
    [
        (None, True), ("localhost", True), ("localhost:8000", True), ("LocalHost", True), ("127.0.0.1:8000", True),
        ("[::1]:8000", True), ("192.0.2.7", True), ("my.example:443", True), ("evil.example", False),
        ("evil.example:8000", False), ("localhost.evil.example", False), ("127.0.0.1.evil.example", False),
        ("", False), ("[", False), ("[::1", False), ("a@localhost", True), ("localhost@evil.example", False),
    ],
)  # fmt: skip
def test_a_server_is_called_by_its_names(named: str | None, fits: bool) -> None:
    allowed = ("localhost", "my.example")
    access.check_host(named, ("*",))
    if fits:
        access.check_host(named, allowed)
    else:
        with pytest.raises(Refused, match="is not called"):
            access.check_host(named, allowed)


def test_another_name_is_refused_but_for_probes() -> None:
    head = {"Host": "evil.example"}
    with serving([SERVED], settings(Limits(), hosts=("localhost",))) as (_, where):
        for path in ("/", "/v1/models", "/metrics"):
            assert httpx.get(f"http://{where}{path}", headers=head).status_code == 403
            assert httpx.get(f"http://{where}{path}").status_code == 200
        for path in ("/health", "/ready"):
            assert httpx.get(f"http://{where}{path}", headers=head).status_code == 200

        async def raw() -> bytes:
            reader, writer = await asyncio.open_connection(*where.split(":"))
            writer.write(
                b"GET /v1/stream/m HTTP/1.1\r\nHost: evil.example\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
                b"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Version: 13\r\n\r\n"
            )
            said = await reader.read()
            writer.close()
            return said

        assert asyncio.run(raw()).startswith(b"HTTP/1.1 403 ")


@pytest.mark.parametrize(
    ("listening", "given", "allowed"),
    [
        ("127.0.0.1", (), ("localhost",)), ("::1", (), ("localhost",)), ("localhost", ("a",), ("localhost", "a")),
        ("0.0.0.0", (), ("*",)), ("0.0.0.0", ("a",), ("a",)),
    ],
)  # fmt: skip
def test_names_that_are_allowed_where_it_listens(
    listening: str, given: tuple[str, ...], allowed: tuple[str, ...]
) -> None:
    assert _hosts(listening, given) == allowed


def test_an_origin_that_is_no_address_is_refused() -> None:
    with pytest.raises(Refused, match="elsewhere"):
        access.check_origin("http://[", "localhost", ())


# ---- open files


@pytest.mark.parametrize(
    ("soft", "hard", "raised", "warned"),
    [(256, 4096, 4096, False), (256, 1000, 1000, True), (1 << 20, 1 << 20, None, False), (256, -1, 65536, False)],
)
def test_open_files_are_raised_or_it_is_said_what_that_means(
    soft: int, hard: int, raised: int | None, warned: bool,
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    limits = list[Any]()
    fake = SimpleNamespace(getrlimit=lambda _: (soft, hard), setrlimit=lambda _, value: limits.append(value),
                           RLIMIT_NOFILE=7, RLIM_INFINITY=-1)  # fmt: skip
    monkeypatch.setitem(sys.modules, "resource", fake)
    doors.raise_open_files(2048)
    assert limits == ([] if raised is None else [(raised, hard)])
    assert ("not enough for 2048 streams" in caplog.text) == warned


def test_a_request_too_many_waits_in_line() -> None:
    async def through() -> tuple[int, int]:
        turns = Turns()
        asked = [asyncio.create_task(turns.request()) for _ in range(60)]
        await asyncio.sleep(0)
        free = sum(task.done() for task in asked)
        await asyncio.wait_for(asyncio.gather(*asked), 10)
        return free, len(turns)

    free, left = asyncio.run(through())
    assert free <= 30 and left == 0
