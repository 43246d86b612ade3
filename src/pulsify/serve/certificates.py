"""The server's TLS certificate, which can be replaced while it runs: handshakes from then on take the new one."""

from __future__ import annotations

import ssl

from pulsify.core.errors import InvalidArgument


class Certificates:
    """Of two files, read again by `read`. What is in use stays until what was read is whole and fits together."""

    def __init__(self, cert: str, key: str | None) -> None:
        self._cert, self._key = cert, key
        self.context = self.read()

    def read(self) -> ssl.SSLContext:
        """A context of what the files hold now; InvalidArgument if that is no certificate with its key."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        try:
            context.load_cert_chain(self._cert, self._key, _no_password)
        except (OSError, ValueError) as error:
            files = self._cert if self._key is None else f"{self._cert}, {self._key}"
            raise InvalidArgument(f"no certificate with its key is in {files}: {_why(error)}") from error
        return context

    def served(self) -> ssl.SSLContext:
        """For a server: each handshake is made with the context that is current then."""
        context = self.context
        context.sni_callback = self._choose
        return context

    def _choose(self, connection: ssl.SSLObject, name: str | None, context: ssl.SSLContext) -> None:
        connection.context = self.context


def _why(error: Exception) -> str:
    if isinstance(error, ssl.SSLError):
        return (
            "the key is not the certificate's" if error.reason == "KEY_VALUES_MISMATCH" else "a file is not whole PEM"
        )
    return str(getattr(error, "strerror", None) or error)


def _no_password() -> str:
    """OpenSSL would ask the terminal for it."""
    raise ValueError("the key has a password; store it without one")
