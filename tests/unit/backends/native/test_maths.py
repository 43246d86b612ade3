"""Functions of float: as near as they say, exact at their limits, whatever the number is."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable
from functools import cache

import numpy as np
import pytest

from pulsify.backends.native import library
from pulsify.backends.native.render import HEAD, prelude
from pulsify.backends.seam import Array

pytestmark = pytest.mark.skipif(not library.available(), reason="no C compiler")
Truth = Callable[[Array], Array]


def _sigmoid(x: Array) -> Array:
    e = np.exp(-np.abs(x))
    return np.where(x < 0, e / (1 + e), 1 / (1 + e))


FUNCTIONS: dict[str, tuple[Truth, float, float, float]] = {  # the truth, from, to, units in the last place
    "exp": (np.exp, -87, 88, 1), "log": (np.log, 1e-38, 1e38, 1), "sin": (np.sin, -1e6, 1e6, 2),
    "cos": (np.cos, -1e6, 1e6, 2),
    "tanh": (np.tanh, -30, 30, 6), "sigmoid": (_sigmoid, -80, 80, 3), "erf": (np.vectorize(math.erf), -6, 6, 3),
    "softplus": (lambda x: np.logaddexp(0, x), -80, 80, 3),
}  # fmt: skip


@cache
def compiled() -> ctypes.CDLL:
    loops = [
        f"void all_{name}(const float *x, float *y, int n) {{ for (int i = 0; i < n; i++) y[i] = p_{name}(x[i]); }}"
        for name in FUNCTIONS
    ]
    return library.library("\n".join([HEAD, prelude(), *loops]))


def applied(name: str, x: Array) -> Array:
    y = np.zeros_like(x)
    pointer = ctypes.POINTER(ctypes.c_float)
    getattr(compiled(), f"all_{name}")(x.ctypes.data_as(pointer), y.ctypes.data_as(pointer), ctypes.c_int(x.size))
    return y


@pytest.mark.parametrize("name", FUNCTIONS)
def test_errors_are_what_they_are_said_to_be(name: str) -> None:
    truth, low, high, units = FUNCTIONS[name]
    rng = np.random.default_rng(1)
    wide = rng.uniform(low, high, 200_000)
    near = np.exp(rng.uniform(-12, np.log(min(high, 80)), 200_000)) * rng.choice([-1, 1] if low < 0 else [1], 200_000)
    x = np.concatenate([wide, near]).astype(np.float32)
    got, want = applied(name, x), truth(x.astype(np.float64))
    unit = np.maximum(np.spacing(np.abs(want).astype(np.float32)), np.float32(1e-45))
    assert (np.abs(got - want) / unit).max() <= units


def test_limits_and_what_is_no_number() -> None:
    x = np.array([-np.inf, -1e30, -200, 200, 1e30, np.inf, np.nan], np.float32)
    for name, wanted in {
        "exp": [0, 0, 0, np.inf, np.inf, np.inf], "tanh": [-1, -1, -1, 1, 1, 1], "sigmoid": [0, 0, 0, 1, 1, 1],
        "erf": [-1, -1, -1, 1, 1, 1], "softplus": [0, 0, 0, 200, 1e30, np.inf],
    }.items():  # fmt: skip
        got = applied(name, x)
        np.testing.assert_array_equal(got[:-1], np.array(wanted, np.float32))
        assert np.isnan(got[-1])
    edges = applied("log", np.array([0, -1, np.inf, np.nan], np.float32))
    np.testing.assert_array_equal(edges, np.array([-np.inf, np.nan, np.inf, np.nan], np.float32))
    assert np.isnan(applied("sin", np.array([np.inf, np.nan], np.float32))).all()


def test_never_outside_of_their_range() -> None:
    bits = np.random.default_rng(2).integers(0, 1 << 32, 400_000, dtype=np.uint32).view(np.float32)
    x = bits[~np.isnan(bits)]
    assert np.abs(applied("tanh", x)).max() <= 1 and np.abs(applied("erf", x)).max() <= 1
    s = applied("sigmoid", x)
    assert s.min() >= 0 and s.max() <= 1
