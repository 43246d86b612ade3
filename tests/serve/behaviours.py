"""What hostile clients do: the rows that isolation began with, and a table of others."""

from __future__ import annotations

import json
import struct
from collections.abc import Sequence

import numpy as np

from tests.serve.bystanders import NAME, PULSE
from tests.serve.fuzz import masked
from tests.serve.hostile import (
    BINARY,
    CLOSE,
    CONTINUED,
    OPEN,
    PING,
    PONG,
    RNG,
    STREAM,
    Hostile,
    a_file,
    binary,
    closed_at_once,
    dripping,
    ended_at_once,
    endlessly,
    flooding,
    half_closed,
    handshake,
    in_fragments,
    many_streams,
    odd_rates,
    odd_wav,
    once,
    posting,
    raw_frame,
    reader_of_drops,
    requesting,
    silent,
    sound_file,
    storm_of_tokens,
    text,
    urgent,
)

NAN = np.full(PULSE, np.nan, "<f4").tobytes()
LARGE = np.full(PULSE, 3e38, "<f4").tobytes()
TINY = np.full(PULSE, 1e-42, "<f4").tobytes()
ONE = binary(bytes(4))

ROWS = (
    Hostile("websocket pings", flooding(masked(PING, b"", RNG))),
    Hostile("JSON pings", flooding(text('{"type": "ping"}'))),
    Hostile("messages of one sample", flooding(ONE)),
    Hostile("messages of one sample, 4 clients", flooding(ONE), 4),
    Hostile("empty binary messages", flooding(binary(b""))),
    Hostile("empty messages in 900 fragments", flooding(in_fragments(900))),
    Hostile("a stereo .wav of 60 MiB", a_file(sound_file(980))),
)


def _peculiar_texts() -> list[Hostile]:
    texts: dict[str, bytes] = {
        "unknown types": b'{"type": "nothing"}',
        "arrays in arrays": b"[" * 60_000,
        "objects in objects": b'{"a":' * 12_000,
        "a list of zeros": b"[" + b"0," * 30_000 + b"0]",
        "a huge integer": b'{"type": "ping", "id": ' + b"9" * 60_000 + b"}",
        "a huge exponent": b'{"type": "ack", "mark": 1e400}',
        "escapes": b'{"type": "ping", "id": "' + b"\\u0000" * 10_000 + b'"}',
        "no UTF-8": b"\xff\xfe" * 1000,
        "lone surrogates": b'{"type": "ping", "id": "\\ud800"}',
        "NaN in JSON": b'{"type": "ack", "mark": NaN}',
        "one key a thousand times": b"{" + b'"type": "ping",' * 4000 + b'"type": "ping"}',
        "a byte order mark": b"\xef\xbb\xbf" + OPEN.encode(),
        "white space": b" " * 60_000 + b'{"type": "ping"}',
        "a text of a mebibyte": b'"' + b"x" * ((1 << 20) - 2) + b'"',
        "an empty text": b"",
        "a long string of quotes": b'"' * 60_000,
        "half a number": b"-" * 30_000,
        "a thousand outputs": json.dumps(
            {"type": "open", "resume": "x", "have": {str(i): i for i in range(990)}}
        ).encode(),
        "two opens": OPEN.encode(),
        "flush and flush": b'{"type": "flush"}',
        "a format of objects": b'{"type": "open", "format": {"a": {}}}',
        "a rate of true": b'{"type": "open", "format": "pcm16", "rate": true}',
    }
    return [Hostile(name, flooding(text(message))) for name, message in texts.items()]


