"""Tokens: which are taken, from where, and what is said about those that are none."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from pulsify.cli.serve import serve
from pulsify.core.errors import InvalidArgument
from pulsify.serve.access import address, behind_proxies, check_token
from pulsify.serve.listening import Options
from pulsify.serve.protocol import Refused
from pulsify.serve.running import warn_if_open
from pulsify.serve.service import Service, Settings
from pulsify.serve.tokens import LARGEST, LONGEST, MOST, Tokens, tokens


def test_names() -> None:
    known = tokens(["s3cret", "app:another", "c2ln:b3Jl=="])
    assert [name for name, _ in known.hashes] == ["token", "app", "c2ln"]
    assert known.name_of(["wrong", "another"]) == "app"
    assert known.name_of(["b3Jl=="]) == "c2ln"
    for wrong in ("", "app", "app:another", "anothe", "another ", "\ud800", "s3cret\0"):
        assert known.name_of([wrong]) is None
    assert tokens() == Tokens() and not tokens()


def test_files_and_folders(tmp_path: Path) -> None:
    lines, folder = tmp_path / "tokens.txt", tmp_path / "tokens"
    lines.write_bytes(b"\xef\xbb\xbf# who may come\r\n\r\napp:one\r\n  two  \r\n\tthree\n")
    (folder / "..data").mkdir(parents=True)  # as Kubernetes mounts a secret
    (folder / "..data" / "page").write_text("four\n")
    (folder / "page").symlink_to(Path("..data") / "page")
    (folder / "folder").mkdir()
    known = tokens(["zero"], [lines, folder])
    assert [name for name, _ in known.hashes] == ["token", "app", "token2", "token3", "page"]
    assert [known.name_of([t]) for t in ("zero", "one", "two", "three", "four")] == [
        "token", "app", "token2", "token3", "page",
    ]  # fmt: skip


ODD = {
    b"": "no token in",
    b"# nothing\n\n": "no token in",
    b"app:": "1 to",
    b":secret": "is a name",
    b"a b:secret": "is a name",
    b"app:one two": "without spaces",
    b"app:one\x00": "without spaces",
    b"app:\xc3\xa9\xe2\x80\x8b": "without spaces",
    b"app:" + b"x" * (LONGEST + 1): "1 to",
    b"app:secret1\napp:secret2": "two tokens of the name app",
    b"a:secret1\nb:secret1": "another one's",
    b"\xff\xfe\x00": "UTF-8",
    b"x" * (LARGEST + 1): "more than",
    b"".join(b"n%d:t%d\n" % (i, i) for i in range(MOST + 1)): "more than",
}


@pytest.mark.parametrize("content", ODD, ids=range(len(ODD)))
def test_odd_files_are_named_and_their_tokens_are_not(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "tokens.txt"
    path.write_bytes(content)
    with pytest.raises(InvalidArgument, match=ODD[content]) as caught:
        tokens(files=[path])
    assert str(path) in str(caught.value) and "secret1" not in str(caught.value)


def test_what_is_no_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")  # nobody writes: it is not waited for
    (tmp_path / "odd").mkdir()
    (tmp_path / "odd" / "a name").write_text("x")
    for path, why in (("pipe", "no regular file"), ("missing", "No such file"), ("odd", "the name of a token")):
        with pytest.raises(InvalidArgument, match=why):
            tokens(files=[tmp_path / path])


@pytest.mark.parametrize(
    ("host", "known", "told"),
    [("127.0.0.1", "", 0), ("::1", "", 0), ("localhost", "", 0), ("0.0.0.0", "", 1), ("::", "", 1), ("::", "T", 0),
     ("10.0.0.1", "", 1), ("host.example", "", 1), ("", "", 1)],
)  # fmt: skip
def test_a_server_that_everyone_may_use_says_so(
    host: str, known: str, told: int, caplog: pytest.LogCaptureFixture
) -> None:
    service = Service([], Settings(tokens=tokens([known] if known else [])))
    warn_if_open(service, Options(host))
    assert [r.levelname for r in caplog.records] == ["WARNING"] * told


@pytest.mark.parametrize("empty", ["", " "])
def test_a_variable_that_is_empty_does_not_open_the_server_to_everyone(empty: str) -> None:
    done = CliRunner().invoke(serve, ["m.onnx", "--port", "0"], env={"PULSIFY_TOKEN": empty})
    assert done.exit_code == 2 and "PULSIFY_TOKEN is set but empty" in done.stderr


@pytest.mark.parametrize(
    ("peer", "header", "trusted", "client"),
    [
        (("127.0.0.1", 5), "10.0.0.9", ["127.0.0.1"], "10.0.0.9"),
        (("127.0.0.1", 5), None, ["127.0.0.1"], "127.0.0.1:5"),
        (("10.1.1.1", 5), "6.6.6.6", ["127.0.0.1"], "10.1.1.1:5"),  # nobody's proxy
        (("127.0.0.1", 5), "6.6.6.6, 10.0.0.9, 10.2.0.1", ["127.0.0.1", "10.2.0.0/16"], "10.0.0.9"),
        (("127.0.0.1", 5), "6.6.6.6, 10.0.0.9", ["*"], "6.6.6.6"),
        (("127.0.0.1", 5), "a\nb", ["127.0.0.1"], "127.0.0.1:5"),
        (("::1", 5, 0, 0), "2001:db8::7", ["::1"], "[2001:db8::7]"),
        (("127.0.0.1", 5), ", ".join(["127.0.0.1"] * 100), ["127.0.0.1"], "127.0.0.1"),
        ("", "6.6.6.6", ["*"], None),
        (None, "6.6.6.6", ["*"], None),
    ],
)
def test_addresses_behind_proxies(peer: Any, header: str | None, trusted: list[str], client: str | None) -> None:
    assert address(behind_proxies(peer, header, trusted)) == client


def test_a_token_that_is_not_ascii_may_be_sent_in_both_ways() -> None:
    known = tokens(["app:ünsaid"])
    for sent in (b"\xfcnsaid", "ünsaid".encode()):
        assert check_token(known, "Bearer " + sent.decode("latin-1")) == "app"
    assert check_token(Tokens(), None) is None
    with pytest.raises(Refused):
        check_token(known, None)
