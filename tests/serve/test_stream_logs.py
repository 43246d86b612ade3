"""Lines about a stream say which, of whom, and with whose token; never the token."""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from typing import Any

import httpx
import numpy as np
import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

import pulsify
from pulsify.serve.service import Settings
from pulsify.serve.sources import of_stream
from pulsify.serve.tokens import tokens
from tests.models import frames, look_ahead
from tests.serve.live import opened, serving

STREAM = pulsify.stream(look_ahead("B"), 4, verify=False)
SECRET = "n0t-to-be-seen"
SETTINGS = Settings(tokens=tokens([f"app:{SECRET}"]))


def lines(caplog: pytest.LogCaptureFixture, message: str) -> list[dict[str, Any]]:
    return [r.fields for r in caplog.records if r.getMessage() == message]  # type: ignore[attr-defined]


@pytest.mark.parametrize("ws", [None, "websockets-sansio"])
def test_a_stream_is_logged_with_its_id_address_and_token_name(
    ws: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    async def one(where: str) -> tuple[str, str]:
        head = {"Authorization": f"Bearer {SECRET}"}
        async with connect(f"ws://{where}/v1/stream/m", additional_headers=head) as ws:
            ready = await opened(ws)
            await ws.send(b"123")
            with suppress(ConnectionClosed):
                async for _ in ws:
                    pass
            return ready["stream"], "{}:{}".format(*ws.local_address[:2])

    caplog.set_level(logging.DEBUG, "pulsify")
    with serving([of_stream("m", STREAM, None)], SETTINGS, ws=ws) as (_, where):
        stream, address = asyncio.run(one(where))
    about = {"stream": stream, "client": address, "model": "m", "token": "app"}
    assert lines(caplog, "stream opened") == [about | {"format": "raw"}]
    (ended,) = lines(caplog, "stream ended")
    assert 0 <= ended.pop("seconds") < 60 and ended == about | {"outcome": "bad_frames"}
    assert SECRET not in caplog.text and all(SECRET not in str(vars(r)) for r in caplog.records)


def test_a_file_and_those_who_may_not_come(caplog: pytest.LogCaptureFixture) -> None:
    async def without(where: str) -> None:
        with pytest.raises(InvalidStatus):
            async with connect(f"ws://{where}/v1/stream/m"):
                pass

    caplog.set_level(logging.DEBUG, "pulsify")
    with serving([of_stream("m", STREAM, None)], SETTINGS) as (_, where):
        asyncio.run(without(where))
        head = {"Authorization": f"Bearer {SECRET}"}
        run = httpx.post(f"http://{where}/v1/run/m", content=frames(1, 2, 20).tobytes(), headers=head)
        assert run.status_code == 200
        assert httpx.get(f"http://{where}/v1/models", headers={"Authorization": "Bearer x"}).status_code == 401
    rejected = lines(caplog, "rejected")
    assert [r["reason"] for r in rejected] == ["unauthorized"] * 2
    assert all(r["client"].startswith("127.0.0.1:") for r in rejected)
    (ended,) = lines(caplog, "stream ended")
    assert ended["outcome"] == "done" and ended["token"] == "app" and ended["client"].startswith("127.0.0.1:")


def test_a_bug_in_the_middle_of_a_stream_names_it(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def one(where: str) -> str:
        async with connect(f"ws://{where}/v1/stream/m") as ws:
            ready = await opened(ws)
            await ws.send(np.zeros((1, 2, 8), np.float32).tobytes())
            with suppress(ConnectionClosed):
                async for _ in ws:
                    pass
            return str(ready["stream"])

    def broken(*args: Any) -> Any:
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr("pulsify.serve.flow.Flow.take", broken)
    with serving([of_stream("m", STREAM, None)]) as (_, where):
        stream = asyncio.run(one(where))
    (about,) = lines(caplog, "data of a stream of m")
    assert about["stream"] == stream and about["client"].startswith("127.0.0.1:")


@pytest.mark.parametrize("ws", [None, "websockets-sansio"])
def test_the_address_behind_a_proxy_of_this_machine(ws: str | None, caplog: pytest.LogCaptureFixture) -> None:
    async def one(where: str) -> None:
        head = [("Authorization", f"Bearer {SECRET}"), *[("X-Forwarded-For", f"10.0.0.{n}") for n in (7, 9)]]
        async with connect(f"ws://{where}/v1/stream/m", additional_headers=head) as ws:
            await opened(ws)

    caplog.set_level(logging.INFO, "pulsify")
    with serving([of_stream("m", STREAM, None)], SETTINGS, ws=ws) as (_, where):
        asyncio.run(one(where))
    (ended,) = lines(caplog, "stream ended")
    assert ended["client"] == "10.0.0.9"