def _floods() -> list[Hostile]:
    sound = '{"type": "open", "format": "pcm16", "rate": 48000}'
    return [
        Hostile("pings of 125 bytes", flooding(masked(PING, bytes(125), RNG))),
        Hostile("pongs nobody asked for", flooding(masked(PONG, b"", RNG))),
        Hostile("pings before open", flooding(masked(PING, b"", RNG), opening=None)),
        Hostile("JSON pings with a long id", flooding(text(json.dumps({"type": "ping", "id": "x" * 200})))),
        Hostile("peeks", flooding(text('{"type": "peek"}'))),
        Hostile("peeks between pulses", flooding(binary(bytes(4 * PULSE)), text('{"type": "peek"}'))),
        Hostile("acks of mark 0", flooding(text('{"type": "ack", "mark": 0}'))),
        Hostile("acks of marks to come", flooding(text('{"type": "ack", "mark": 4611686018427387903}'))),
        Hostile(
            "acks of a stream with a token",
            flooding(text('{"type": "ack", "mark": 0}'), opening='{"type": "open", "resume": true}'),
        ),
        Hostile("messages of one byte", flooding(binary(b"x"))),
        Hostile("messages of two samples at 48 kHz", flooding(binary(bytes(4)), opening=sound)),
        Hostile("messages of a sample, four clients", flooding(binary(bytes(4)), each=400), 4),
        Hostile("empty and full by turns", flooding(binary(b""), binary(bytes(4 * PULSE)))),
        Hostile("one byte a fragment", flooding(in_fragments(64, b"x"))),
        Hostile("a message in a thousand fragments", flooding(in_fragments(1000, bytes(4)))),
        Hostile("a message of one mebibyte", flooding(binary(bytes(1 << 20)))),
        Hostile("messages of 64 KiB, four clients", flooding(binary(bytes(1 << 16))), 4),
        Hostile("messages of a pulse, four clients", flooding(binary(bytes(4 * PULSE))), 4),
        Hostile("NaN", flooding(binary(NAN))),
        Hostile("numbers that overflow", flooding(binary(LARGE))),
        Hostile("numbers that are nearly zero", flooding(binary(TINY))),
        Hostile("no sample of that size", flooding(binary(bytes(4 * PULSE + 1)))),
        Hostile("frames behind flush", flooding(text('{"type": "flush"}'), binary(bytes(4 * PULSE)))),
        Hostile("frames before open", flooding(binary(bytes(4 * PULSE)), opening=None)),
        Hostile(
            "a ping between fragments",
            flooding(masked(BINARY, bytes(4), RNG, last=False), masked(PING, b"", RNG), masked(CONTINUED, b"", RNG)),
        ),
        Hostile("pulses, and nobody reads", flooding(binary(bytes(4 * PULSE)), reads=False)),
        Hostile("64 KiB, and nobody reads", flooding(binary(bytes(1 << 16)), reads=False), 4),
        Hostile("JSON pings, and nobody reads", flooding(text('{"type": "ping"}'), reads=False)),
        Hostile("pings, and nobody reads", flooding(masked(PING, bytes(125), RNG), reads=False)),
        Hostile("peeks, and nobody reads", flooding(text('{"type": "peek"}'), reads=False)),
        Hostile("a byte is read now and then", reader_of_drops, 2),
        Hostile("frames in writes of 7 bytes", flooding(ONE, each=7)),
    ]


def _no_websockets() -> list[Hostile]:
    """Frames that are none."""
    huge = struct.pack("!BBQ", 0x82, 0xFF, (1 << 63) - 1)
    return [
        Hostile("control frames in fragments", flooding(masked(PING, b"x", RNG, last=False))),
        Hostile("a control frame of 126 bytes", flooding(masked(PING, bytes(126), RNG))),
        Hostile("an opcode that is none", flooding(masked(3, b"", RNG))),
        Hostile("a control opcode that is none", flooding(masked(11, b"", RNG))),
        Hostile("reserved bits", flooding(raw_frame(0xF2, 0x80, bytes(4)))),
        Hostile("frames without a mask", flooding(raw_frame(0x82, 4, bytes(4)))),
        Hostile("a size of 2^63", flooding(huge + bytes(4))),
        Hostile("a size of 2^63, byte by byte", dripping(text(OPEN) + huge, 0.01)),
        Hostile("sizes longer than they need be", flooding(struct.pack("!BBH", 0x82, 0xFE, 4) + bytes(8))),
        Hostile("a continuation of nothing", flooding(masked(CONTINUED, b"x", RNG))),
        Hostile("a message within a message", flooding(masked(BINARY, b"x", RNG, last=False), binary(b"y"))),
        Hostile(
            "fragments without end",
            endlessly(
                masked(BINARY, b"", RNG, last=False), masked(CONTINUED, b"", RNG, last=False) * 2000, STREAM, text(OPEN)
            ),
        ),
        Hostile("a close of one byte", flooding(masked(CLOSE, b"x", RNG))),
        Hostile("a close of 125 bytes", flooding(masked(CLOSE, struct.pack("!H", 1000) + b"x" * 123, RNG))),
        Hostile("frames behind a close", flooding(masked(CLOSE, b"", RNG), ONE * 50)),
        Hostile("noise", flooding(RNG.randbytes(5000), opening=None)),
        Hostile("noise behind open", flooding(RNG.randbytes(5000))),
    ]


