"""`/v1/run`: files are bounded in size, number and time, come from pages of this server only, and hold nobody up."""

from __future__ import annotations

import asyncio
import io
import struct
import wave
from collections.abc import AsyncIterator
from typing import Any

import httpx
import numpy as np
import onnxruntime as ort
import pytest

import pulsify
from pulsify.serve import uploads, wav
from pulsify.serve.hosted import Machine
from pulsify.serve.protocol import Refused
from pulsify.serve.service import Limits, Settings
from pulsify.serve.sources import of_stream
from pulsify.serve.uploads import FILES, Uploads, body
from tests.models import model, node, weights
from tests.serve.live import serving

PROTO = model([node("Conv", "x w", "y", pads=[2, 0])], {"x": ["B", 1, "T"]}, ["y"], {"w": weights(1, 1, 3)})
SERVED = of_stream("m", pulsify.stream(PROTO, 80, verify=False), 8000)
SETTINGS = Settings(Machine(most=8, calibrate=False), Limits(run_bytes=1 << 20))


def stereo(left: Any, right: Any, rate: int = 8000) -> bytes:
    out = io.BytesIO()
    with wave.open(out, "wb") as file:
        file.setnchannels(2)
        file.setsampwidth(2)
        file.setframerate(rate)
        file.writeframes(np.stack([left, right], 1).astype("<i2").tobytes())
    return out.getvalue()


def test_a_stereo_file_is_the_mean_of_both_however_it_is_cut() -> None:
    rng = np.random.default_rng(0)
    left, right = rng.integers(-20000, 20000, (2, 100_001))
    with serving([SERVED], SETTINGS) as (_, where):
        got = httpx.post(f"http://{where}/v1/run/m", content=stereo(left, right)).content
    x = ((left + right) / 2 / 32768).astype(np.float32)[None, None]
    want = ort.InferenceSession(PROTO.SerializeToString()).run(None, {"x": x})[0]
    np.testing.assert_allclose(np.frombuffer(got, "<f4").reshape(want.shape), want, atol=1e-5)


@pytest.mark.parametrize("head", [{"Content-Length": str(10 << 30)}, {"Transfer-Encoding": "chunked"}])
def test_a_file_that_is_too_large_is_refused_at_once_or_as_soon_as_it_is(head: dict[str, str]) -> None:
    async def through(where: str) -> bytes:
        reader, writer = await asyncio.open_connection(*where.split(":"))
        lines = "".join(f"{k}: {v}\r\n" for k, v in head.items())
        writer.write(f"POST /v1/run/m HTTP/1.1\r\nHost: {where}\r\n{lines}\r\n".encode())
        if "Transfer-Encoding" in head:
            writer.write((b"10000\r\n" + bytes(65536) + b"\r\n") * 17)
        said = await asyncio.wait_for(reader.readuntil(b"\r\n"), 10)
        writer.close()
        return said

    with serving([SERVED], SETTINGS) as (service, where):
        assert b" 413 " in asyncio.run(through(where))
        assert not service.uploads.held


def test_pages_from_elsewhere_may_not_post() -> None:
    file = stereo(np.zeros(80), np.zeros(80))
    with serving([SERVED], SETTINGS) as (_, where):
        for origin, status in (("https://evil.example", 403), (f"http://{where}", 200), (None, 200)):
            head = {} if origin is None else {"Origin": origin}
            assert httpx.post(f"http://{where}/v1/run/m", content=file, headers=head).status_code == status


def test_a_file_that_comes_byte_by_byte_ends_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """None of its pauses is long."""
    monkeypatch.setattr(uploads, "GRACE", 0.3)

    async def through() -> None:
        async def drops() -> AsyncIterator[bytes]:
            while True:
                yield b"x"
                await asyncio.sleep(0.02)

        with Uploads(Limits()).file("a") as held, pytest.raises(Refused, match="too slowly"):
            await asyncio.wait_for(body(drops(), "1000", Limits(), held), 5)

    asyncio.run(through())


