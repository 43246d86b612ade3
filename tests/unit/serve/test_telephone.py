"""G.711: every byte is the sample that the standard says."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

from pulsify.serve.protocol import Refused, parse
from pulsify.serve.sound import read, telephone

KNOWN = {  # bytes of silence, of the loudest, and of some in between, as 16 bits
    "g711_ulaw": {0xFF: 0, 0x7F: 0, 0x00: -32124, 0x80: 32124, 0x8F: 16764, 0x0F: -16764, 0xFE: 8, 0x7E: -8, 0xE0: 372},
    "g711_alaw": {0xD5: 8, 0x55: -8, 0xAA: 32256, 0x2A: -32256, 0xD4: 24, 0x54: -24, 0x85: 4224, 0x95: 2112},
}


@pytest.mark.parametrize("form", sorted(KNOWN))
def test_bytes_are_samples(form: str) -> None:
    for code, sample in KNOWN[form].items():
        assert read(bytes([code]), form).tolist() == [sample / 32768], hex(code)


@pytest.mark.parametrize("form", sorted(KNOWN))
def test_all_bytes_as_another_decoder_has_them(form: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        audioop = pytest.importorskip("audioop", reason="Python has it up to 3.12")
    decode = audioop.ulaw2lin if form == "g711_ulaw" else audioop.alaw2lin
    codes = bytes(range(256))
    assert np.array_equal(np.frombuffer(decode(codes, 2), "<i2") / 32768, telephone(form))


def test_it_comes_in_and_does_not_go_out() -> None:
    assert parse('{"type": "open", "format": "g711_ulaw", "rate": 8000}').input.format == "g711_ulaw"  # type: ignore[union-attr]
    with pytest.raises(Refused, match=r"output\.format 'g711_alaw'"):
        parse('{"type": "open", "output": {"format": "g711_alaw"}}')
