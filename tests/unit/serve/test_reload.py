"""What is read again takes effect whole or not at all, one reload at a time."""

from __future__ import annotations

import asyncio
import logging
import shutil
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from pulsify.core.errors import InvalidArgument
from pulsify.serve import reload
from pulsify.serve.certificates import Certificates
from pulsify.serve.listening import Options
from pulsify.serve.reload import Part, Reloads, tokens_part
from pulsify.serve.running import server
from pulsify.serve.service import Service, Settings
from pulsify.serve.tokens import Tokens, tokens

KNOWN = tokens(["app:s3cret"])


def fails(error: Exception) -> Part:
    def part() -> Callable[[], str]:
        raise error

    return part


def reloaded(service: Service, **parts: Part) -> None:
    async def once() -> None:
        reloads = Reloads(service, parts)
        reloads.ask()
        while service.figures.reloaded is None:
            await asyncio.sleep(0.001)

    asyncio.run(once())


def test_tokens_are_replaced_and_one_part_that_fails_does_not_hold_up_another(caplog: pytest.LogCaptureFixture) -> None:
    service = Service([], Settings(tokens=KNOWN))
    caplog.set_level(logging.INFO)
    reloaded(
        service,
        wrong=fails(InvalidArgument("no good")),
        bug=fails(ZeroDivisionError()),
        tokens=tokens_part(service, lambda: tokens(["app:another", "page:third"])),
    )
    assert service.tokens.name_of(["s3cret"]) is None and service.tokens.name_of(["third"]) == "page"
    assert service.figures.reloaded is False
    said = [(r.levelname, r.getMessage()) for r in caplog.records if r.name == "pulsify.serve"]
    assert said == [
        ("ERROR", "wrong not reloaded: no good; the old ones stay"),
        ("ERROR", "bug not reloaded; the old ones stay"),
        ("INFO", "reloaded: tokens: app, page"),
    ]


def test_a_server_that_asks_for_a_token_never_stops_asking() -> None:
    service = Service([], Settings(tokens=KNOWN))
    reloaded(service, tokens=tokens_part(service, Tokens))
    assert service.tokens == KNOWN and service.figures.reloaded is False


def test_files_that_hang_are_given_up(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    hanging = threading.Event()

    def part() -> Callable[[], str]:
        hanging.wait(30)
        return lambda: "too late"

    monkeypatch.setattr(reload, "PATIENCE", 0.05)
    service = Service([])
    reloaded(service, files=part)
    hanging.set()
    assert service.figures.reloaded is False and "could not be read within" in caplog.text


def test_a_storm_is_two_reloads() -> None:
    going, count = threading.Event(), [0]

    def part() -> Callable[[], str]:
        count[0] += 1
        assert going.wait(30)
        return lambda: "files"

    async def storm() -> None:
        reloads = Reloads(Service([]), {"files": part})
        for _ in range(100):
            reloads.ask()
            await asyncio.sleep(0)
        going.set()
        assert reloads._task is not None
        await reloads._task

    asyncio.run(storm())
    assert count == [2]


def certificate(folder: Path, name: str = "localhost", *more: str) -> tuple[str, str]:
    made = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-days", "2"]
    cert, key = str(folder / "cert.pem"), str(folder / "key.pem")
    command = [*made, "-subj", f"/CN={name}", "-keyout", key, "-out", cert, *(more or ["-nodes"])]
    subprocess.run(command, check=True, capture_output=True)
    return cert, key


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl makes the certificate, and is not installed")
def test_certificates_that_are_none_are_told_and_the_old_one_stays(tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    cert, key = certificate(tmp_path)
    certificates = Certificates(cert, key)
    before, whole = certificates.context, Path(cert).read_bytes()
    certificate(other)
    for broken, why in (
        (b"", "not whole PEM"),
        (b"nonsense", "not whole PEM"),
        (whole[: len(whole) // 2], "not whole PEM"),
        (whole.replace(b"\nMI", b"\nAA"), "not whole PEM"),
        ((other / "cert.pem").read_bytes(), "the key is not the certificate's"),
    ):
        Path(cert).write_bytes(broken)
        with pytest.raises(InvalidArgument, match=why):
            certificates.read()
    Path(cert).unlink()
    with pytest.raises(InvalidArgument, match="No such file"):
        certificates.read()
    with pytest.raises(InvalidArgument, match="password"):
        Certificates(*certificate(tmp_path, "localhost", "-passout", "pass:word"))
    assert certificates.context is before


def test_a_key_alone_is_no_reason_for_plain_http() -> None:
    with pytest.raises(InvalidArgument, match="--tls-cert"):
        server(Service([]), Options(tls_key="key.pem"))
