"""The checksum of a saved stream: of all bytes of its file, in the entry of the metadata that ends it.

    | the model, as protobuf ................ | pulsify.checksum, 64 digits |
      `- SHA-256 of these, graph and metadata -'

More entries of a list may follow any protobuf message, so the file stays plain ONNX, and no byte of it is left out.
Bytes are compared, not contents: how a library writes the same model again does not matter to a file nobody touched.
It is there to notice damage and tools that changed the file; it does not protect against forgery.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

KEY = "pulsify.checksum"
DIGITS = 64
HEAD = b"\x72\x54\x0a\x10" + KEY.encode() + b"\x12\x40"  # protobuf: an entry of ModelProto.metadata_props
BLOCK = 1 << 20  # bytes read at a time: a file is never held for this


def seal(path: Path) -> str:
    """Adds the checksum to a file that was just written; returns it."""
    digest = file_digest(path)
    with open(path, "ab") as file:
        file.write(HEAD + digest.encode())
    return digest


def stated(path: Path) -> str | None:
    """The checksum that ends the file, right or wrong; None if there is none."""
    with open(path, "rb", buffering=0) as file:
        file.seek(max(os.fstat(file.fileno()).st_size - len(HEAD) - DIGITS, 0))
        tail = file.read()
    return tail[-DIGITS:].decode("ascii", "replace") if tail[:-DIGITS] == HEAD else None


def matches(path: Path, checksum: str) -> bool:
    """Are the bytes in front of the checksum those that it was made of?"""
    return file_digest(path, os.path.getsize(path) - len(HEAD) - DIGITS) == checksum


def file_digest(path: Path, size: int | None = None) -> str:
    """SHA-256 of a file, or of its first `size` bytes, read block by block."""
    digest, left = hashlib.sha256(), os.path.getsize(path) if size is None else size
    with open(path, "rb", buffering=0) as file:
        while left > 0 and (block := file.read(min(BLOCK, left))):
            digest.update(block)
            left -= len(block)
    return digest.hexdigest()
