"""Chromium with the page open, and a way to cut its connections without a word."""

from __future__ import annotations

import io
import re
import socket
import struct
import threading
import wave
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np

from tests import browser
from tests.serve.live import Array

OVER = re.compile("done|failed|abandoned")


@contextmanager
def chromium(sound: str | None = None) -> Iterator[Any]:
    """A browser whose microphone hears a .wav file, once."""
    media = ["--use-fake-device-for-media-stream", "--use-fake-ui-for-media-stream"]
    heard = [f"--use-file-for-fake-audio-capture={sound}%noloop"] if sound else []
    with browser.chromium(*media, *heard) as opened:
        yield opened


class Tab:
    """The page in a tab of its own, as somebody uses it. `wrong`: what the browser complained of."""

    def __init__(self, browser: Any, where: str, path: str = "/", **how: Any) -> None:
        from playwright.sync_api import expect

        self._expect = expect
        self.page = browser.new_context(**how).new_page()
        self.wrong: list[str] = []
        self.asked: list[str] = []
        self.page.on("console", lambda m: self.wrong.append(m.text) if m.type in ("error", "warning") else None)
        self.page.on("pageerror", lambda e: self.wrong.append(f"{e}\n{e.stack}"))
        self.page.on("request", lambda r: self.asked.append(r.url))
        self.page.goto(f"http://{where}{path}")

    def is_ready(self) -> Tab:
        """The models are known."""
        self._expect(self.page.locator("#go")).to_be_enabled(timeout=30_000)
        return self

    def choose(self, model: str, source: str = "Sample", **more: str) -> Tab:
        """A model and a sound; more: selects by their id."""
        self.is_ready()
        self.page.get_by_label("Model", exact=True).select_option(model)
        if self.page.locator("#sources").is_visible():
            self.page.get_by_role("radio", name=source).check()
        for name, value in more.items():
            self.page.locator(f"#{name}").select_option(value)
        return self

    def press(self) -> None:
        """Start, or Stop."""
        self.page.locator("#go").click()

    def waits(self, selector: str, text: Any, seconds: float = 60) -> None:
        self._expect(self.page.locator(selector)).to_have_text(text, timeout=seconds * 1000)

    def ended(self, seconds: float = 60) -> str:
        """How: the state, and why."""
        status = self.page.locator("#status")
        self._expect(status).to_have_attribute("data-state", OVER, timeout=seconds * 1000)
        notice = self.page.locator("#notice")
        state: str = status.get_attribute("data-state")
        return f"{state}: {notice.inner_text()}" if notice.is_visible() else state

    def text(self, selector: str) -> str:
        said: str = self.page.locator(selector).inner_text()
        return said

    def tape(self, side: str) -> tuple[Array, int]:
        """What went in or came out, as it can be saved: samples and their rate."""
        with self.page.expect_download() as download:
            self.page.locator(f"#save-{side}").click()
        with open(download.value.path(), "rb") as file:
            return read_wav(file.read())


def read_wav(data: bytes) -> tuple[Array, int]:
    """float32 or 16 bits, one channel."""
    file, rate, form = io.BytesIO(data), 0, 0
    assert file.read(12)[8:] == b"WAVE"
    while head := file.read(8):
        name, size = struct.unpack("<4sI", head)
        body = file.read(size)
        if name == b"fmt ":
            form, _, rate = struct.unpack("<HHI", body[:8])
        elif name == b"data":
            return (np.frombuffer(body, "<f4") if form == 3 else np.frombuffer(body, "<i2") / np.float32(32768)), rate
    raise AssertionError("no sound in it")


def write_wav(path: Path, samples: Array, rate: int, channels: int = 1) -> None:
    """16 bits, the same in each channel."""
    with wave.open(str(path), "wb") as file:
        file.setnchannels(channels)
        file.setsampwidth(2)
        file.setframerate(rate)
        file.writeframes(np.repeat(np.rint(samples * 32768).astype("<i2"), channels).tobytes())


class Proxy:
    """Bytes to a server and back, until they are cut."""

    def __init__(self, where: str) -> None:
        self.goes_to(where)
        self._pairs: list[tuple[socket.socket, socket.socket]] = []
        self._dead: set[socket.socket] = set()
        self.shut = threading.Event()  # while set, nobody gets through
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.where = f"127.0.0.1:{self._listening.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def goes_to(self, where: str) -> None:
        host, port = where.split(":")
        self._to = host, int(port)

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                here, _ = self._listening.accept()
                if self.shut.is_set():
                    here.close()
                    continue
                there = socket.create_connection(self._to)
                self._pairs.append((here, there))
                for a, b in ((here, there), (there, here)):
                    threading.Thread(target=self._pump, args=(a, b), daemon=True).start()

    def _pump(self, a: socket.socket, b: socket.socket) -> None:
        with suppress(OSError):
            while data := a.recv(1 << 16):
                b.sendall(data)
            if a not in self._dead:
                b.shutdown(socket.SHUT_WR)

    def cut(self) -> int:
        """All connections, as if a cable was pulled and both sides noticed. How many there were."""
        pairs, self._pairs = self._pairs, []
        every = [s for pair in pairs for s in pair]
        self._dead.update(every)
        for each in every:
            with suppress(OSError):
                each.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # a reset, no goodbye
                each.shutdown(socket.SHUT_RD)  # whoever waits for it wakes up
            each.close()
        return len(pairs)

    def close(self) -> None:
        self._listening.close()
        self.cut()
