"""Exports to C are built and run: under sanitizers, with every warning, by other compilers, on other machines."""

from __future__ import annotations

import contextlib
import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

import pulsify
from pulsify.cli.main import main
from tests import models
from tests.models import frames, run_batch

STRICT = ["-std=c11", "-Wall", "-Wextra", "-Wconversion", "-Wshadow", "-Werror"]
SANITIZED = ["-O1", "-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-Wno-psabi"]
MACHINES = Path(__file__).parents[2] / "machines"
MODELS = {
    "look_ahead": models.look_ahead(1), "causal": models.causal(1), "with_length": models.with_length(1),
    "long": models.long_memory(), "phase": models.blocks(1, 4), "phase of whole numbers": models.whole_blocks(1),
}  # fmt: skip
OPENS = {"opens": models.mirrored_lstm(1)}
CORTEX = {"cortex-m4": ("fpv4-sp-d16", "mps2-an386"), "cortex-m7": ("fpv5-sp-d16", "mps2-an500")}


def tool(*names: str) -> None:
    for name in names:
        if shutil.which(name) is None:
            pytest.skip(f"{name} is not installed")


def exported(name: str, tmp_path: Path, **options: str) -> Path:
    folder = tmp_path / name
    stream = pulsify.stream({**MODELS, **OPENS}[name], pulse=2 if name in OPENS else 4, verify=False)
    assert (stream.opening is not None) is (name in OPENS)
    stream.export(folder, "c", name="net", **options)
    return folder


def sources(folder: Path, program: str = "test.c") -> list[str]:
    return [str(folder / f) for f in ("net.c", "net_weights.c", program) if (folder / f).exists()]


def ran(*command: str, cwd: Path | None = None) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, cwd=cwd, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize("name", [*MODELS, *OPENS])
@pytest.mark.parametrize("weights", ["source", "file"])
def test_vectors_pass_under_sanitizers_with_every_warning(name: str, weights: str, tmp_path: Path) -> None:
    tool("gcc")
    folder = exported(name, tmp_path, weights=weights)
    ran("gcc", *STRICT, *SANITIZED, "-DNET_PADDING=NAN", *sources(folder), "-o", str(folder / "t"), "-lm")
    assert ran(str(folder / "t"), str(folder)).endswith("ok\n")


@pytest.mark.parametrize("name", [*MODELS, *OPENS])
def test_a_second_compiler(name: str, tmp_path: Path) -> None:
    tool("clang")
    folder = exported(name, tmp_path)
    ran("clang", *STRICT, "-O2", *sources(folder), "-o", str(folder / "t"), "-lm")
    assert ran(str(folder / "t"), str(folder)).endswith("ok\n")


def test_cmake_builds_and_tests_it(tmp_path: Path) -> None:
    tool("cmake", "cc")
    folder = exported("look_ahead", tmp_path)
    ran("cmake", "-B", "build", cwd=folder)
    ran("cmake", "--build", "build", cwd=folder)
    assert "100% tests passed" in ran("ctest", "--test-dir", "build", cwd=folder)


def test_the_example_streams_a_file_to_the_last_frame(tmp_path: Path) -> None:
    """A model whose frames lie one after the other: what comes out is the batch model's."""
    tool("cc")
    nodes = [models.node("Transpose", "x", "a", perm=[0, 2, 1]), models.node("Conv", "a k", "b", pads=[2, 1])]
    nodes += [models.node("Tanh", "b", "c"), models.node("Transpose", "c", "y", perm=[0, 2, 1])]
    proto = models.model(nodes, {"x": [1, "T", 3]}, ["y"], {"k": models.weights(5, 3, 4)})
    folder = tmp_path / "net"
    pulsify.stream(proto, pulse=4, verify=False).export(folder, "c")
    x = np.ascontiguousarray(frames(1, 23, 3))
    x.tofile(tmp_path / "in.raw")
    ran("cc", "-std=c11", "-O2", *sources(folder, "example.c"), "-o", str(folder / "e"), "-lm")
    ran(str(folder / "e"), str(tmp_path / "in.raw"), str(tmp_path / "out.raw"))
    got = np.fromfile(tmp_path / "out.raw", np.float32).reshape(1, -1, 5)
    want = run_batch(proto, x)["y"]
    assert got.shape == want.shape
    np.testing.assert_allclose(got, want, atol=1e-5)


def test_aarch64(tmp_path: Path) -> None:
    tool("aarch64-linux-gnu-gcc", "qemu-aarch64")
    folder = exported("with_length", tmp_path)
    ran("aarch64-linux-gnu-gcc", *STRICT, "-O3", "-static", *sources(folder), "-o", str(folder / "t"), "-lm")
    assert ran("qemu-aarch64", str(folder / "t"), str(folder)).endswith("ok\n")


