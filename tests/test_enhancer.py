"""The recipe of the built-in enhancer: the module, its ONNX graph, the file that comes with pulsify, the data."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from pulsify.demo.model import enhancer
from tests.models import run_batch

torch = pytest.importorskip("torch")

from examples.enhancer.evaluate import si_sdr  # noqa: E402
from examples.enhancer.export import onnx_model  # noqa: E402
from examples.enhancer.model import HOP, Enhancer  # noqa: E402
from examples.enhancer.noises import HELD_KINDS, KINDS, babble  # noqa: E402
from examples.enhancer.speech import TEST, TRAIN, plan  # noqa: E402


def test_the_graph_computes_what_the_module_does() -> None:
    model = Enhancer(seed=1).eval()
    x = np.random.default_rng(0).normal(0, 0.1, (2, 1, 10 * HOP + 7)).astype(np.float32)
    with torch.no_grad():
        want = model(torch.from_numpy(x)).numpy()
    got = run_batch(onnx_model(model), x)["clean"]
    assert got.shape == want.shape == (2, 1, 10 * HOP)
    np.testing.assert_allclose(got, want, atol=1e-5)


def test_the_file_that_comes_with_pulsify_is_an_export_of_it() -> None:
    def structure(proto: onnx.ModelProto) -> tuple[list[onnx.NodeProto], dict[str, list[int]]]:
        return list(proto.graph.node), {w.name: list(w.dims) for w in proto.graph.initializer}

    assert structure(enhancer()) == structure(onnx_model(Enhancer()))


def test_analysis_and_synthesis_give_the_sound_back() -> None:
    model, x = Enhancer(), torch.randn(2, 1, 7 * HOP)
    torch.testing.assert_close(model.sound(model.spectrum(x)), x, atol=1e-5, rtol=0)


@pytest.mark.parametrize("kind", [*KINDS, *HELD_KINDS])
def test_a_noise_has_a_mean_square_of_one_and_follows_from_its_seed(kind: str) -> None:
    noise = {**KINDS, **HELD_KINDS}[kind]
    one, again, other = (noise(np.random.default_rng(seed), 16000) for seed in (0, 0, 1))
    assert one.shape == (16000,) and (kind == "shaped" or np.mean(one**2) == pytest.approx(1))
    assert np.array_equal(one, again) and not np.array_equal(one, other)


def test_babble_is_a_mix_of_speech() -> None:
    rng = np.random.default_rng(0)
    mix = babble(rng, 800, rng.integers(-3000, 3000, 4000).astype(np.int16))
    assert mix.shape == (800,) and np.mean(mix**2) == pytest.approx(1)


def test_sentences_follow_from_the_seed_and_tests_share_no_form_with_training() -> None:
    one, again = (plan(50, 3, TRAIN, ["en-us+m1"]) for _ in range(2))
    assert one == again and len({u.text for u in one}) > 40
    assert all("{" not in u.text and "_" not in u.text for u in one)
    assert not set(TRAIN["forms"]) & set(TEST["forms"])
    for kind in ("n", "a", "v", "b", "w"):
        assert not set(str(TRAIN[kind]).split()) & set(str(TEST[kind]).split()), kind


def test_si_sdr_is_blind_to_scale() -> None:
    rng = np.random.default_rng(0)
    clean, noise = rng.normal(size=(2, 100_000))
    assert si_sdr(clean + noise * 10 ** (-5 / 20), clean) == pytest.approx(5, abs=0.1)
    assert si_sdr(3 * (clean + noise * 0.1), clean) == pytest.approx(si_sdr(clean + noise * 0.1, clean))