def _slow() -> list[Hostile]:
    shake = handshake("127.0.0.1", STREAM)
    return [
        Hostile("half a frame, then nothing", silent(text(OPEN) + binary(bytes(4 * PULSE))[:100], STREAM)),
        Hostile("half a head, then nothing", silent(text(OPEN) + b"\x82", STREAM)),
        Hostile("a pulse byte by byte", dripping(text(OPEN) + binary(bytes(4 * PULSE)))),
        Hostile("a mebibyte, ten bytes at a time", dripping(text(OPEN) + binary(bytes(1 << 20)), 0, size=10), 2),
        Hostile("a handshake byte by byte", dripping(shake, 0.005, None), 10),
        Hostile("half a handshake", silent(shake[:60]), 3),
        Hostile("a hundred silent connections", silent(b"", connections=100)),
        Hostile("websockets that never open", silent(b"", STREAM)),
        Hostile("streams that never send", many_streams),
    ]


def _storms() -> list[Hostile]:
    return [
        Hostile("connections closed at once", closed_at_once, 8),
        Hostile("connections ended at once", ended_at_once, 8),
        Hostile("handshakes and resets", once(opening=None), 8),
        Hostile("opens and resets", once(), 8),
        Hostile("a pulse and a reset", once(binary(bytes(4 * PULSE))), 8),
        Hostile(
            "whole streams, one after the other",
            once(binary(bytes(4 * PULSE)), text('{"type": "flush"}'), then=0.02),
            8,
        ),
        Hostile("streams that end in an error", once(binary(b"x"), then=0.01), 8),
        Hostile("opens of odd rates", odd_rates, 4),
        Hostile(
            "tokens nobody gave",
            once(text('{"type": "open", "resume": "unheard-of", "have": {}}'), opening=None, then=0.01),
            4,
        ),
        Hostile("tokens and cuts", storm_of_tokens, 3),
        Hostile("half-closed streams", half_closed, 4),
        Hostile("urgent data", urgent),
        Hostile("a large message cut off", once(binary(bytes(1 << 20))[:500_000]), 4),
    ]