@pytest.mark.parametrize("wide", [[], ["-msimd128"]])
def test_wasm32(tmp_path: Path, wide: list[str]) -> None:
    pytest.importorskip("ziglang", reason="pip install ziglang")
    wasmtime = pytest.importorskip("wasmtime", reason="pip install wasmtime")
    folder = exported("with_length", tmp_path)
    zig = [sys.executable, "-m", "ziglang", "cc", "-target", "wasm32-wasi"]
    ran(*zig, *STRICT, "-O3", *wide, *sources(folder), "-o", str(folder / "t.wasm"))
    engine = wasmtime.Engine()
    store, linker, wasi = wasmtime.Store(engine), wasmtime.Linker(engine), wasmtime.WasiConfig()
    wasi.argv = ["t", "/d"]
    wasi.preopen_dir(str(folder), "/d")
    wasi.stdout_file = str(folder / "said")
    store.set_wasi(wasi)
    linker.define_wasi()
    run = linker.instantiate(store, wasmtime.Module.from_file(engine, str(folder / "t.wasm"))).exports(store)["_start"]
    with contextlib.suppress(wasmtime.ExitTrap):  # however it ends, it says what it found
        run(store)
    assert (folder / "said").read_text().endswith("ok\n")


@pytest.mark.parametrize("cpu", CORTEX)
def test_cortex_m_compiled_sized_and_run(cpu: str, tmp_path: Path) -> None:
    tool("arm-none-eabi-gcc", "qemu-system-arm")
    folder = exported("with_length", tmp_path)
    unit, machine = CORTEX[cpu]
    flags = [f"-mcpu={cpu}", "-mthumb", "-mfloat-abi=hard", f"-mfpu={unit}", "-O2", "-std=c11"]
    start = ["--specs=rdimon.specs", "-nostartfiles", "-T", str(MACHINES / "cortex_m.ld"), str(MACHINES / "cortex_m.c")]
    elf = str(folder / "t.elf")
    ran("arm-none-eabi-gcc", *flags, *start, f"-I{folder}", *sources(folder), "-o", elf, "-lm")
    ran("arm-none-eabi-gcc", *flags, *STRICT[1:], "-c", str(folder / "net.c"), "-o", str(folder / "net.o"))
    text, data, bss = map(int, ran("arm-none-eabi-size", str(folder / "net.o")).splitlines()[1].split()[:3])
    assert 0 < text < 20_000 and data == bss == 0  # no globals that are written
    options = ["-nographic", "-semihosting-config", "enable=on,target=native"]
    assert ran("qemu-system-arm", "-M", machine, *options, "-kernel", elf, cwd=folder).endswith("ok\n")


def test_the_command_line(tmp_path: Path) -> None:
    pulsify.stream(MODELS["look_ahead"], pulse=4, verify=False).save(tmp_path / "s.onnx")
    run = CliRunner().invoke
    said = run(
        main,
        ["export", str(tmp_path / "s.onnx"), "--to", "c", "-o", str(tmp_path / "net"), "--weights", "file", "--json"],
    )
    assert said.exit_code == 0, said.output
    assert "net_weights.bin" in json.loads(said.stdout)["files"]
    assert run(main, ["export", str(tmp_path / "s.onnx"), "--to", "c", "-o", str(tmp_path / "s.onnx")]).exit_code == 2
    assert run(main, ["export", str(tmp_path / "s.onnx"), "--to", "rust", "-o", str(tmp_path / "r")]).exit_code == 2
    assert (
        run(main, ["export", str(tmp_path / "s.onnx"), "--to", "onnx", "-o", str(tmp_path / "t.onnx")]).exit_code == 0
    )


def test_names_and_options_that_are_none(tmp_path: Path) -> None:
    stream = pulsify.stream(MODELS["look_ahead"], pulse=4, verify=False)
    for options in ({"name": "two words"}, {"name": "int"}, {"weights": "flash"}, {"colour": "red"}):
        with pytest.raises(pulsify.InvalidArgument):
            stream.export(tmp_path / "x", "c", **options)
    assert not (tmp_path / "x").exists()


def test_an_operator_that_is_not_there_writes_nothing(tmp_path: Path) -> None:
    product = models.node("Einsum", "x a b", "y", equation="bct,cd,de->bet")
    proto = models.model([product], {"x": [1, 3, "T"]}, ["y"], {"a": models.weights(3, 4), "b": models.weights(4, 5)})
    with pytest.raises(pulsify.NotSupported, match="Einsum node") as refused:
        pulsify.stream(proto, pulse=4, verify=False).export(tmp_path / "x", "c")
    assert (refused.value.op, refused.value.target) == ("Einsum", "C")
    assert not (tmp_path / "x").exists()


def test_the_function_and_the_method_are_the_same(tmp_path: Path) -> None:
    stream = pulsify.stream(MODELS["look_ahead"], pulse=4, verify=False)
    pulsify.export(stream, "c", tmp_path / "a", name="net")
    stream.export(tmp_path / "b", "c", name="net")
    assert {p.name: p.read_bytes() for p in (tmp_path / "a").iterdir()} == {
        p.name: p.read_bytes() for p in (tmp_path / "b").iterdir()
    }
    with pytest.raises(pulsify.InvalidArgument, match=r"made by pulsify\.stream"):
        pulsify.export(tmp_path, "c", tmp_path / "c")  # type: ignore[arg-type]


def test_sizes_are_said(tmp_path: Path) -> None:
    text = (exported("look_ahead", tmp_path) / "README.md").read_text()
    assert "| weights" in text and "net_state" in text
