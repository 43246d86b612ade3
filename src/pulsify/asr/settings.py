"""What a recogniser is made of: the small TOML file beside its models, read and checked."""

from __future__ import annotations

import dataclasses
import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pulsify.core.errors import InvalidModel

KINDS = ("ctc", "rnnt")
STREAM_OPTIONS = ("pulse", "time", "bind", "set", "unbounded")  # of pulsify.stream
TYPES: dict[str, tuple[type, str]] = {
    "kind": (str, "text"),
    "sample_rate": (int, "a whole number"),
    "blank": (int, "a whole number"),
    "pulse": (int, "a whole number"),
    "max_symbols": (int, "a whole number"),
    "words": (bool, "true or false"),
    "names": (dict, "a table"),
    "preprocessor_options": (dict, "a table"),
    "encoder_options": (dict, "a table"),
}
BUILT_IN = Path(__file__).parent.parent / "demo" / "recogniser"  # the folder of a small one


@dataclass(frozen=True)
class Names:
    """What the inputs and outputs of prediction network and joint are called; whatever else they have is a state."""

    encoder: str = "encoder_outputs"
    prediction: str = "decoder_outputs"  # what a joint in a file of its own takes from the prediction network
    targets: str = "targets"
    target_length: str = "target_length"
    outputs: str = "outputs"
    lengths: str = "prednet_lengths"
    joint_outputs: str = "outputs"


@dataclass(frozen=True)
class Settings:
    """The file's keys. Paths are relative to the file."""

    kind: str
    sample_rate: int
    encoder: Path
    vocabulary: Path
    preprocessor: Path | None = None
    decoder: Path | None = None
    joint: Path | None = None
    decoder_joint: Path | None = None
    blank: int | None = None  # the last unit
    words: bool = False
    pulse: int | None = None  # frames of the encoder's input; one granule
    max_symbols: int = 10
    names: Names = field(default_factory=Names)
    preprocessor_options: Mapping[str, Any] = field(default_factory=dict)
    encoder_options: Mapping[str, Any] = field(default_factory=dict)


PATHS = ("encoder", "vocabulary", "preprocessor", "decoder", "joint", "decoder_joint")


def read_settings(path: str | os.PathLike[str]) -> Settings:
    """Settings from a TOML file, or InvalidModel that says what is wrong with it."""
    path = Path(path)
    if not path.is_file():
        raise InvalidModel(f"no such file: {path.name!r}; a recogniser is described by a TOML file (docs/asr.md)")
    try:
        given = tomllib.loads(path.read_text("utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InvalidModel(f"{path.name!r} is not a readable TOML file ({error})") from error
    return _Checker(path).settings(given)


class _Checker:
    def __init__(self, path: Path) -> None:
        self.path = path

    def wrong(self, text: str) -> InvalidModel:
        return InvalidModel(f"{self.path.name}: {text}")

    def settings(self, given: dict[str, Any]) -> Settings:
        known = [f.name for f in dataclasses.fields(Settings)]
        self._known(given, known, "key")
        for key in ("kind", "sample_rate", "encoder", "vocabulary"):
            if key not in given:
                raise self.wrong(f"the key {key!r} is missing")
        values = {key: self._value(key, value) for key, value in given.items()}
        for key, least in (("sample_rate", 1), ("pulse", 1), ("max_symbols", 1), ("blank", 0)):
            if key in values and values[key] < least:
                raise self.wrong(f"{key} = {values[key]}: expected {least} or more")
        if values["kind"] not in KINDS:
            raise self.wrong(f'kind = "{values["kind"]}": expected "ctc" or "rnnt"')
        self._parts(values)
        if "pulse" in values and "pulse" in values.get("encoder_options", {}):
            raise self.wrong("pulse is given twice, once in [encoder_options]")
        return Settings(**values)

    def _known(self, given: Mapping[str, Any], known: list[str], what: str) -> None:
        for key in given:
            if key not in known:
                raise self.wrong(f"unknown {what} {key!r}; they are {', '.join(known)}")

    def _value(self, key: str, value: Any) -> Any:
        kind: Any
        kind, said = TYPES.get(key, (str, "a path"))
        if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
            raise self.wrong(f"{key} = {value!r}: expected {said}")
        if key in PATHS:
            found = self.path.parent / value
            if not found.is_file():
                raise self.wrong(f"{key} = {value!r}: no such file (paths are relative to this TOML file)")
            return found
        if key == "names":
            self._known(value, [f.name for f in dataclasses.fields(Names)], "name")
            if bad := [k for k, v in value.items() if not isinstance(v, str)]:
                raise self.wrong(f"names.{bad[0]}: expected text")
            return Names(**value)
        if kind is dict:
            self._known(value, list(STREAM_OPTIONS), f"key in [{key}]")
        return value

    def _parts(self, values: Mapping[str, Any]) -> None:
        """Which decoder files belong to which kind."""
        given = {k for k in ("decoder", "joint", "decoder_joint") if k in values}
        if values["kind"] == "ctc" and given:
            raise self.wrong(f'{sorted(given)[0]!r} is for kind = "rnnt": a CTC model is decoded without one')
        if values["kind"] == "rnnt" and given not in ({"decoder", "joint"}, {"decoder_joint"}):
            raise self.wrong('kind = "rnnt" takes either decoder and joint, two files, or decoder_joint, both in one')
        if "preprocessor_options" in values and "preprocessor" not in values:
            raise self.wrong("[preprocessor_options] without a preprocessor")
