"""Streaming recognition: batch models in, a transcript that grows with the sound out."""

from __future__ import annotations

from pulsify.asr.recogniser import Recogniser, Transcriber
from pulsify.asr.text import Word

__all__ = ["Recogniser", "Transcriber", "Word"]
