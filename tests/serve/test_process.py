"""The server as a process: it starts by the command line, ends in good order, and may be killed."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import numpy as np
import onnx
import onnxruntime as ort
import pytest
from websockets.asyncio.client import connect

from tests.models import frames, look_ahead
from tests.serve.live import opened
from tests.serve.returning import Returning
from tests.unit.serve.test_reload import certificate

PROTO = look_ahead("B")
BATCH = ort.InferenceSession(PROTO.SerializeToString())


@contextmanager
def process(path: Path, *arguments: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """`pulsify serve`, and where it is."""
    onnx.save(PROTO, path)
    command = [
        sys.executable,
        "-m",
        "pulsify",
        "serve",
        f"m={path}",
        "-p",
        "4",
        "--no-verify",
        "--port",
        "0",
        *arguments,
    ]
    made = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert made.stdout is not None
    try:
        line = made.stdout.readline()
        scheme = "https" if "--tls-cert" in arguments else "http"
        assert line.startswith(f"serving m at {scheme}://"), line
        where = line.split("://")[1].strip()
        end = time.monotonic() + 30
        while time.monotonic() < end:
            try:
                if httpx.get(f"{scheme}://{where}/ready", verify=False).status_code == 200:
                    break
            except httpx.HTTPError:
                time.sleep(0.05)
        yield made, where
    finally:
        made.kill()
        made.wait(10)


def test_a_terminated_server_lets_streams_end(tmp_path: Path) -> None:
    x = frames(1, 2, 60)

    async def through(made: subprocess.Popen[str], where: str) -> tuple[list[str], np.ndarray]:  # type: ignore[type-arg]
        codes: list[str] = []
        got = []
        async with connect(f"ws://{where}/v1/stream/m") as ws:
            assert (await opened(ws))["type"] == "ready"
            await ws.send(x[:, :, :30].tobytes())
            made.send_signal(signal.SIGTERM)
            async for message in ws:
                if isinstance(message, bytes):
                    got.append(np.frombuffer(message, "<f4").reshape(1, 3, -1))
                    continue
                said = json.loads(message)
                codes.append(said.get("code", said["type"]))
                if said.get("code") == "draining":
                    assert httpx.get(f"http://{where}/ready").status_code == 503
                    await ws.send(np.ascontiguousarray(x[:, :, 30:]).tobytes())
                    await ws.send('{"type": "flush"}')
        return codes, np.concatenate(got, 2)

    with process(tmp_path / "m.onnx", "--drain", "20") as (made, where):
        codes, got = asyncio.run(through(made, where))
        assert made.wait(15) == 0
    assert codes == ["draining", "done"]
    np.testing.assert_allclose(got, BATCH.run(None, {"x": x})[0], atol=1e-5)


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl makes the certificate, and is not installed")
def test_tls_from_end_to_end(tmp_path: Path) -> None:
    cert, key, x = tmp_path / "cert.pem", tmp_path / "key.pem", frames(1, 2, 500)
    made = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=localhost", "-days", "2"]
    subprocess.run([*made, "-keyout", key, "-out", cert], check=True, capture_output=True)
    trusted = ssl.create_default_context(cafile=cert)
    trusted.check_hostname = False  # it is an address here

    async def through(where: str) -> np.ndarray:  # type: ignore[type-arg]
        got = []
        async with connect(f"wss://{where}/v1/stream/m", ssl=trusted) as ws:
            assert (await opened(ws))["type"] == "ready"
            for at in range(0, 500, 7):
                await ws.send(np.ascontiguousarray(x[:, :, at : at + 7]).tobytes())
            await ws.send('{"type": "flush"}')
            async for message in ws:
                if isinstance(message, bytes):
                    got.append(np.frombuffer(message, "<f4").reshape(1, 3, -1))
        return np.concatenate(got, 2)

    with process(tmp_path / "m.onnx", "--tls-cert", str(cert), "--tls-key", str(key)) as (_, where):
        got = asyncio.run(through(where))
        with pytest.raises(httpx.HTTPError):
            httpx.get(f"http://{where}/ready")
    np.testing.assert_allclose(got, BATCH.run(None, {"x": x})[0], atol=1e-5)


def test_a_server_without_its_packages_says_what_to_install(tmp_path: Path) -> None:
    code = (
        "import sys; sys.modules['uvicorn'] = None\n"
        "from pulsify.cli.main import main\nmain(['serve'], standalone_mode=True)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 2 and "pip install 'pulsify[serve]'" in done.stderr


def test_a_port_that_is_taken_is_told_before_models_are_opened(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        command = [sys.executable, "-m", "pulsify", "serve", str(tmp_path / "none.onnx"), "--port", str(port)]
        done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 2 and f"cannot listen at 127.0.0.1, port {port}: Address already in use" in done.stderr


def test_a_shared_store_wants_a_key(tmp_path: Path) -> None:
    onnx.save(PROTO, tmp_path / "m.onnx")
    command = [
        sys.executable,
        "-m",
        "pulsify",
        "serve",
        str(tmp_path / "m.onnx"),
        "--store",
        str(tmp_path),
        "--no-verify",
    ]
    environment = {k: v for k, v in os.environ.items() if k != "PULSIFY_KEY"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 2 and "--key" in done.stderr


async def all_of_them(clients: list[Returning], urls: list[str], victim: subprocess.Popen[str]) -> None:
    """Half of them start on each server; one is killed in the middle of it all."""
    going = [asyncio.create_task(c.persist(urls[i % 2 :] + urls[: i % 2], [], 400)) for i, c in enumerate(clients)]
    while sum(c.marks for c in clients) < len(clients) // 2:
        await asyncio.sleep(0.05)
    victim.send_signal(signal.SIGKILL)
    await asyncio.gather(*going)


@pytest.mark.slow
def test_a_server_that_is_killed_loses_nothing_but_time(tmp_path: Path) -> None:
    """200 streams on it, and 200 on the other one: each is the batch model's, to the last frame."""
    clients = [Returning(frames(1, 2, 700 + i % 37, seed=i), 3, 4 + i % 5, 0.05) for i in range(400)]
    shared = ("--store", str(tmp_path / "kept"), "--key", "both", "--snapshot", "1")
    with process(tmp_path / "a.onnx", *shared) as (first, one), process(tmp_path / "b.onnx", *shared) as (_, two):
        asyncio.run(all_of_them(clients, [f"ws://{where}/v1/stream/m" for where in (one, two)], first))
    for client in clients:
        (want,) = BATCH.run(None, {"x": client.x})
        np.testing.assert_allclose(client.y, want, atol=1e-5, rtol=1e-5)
    assert sum(c.connections > 1 for c in clients) >= 150


