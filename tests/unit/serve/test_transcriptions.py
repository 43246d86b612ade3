"""Forms, as clients write them."""

from __future__ import annotations

import random
import time

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsify.serve.protocol import Refused
from pulsify.serve.transcriptions import read_form

values = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)


@given(file=st.binary(max_size=400), model=values, detail=st.lists(values, max_size=3))
def test_what_is_written_is_read(file: bytes, model: str, detail: list[str]) -> None:
    data = {"model": model, "timestamp_granularities[]": detail}
    request = httpx.Request("POST", "http://x", data=data, files={"file": ("a.wav", file, "audio/wav")})
    form = read_form(bytearray(request.read()), request.headers["content-type"])
    assert form.file is not None and bytes(form.file) == file
    assert form.one("model") == model and form.fields.get("timestamp_granularities", []) == detail


def test_a_form_that_is_cut_or_damaged_is_refused_or_read() -> None:
    request = httpx.Request("POST", "http://x", data={"model": "m"}, files={"file": ("a.wav", b"RIFF" * 50)})
    body, kind, rng = request.read(), request.headers["content-type"], random.Random(0)
    for size in range(len(body) - 4):  # what is behind the last mark does not matter
        with pytest.raises(Refused):
            read_form(bytearray(body[:size]), kind)
    codes = set[str]()
    for _ in range(500):
        damaged = bytearray(body)
        for _ in range(3):
            damaged[rng.randrange(len(damaged))] = rng.randrange(256)
        try:
            read_form(damaged, kind)
        except Refused as refused:
            codes.add(refused.code)
    assert codes == {"bad_message"}


@pytest.mark.parametrize("kind", ["", "audio/wav", "multipart/form-data", "multipart/mixed; boundary=x"])
def test_what_is_no_form_is_refused(kind: str) -> None:
    with pytest.raises(Refused, match="multipart/form-data"):
        read_form(bytearray(b"--x\r\n"), kind)


def test_too_many_parts() -> None:
    body = b'--x\r\nContent-Disposition: form-data; name="a"\r\n\r\n1\r\n' * 200 + b"--x--"
    with pytest.raises(Refused, match="too many"):
        read_form(bytearray(body), "multipart/form-data; boundary=x")


@pytest.mark.parametrize("head", [b"; ", b';"', b"a=b;", b"a*1=b;"])
def test_a_form_takes_no_longer_than_it_is_large(head: bytes) -> None:
    """The parser of heads takes the square of their size: three minutes it was for one form."""
    part = b"--x\r\nContent-Disposition: form-data; name=" + head * (60_000 // len(head)) + b"\r\n\r\nvalue\r\n"
    start = time.thread_time()
    with pytest.raises(Refused, match="not whole"):
        read_form(bytearray(part * 3 + b"--x--"), "multipart/form-data; boundary=x")
    with pytest.raises(Refused, match="expected multipart"):
        read_form(bytearray(b"--x--"), f"multipart/form-data; boundary=x; name={head.decode() * 4000}")
    assert time.thread_time() - start < 0.5
