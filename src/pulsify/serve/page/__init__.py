"""The page at `/`: plain modules, read once at the start, so that no path of a client's reaches the file system."""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING

from starlette.responses import Response
from starlette.routing import Route

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from starlette.requests import Request

HERE = Path(__file__).parent
SOUNDS = [HERE.parent.parent / "demo" / folder for folder in ("recogniser", "enhancer")]
KINDS = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
    ".wav": "audio/wav",
}
POLICY = {  # nothing is loaded from elsewhere, and nothing that is not a file of ours is run
    "default-src": "'none'",
    "script-src": "'self'",
    "style-src": "'self'",
    "img-src": "'self'",
    "connect-src": "'self'",
    "media-src": "blob:",
    "base-uri": "'none'",
    "form-action": "'none'",
    "frame-ancestors": "'none'",
}
HEADERS = {
    "Content-Security-Policy": "; ".join(f"{k} {v}" for k, v in POLICY.items()),
    "Permissions-Policy": "microphone=(self), camera=(), geolocation=()",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-cache",
}


def files() -> dict[str, Path]:
    """The files of the page, by path of the URL."""
    paths = {f"/{each.name}": each for each in sorted(HERE.iterdir()) if each.suffix in KINDS}
    paths |= {f"/sounds/{each.name}": each for folder in SOUNDS for each in sorted(folder.glob("*.wav"))}
    return {"/": paths["/index.html"], **paths}


def routes() -> list[Route]:
    return [Route(path, _answer(file.read_bytes(), KINDS[file.suffix])) for path, file in files().items()]


def _answer(body: bytes, kind: str) -> Callable[[Request], Awaitable[Response]]:
    tag = f'"{sha256(body).hexdigest()[:32]}"'

    async def answer(request: Request) -> Response:
        head = {**HEADERS, "ETag": tag}
        if tag in request.headers.get("if-none-match", ""):
            return Response(status_code=304, headers=head)
        return Response(body, media_type=kind, headers=head)

    return answer