def test_what_is_held_is_bounded_for_an_address_and_for_all() -> None:
    limits = Limits(run_bytes=1000)
    every = Uploads(limits)
    with every.file("a") as one, every.file("b") as two, every.file("c") as three:
        one.add(5000)
        with pytest.raises(Refused, match="too much is held"):
            one.add(1)
        two.add(4000)
        with pytest.raises(Refused, match="too much is held"):
            three.add(1001)
        three.add(1000)
        assert every.held == 10_000
    assert every.held == 0 and not every._files and not every._held


def test_files_of_one_address_are_counted() -> None:
    every = Uploads(Limits())
    opened = [every.file("a") for _ in range(FILES)]
    for each in opened:
        each.__enter__()
    with pytest.raises(Refused, match="of this address"), every.file("a"):
        pass
    with every.file("b"):
        pass
    for each in opened:
        each.__exit__(None, None, None)


@pytest.mark.parametrize("declared", [None, "0", "70000", "nonsense", "-5"])
def test_a_body_is_what_came_whatever_was_declared(declared: str | None) -> None:
    parts = [bytes([n]) * (n * 37) for n in range(60)]

    async def through() -> bytes:
        async def coming() -> AsyncIterator[bytes]:
            for part in parts:
                yield part

        with Uploads(Limits()).file("a") as held:
            return bytes(await body(coming(), declared, Limits(), held))

    assert asyncio.run(through()) == b"".join(parts)
    declared = "3000"
    with pytest.raises(Refused, match="longer than its Content-Length"):
        asyncio.run(through())


def riff(*chunks: tuple[bytes, bytes]) -> bytes:
    inside = b"".join(name + struct.pack("<I", len(data)) + data + b"\0" * (len(data) % 2) for name, data in chunks)
    return b"RIFF" + struct.pack("<I", len(inside) + 4) + b"WAVE" + inside


def form(kind: int = 1, channels: int = 1, rate: int = 8000, bits: int = 16, more: bytes = b"") -> bytes:
    return struct.pack("<HHIIHH", kind, channels, rate, rate * 2, 2, bits) + more


EXTENDED = struct.pack("<HHI", 22, 16, 0) + struct.pack("<H", 1) + bytes(14)


@pytest.mark.parametrize(
    "file",
    [
        riff((b"fmt ", form()), (b"data", b"abcd")),
        riff((b"LIST", b"odd"), (b"fmt ", form()), (b"fact", bytes(4)), (b"data", b"abcd")),
        riff((b"fmt ", form(wav.EXTENSIBLE, more=EXTENDED)), (b"data", b"abcd")),
        riff((b"fmt ", form()), (b"data", b"abcd"))[:-8] + struct.pack("<I", 0xFFFFFFFF) + b"abcd",  # as pipes write it
        riff((b"fmt ", form()), (b"data", b"abcde")),
    ],
)
def test_wav_files_as_programs_write_them(file: bytes) -> None:
    read = wav.read(file)
    assert (read.channels, read.rate) == (1, 8000)
    assert b"".join(read.pieces(2)) == b"abcd"


@pytest.mark.parametrize(
    "file",
    [
        b"",
        b"RIFF",
        b"RIFX" + bytes(40),
        riff(),
        riff((b"fmt ", form())),
        riff((b"data", b"abcd")),
        riff((b"fmt ", b"\1"), (b"data", b"abcd")),
        riff((b"fmt ", form(kind=3)), (b"data", b"abcd")),
        riff((b"fmt ", form(bits=24)), (b"data", b"abcd")),
        riff((b"fmt ", form(channels=0)), (b"data", b"abcd")),
        riff((b"fmt ", form(rate=0)), (b"data", b"abcd")),
    ],
)
def test_what_is_no_wav_file_is_refused_as_such(file: bytes) -> None:
    with pytest.raises(Refused, match=r"\.wav file"):
        wav.read(file)