def _http() -> list[Hostile]:
    def get(path: str, more: str = "", method: str = "GET") -> bytes:
        return f"{method} {path} HTTP/1.1\r\nHost: WHERE\r\n{more}\r\n".encode()

    chunked = "Transfer-Encoding: chunked\r\n"
    return [
        Hostile("health, again and again", requesting(get("/health") * 50), 4),
        Hostile("models, again and again", requesting(get("/v1/models") * 50), 4),
        Hostile("metrics, again and again", requesting(get("/metrics") * 20), 4),
        Hostile("a thousand requests that nobody reads", requesting(get("/v1/models") * 1000, reads=False), 2),
        Hostile("the page, and nobody reads", requesting(get("/") * 100, reads=False), 4),
        Hostile("no path", requesting(get("/nothing") * 50), 4),
        Hostile(
            "odd methods", requesting(*(get("/v1/run/x", method=m) for m in ("TRACE", "DELETE", "BREW", "OPTIONS")))
        ),
        Hostile("a long path", requesting(get("/" + "a" * 60_000))),
        Hostile("a longer path", endlessly(b"GET /", b"a" * 65536)),
        Hostile("thousands of headers", requesting(get("/health", "".join(f"a{i}: b\r\n" for i in range(10_000))))),
        Hostile("headers without end", endlessly(b"GET / HTTP/1.1\r\nHost: WHERE\r\n", b"a: b\r\n" * 100)),
        Hostile("a long header", requesting(get("/health", "Cookie: " + "x" * 200_000 + "\r\n"))),
        Hostile("noise for HTTP", requesting(RNG.randbytes(20_000)), 2),
        Hostile("TLS where there is none", requesting(b"\x16\x03\x01\x02\0\x01\0\x01\xfc\x03\x03" + bytes(500))),
        Hostile("HTTP/2", requesting(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(100))),
        Hostile("two lengths", requesting(get("/v1/run/x", "Content-Length: 5\r\nContent-Length: 6\r\n", "POST"))),
        Hostile("a length below zero", requesting(get("/v1/run/x", "Content-Length: -1\r\n", "POST"))),
        Hostile(
            "chunks and a length",
            requesting(get("/v1/run/x", chunked + "Content-Length: 6\r\n", "POST") + b"0\r\n\r\nGET / HT"),
        ),
        Hostile("an old websocket", requesting(handshake("WHERE", STREAM, version="8"))),
        Hostile("a websocket without a key", requesting(handshake("WHERE", STREAM, key="x"))),
        Hostile("websockets to nowhere", requesting(handshake("WHERE", "/v1/stream/nobody")), 4),
        Hostile(
            "websockets of an evil page", requesting(handshake("WHERE", STREAM, "Origin: https://evil.example\r\n")), 4
        ),
        Hostile(
            "a hundred subprotocols",
            requesting(
                handshake("WHERE", STREAM, f"Sec-WebSocket-Protocol: {', '.join(f'p{i}' for i in range(1000))}\r\n")
            ),
        ),
        Hostile("a realtime session of no recogniser", requesting(handshake("WHERE", f"/v1/realtime?model={NAME}"))),
    ]


def _files() -> list[Hostile]:
    chunked = "Transfer-Encoding: chunked\r\n"
    return [
        Hostile("a file of 10 GiB is announced", posting("Content-Length: 10737418240\r\n", bytes(1 << 20)), 2),
        Hostile("a file in chunks of a byte", posting(chunked, *([b"1\r\nx\r\n" * 10_000] * 100))),
        Hostile("a file byte by byte", posting("Content-Length: 1000\r\n", *([b"x"] * 1000), pause=0.05), 4),
        Hostile(
            "a file in chunks without end",
            endlessly(
                f"POST /v1/run/{NAME} HTTP/1.1\r\nHost: WHERE\r\n{chunked}\r\n".encode(),
                b"10000\r\n" + bytes(65536) + b"\r\n",
            ),
        ),
        Hostile("half a file", posting("Content-Length: 10000\r\n", bytes(5000)), 4),
        Hostile("files one after the other", a_file(sound_file(0.2)), 4),
        Hostile("a file whose reply nobody reads", a_file(sound_file(100, 1), reads=False), 2),
        Hostile("a .wav of 24 bits", a_file(odd_wav(bits=24) + bytes(600))),
        Hostile("a .wav of no channels", a_file(odd_wav(channels=0) + bytes(600))),
        Hostile("a .wav of 65535 channels", a_file(odd_wav(channels=65535) + bytes(600))),
        Hostile("a .wav of rate 0", a_file(odd_wav(rate=0) + bytes(600))),
        Hostile("a .wav of a peculiar rate", a_file(odd_wav(rate=999_983) + bytes(60_000))),
        Hostile("a .wav that ends early", a_file(odd_wav()[:30])),
        Hostile("a file for nobody", posting("Content-Length: 1048576\r\n", bytes(1 << 20), name="nobody"), 2),
        Hostile("ten minutes of raw sound", a_file(bytes(4 * 16000 * 200), "application/octet-stream"), 2),
    ]


def behaviours() -> Sequence[Hostile]:
    """All but the rows that everything began with."""
    groups = (_peculiar_texts, _floods, _no_websockets, _slow, _storms, _http, _files)
    return [each for group in groups for each in group()]