def logged(made: subprocess.Popen[str], what: str) -> str:
    """The next line that has it; what is before is left out."""
    assert made.stdout is not None
    return next(line for line in made.stdout if what in line)


def replaced(path: Path, content: bytes) -> None:
    new = path.with_suffix(".new")
    new.write_bytes(content)
    new.replace(path)


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl makes the certificate, and is not installed")
def test_a_hangup_reads_tokens_and_certificates_again(tmp_path: Path) -> None:
    """The stream that is open goes on; what is broken changes nothing."""
    (tmp_path / "new").mkdir()
    (cert, key), (new_cert, new_key) = certificate(tmp_path), certificate(tmp_path / "new")
    tokens, config = tmp_path / "tokens.txt", tmp_path / "server.toml"
    tokens.write_text("app:first\n")
    config.write_text(f"token-file = {json.dumps(str(tokens))}\nidle = 30\n")

    def status(where: str, token: str) -> int:
        head = {"Authorization": f"Bearer {token}"}
        return httpx.get(f"https://{where}/v1/models", headers=head, verify=False).status_code

    def shown(where: str) -> str:
        host, port = where.split(":")
        return ssl.get_server_certificate((host, int(port)))

    async def through(made: subprocess.Popen[str], where: str) -> None:
        insecure = ssl.create_default_context()
        insecure.check_hostname, insecure.verify_mode = False, ssl.CERT_NONE
        head = {"Authorization": "Bearer first"}
        async with connect(f"wss://{where}/v1/stream/m", ssl=insecure, additional_headers=head) as ws:
            assert (await opened(ws))["type"] == "ready"
            assert shown(where) == Path(cert).read_text()
            tokens.write_text("app:second\n")
            replaced(Path(cert), Path(new_cert).read_bytes())  # without its key
            made.send_signal(signal.SIGHUP)
            assert "reloaded: tokens: app" in logged(made, "eloaded")
            assert "the key is not the certificate's" in logged(made, "eloaded")
            assert (status(where, "first"), status(where, "second")) == (401, 200)
            replaced(Path(key), Path(new_key).read_bytes())
            config.write_text(config.read_text().replace("30", "40"))
            tokens.write_bytes(b"\xff\xfe")
            made.send_signal(signal.SIGHUP)
            assert "idle" in logged(made, "only a restart changes")
            assert "UTF-8" in logged(made, "eloaded")
            assert "certificate" in logged(made, "eloaded")
            assert shown(where) == Path(new_cert).read_text()
            assert (status(where, "first"), status(where, "second")) == (401, 200)
            await ws.send(frames(1, 2, 40).tobytes())
            await ws.send('{"type": "flush"}')
            last = [message async for message in ws][-1]
            assert json.loads(last)["type"] == "done"

    arguments = ("--tls-cert", cert, "--tls-key", key, "--config", str(config))
    with process(tmp_path / "m.onnx", *arguments) as (made, where):
        asyncio.run(through(made, where))
        made.send_signal(signal.SIGTERM)
        assert made.wait(15) == 0
