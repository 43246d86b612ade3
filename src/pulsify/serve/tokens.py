"""The tokens that clients show: several, each with a name, from options and from files.

--token s3cret --token app:another        --token-file tokens.txt        --token-file /run/secrets/tokens
                                          app:another                    .../app   (its content is the token)
"""

from __future__ import annotations

import hashlib
import hmac
import os
import re
import stat
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from pulsify.core.errors import InvalidArgument

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
LONGEST = 1024  # characters of a token
LARGEST = 1 << 20  # bytes of a file of tokens
MOST = 1000
NAMELESS = "token"


@dataclass(frozen=True)
class Tokens:
    """Names, each with the hash of its token. None at all: everyone may come."""

    hashes: tuple[tuple[str, bytes], ...] = ()

    def __bool__(self) -> bool:
        return bool(self.hashes)

    def name_of(self, shown: Iterable[str]) -> str | None:
        """Whose token is among those that were shown. Takes the same time whatever they have in common with it."""
        whose = None
        for each in shown:
            digest = _hash(each)
            for name, wanted in self.hashes:
                if hmac.compare_digest(digest, wanted):
                    whose = name
        return whose


def tokens(given: Sequence[str] = (), files: Sequence[str | os.PathLike[str]] = ()) -> Tokens:
    """Of `[NAME:]TOKEN` texts, and of files that are read now. InvalidArgument: what is wrong, without the token."""
    named: dict[str, bytes] = {}
    sources = [("--token", each) for each in given]
    for path in files:
        lines = list(_in_file(Path(path)))
        if not lines:
            raise InvalidArgument(f"there is no token in {path}")
        sources += lines
    nameless = 0
    for where, text in sources:
        name, token = _parsed(where, text)
        if name is None:
            nameless += 1
            name = NAMELESS if nameless == 1 else f"{NAMELESS}{nameless}"
        if name in named:
            raise InvalidArgument(f"{where}: there are two tokens of the name {name}")
        if _hash(token) in named.values():
            raise InvalidArgument(f"{where}: the token {name} is another one's as well")
        named[name] = _hash(token)
        if len(named) > MOST:
            raise InvalidArgument(f"{where}: more than {MOST} tokens")
    return Tokens(tuple(named.items()))


def _hash(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).digest()


def _parsed(where: str, text: str) -> tuple[str | None, str]:
    name, colon, token = text.partition(":")
    if not colon:
        name, token = "", text
    elif not NAME.fullmatch(name):
        raise InvalidArgument(f"{where}: what is before ':' is a name: letters, digits, '-', '_' and '.', 64 at most")
    if not token or not token.isprintable() or any(c.isspace() for c in token) or len(token) > LONGEST:
        raise InvalidArgument(f"{where}: a token is 1 to {LONGEST} printable characters without spaces")
    return name or None, token


def _in_file(path: Path) -> Iterator[tuple[str, str]]:
    """Each with where it stands. A folder has a file for each, named as the token is."""
    try:
        if path.is_dir():
            for each in sorted(path.iterdir()):
                if not each.name.startswith(".") and each.is_file():
                    if not NAME.fullmatch(each.name):
                        raise InvalidArgument(f"{each}: the name of a token is letters, digits, '-', '_' and '.'")
                    yield str(each), f"{each.name}:{_text(each).strip()}"
            return
        text = _text(path)
    except OSError as error:
        raise InvalidArgument(f"tokens cannot be read from {path}: {error.strerror}") from error
    for number, line in enumerate(text.splitlines(), 1):
        if line.strip() and not line.lstrip().startswith("#"):
            yield f"{path}, line {number}", line.strip()


def _text(path: Path) -> str:
    """A regular file: one that is read again later, and never waited for."""
    handle = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
    with open(handle, "rb") as file:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            raise InvalidArgument(f"{path} is no regular file")
        data = file.read(LARGEST + 1)
    if len(data) > LARGEST:
        raise InvalidArgument(f"{path}: more than {LARGEST} bytes of tokens")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise InvalidArgument(f"{path} is no text in UTF-8") from None
