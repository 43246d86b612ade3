"""The page as it is served: its own files and nothing else, under a strict policy."""

from __future__ import annotations

import re
from collections.abc import Iterator

import httpx
import pytest

from pulsify.serve import page
from tests.serve.live import serving


@pytest.fixture(scope="module")
def where() -> Iterator[str]:
    with serving([]) as (_, found):
        yield f"http://{found}"


@pytest.mark.parametrize("path", page.files())
def test_every_file_comes_under_the_policy(where: str, path: str) -> None:
    file, reply = page.files()[path], httpx.get(where + path)
    assert reply.content == file.read_bytes()
    assert reply.headers["Content-Type"] == page.KINDS[file.suffix]
    assert reply.headers["Content-Security-Policy"].startswith("default-src 'none'; script-src 'self';")
    assert reply.headers["X-Content-Type-Options"] == "nosniff"


def test_nothing_is_named_that_is_elsewhere_or_missing() -> None:
    """Addresses in the files are of other files, or namespaces."""
    names = {path.removeprefix("/") for path in page.files()}
    for file in set(page.files().values()):
        if file.suffix == ".wav":
            continue
        text = file.read_text()
        assert set(re.findall(r"https?://[^\s\"']+", text)) <= {"http://www.w3.org/2000/svg"}, file.name
        named = re.findall(r"(?:from \"\./|import\(\"\./|new URL\(\"\./)([\w.]+)\"", text)
        named += re.findall(r"(?:src|href)=\"([\w./-]+)\"", text)
        assert set(named) <= names, file.name


def test_a_file_that_was_not_changed_is_not_sent_again(where: str) -> None:
    first = httpx.get(f"{where}/app.js")
    again = httpx.get(f"{where}/app.js", headers={"If-None-Match": first.headers["ETag"]})
    assert (first.status_code, again.status_code, again.content) == (200, 304, b"")


@pytest.mark.parametrize("path", ["/__init__.py", "/../app.py", "/sounds/../model.toml", "/%2e%2e/app.py"])
def test_nothing_else_is_served(where: str, path: str) -> None:
    assert httpx.get(where + path).status_code == 404
