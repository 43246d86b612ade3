"""The page in a real browser: what it shows and gives is what the models say."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest

import pulsify
from pulsify.demo.model import enhancer
from pulsify.serve import page
from pulsify.serve.service import Service, Settings
from pulsify.serve.sound import resampler
from pulsify.serve.sources import ModelSource, Served, built_in, of_stream
from pulsify.serve.store import Memory
from pulsify.serve.tokens import tokens
from tests.models import look_ahead, model, node, weights
from tests.serve.browser import Proxy, Tab, chromium, read_wav, write_wav
from tests.serve.live import Array, serving

SOUND, NOISY = page.SOUNDS[0] / "lights.wav", page.SOUNDS[1] / "noisy.wav"
SAID = "light on play music louder"
CLASSIFIER = model(  # probabilities by frame, and something about all of it
    [
        node("Conv", "x w", "h", pads=[1, 1]),
        node("Sigmoid", "h", "speech"),
        node("ReduceMean", "h", "whole", axes=[2], keepdims=0),
    ],
    {"x": ["B", 2, "T"]},
    ["speech", "whole"],
    {"w": weights(3, 2, 3)},
)
pytestmark = pytest.mark.browser


SMALL = model(
    [node("Conv", "x w", "h", pads=[20, 12]), node("Tanh", "h", "y")],
    {"x": ["B", 1, "T"]},
    ["y"],
    {"w": weights(1, 1, 33)},
)


@pytest.fixture(scope="module")
def served() -> list[Any]:
    """What comes with pulsify, and two that have no sound."""
    more = [
        of_stream("curves", pulsify.stream(CLASSIFIER, 4, verify=False), 100),
        of_stream("plain", pulsify.stream(look_ahead("B"), 4, verify=False), None),
    ]
    return [*built_in(), *more]


@pytest.fixture(scope="module")
def server(served: list[Any]) -> Iterator[tuple[Service, str]]:
    with serving(served) as found:
        yield found


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium(str(SOUND)) as found:
        yield found


def small() -> Served:
    return of_stream("small", pulsify.stream(SMALL, 160, verify=False), 16000)


def batch(proto: Any, x: Array) -> Array:
    session = ort.InferenceSession(proto.SerializeToString())
    (y,) = session.run(None, {session.get_inputs()[0].name: x})
    return np.asarray(y)


def cleaned(samples: Array) -> Array:
    """By the batch model, all of it."""
    return batch(enhancer(), samples[None, None])[0, 0]


def alike(got: Array, want: Array) -> None:
    assert got.shape == want.shape
    np.testing.assert_allclose(got, want, atol=1e-5, rtol=1e-5)


def lights() -> Array:
    return read_wav(SOUND.read_bytes())[0]


def noisy() -> Array:
    """The sample that models of sound begin with."""
    return read_wav(NOISY.read_bytes())[0]


def test_sound_goes_through_a_small_model_and_comes_out_as_batch_makes_it(browser: Any) -> None:
    with serving([small()]) as (_, where):
        tab = Tab(browser, where).choose("small", speed="fast")
        tab.press()
        assert tab.ended() == "done"
        samples, rate = tab.tape("out")
        assert rate == 16000
        alike(samples, batch(SMALL, noisy()[None, None])[0, 0])
        assert tab.wrong == []
        assert all(url.startswith((f"http://{where}/", f"blob:http://{where}/")) for url in tab.asked)


@pytest.mark.slow
def test_the_built_in_words_are_shown_and_the_clean_sound_is_the_batch_models(
    server: tuple[Service, str], browser: Any
) -> None:
    tab = Tab(browser, server[1]).choose("recogniser", speed="fast")
    tab.press()
    assert tab.ended() == "done"
    assert tab.text("#transcript") == SAID
    alike(tab.tape("in")[0], lights())
    tab.choose("enhancer")
    tab.press()
    assert tab.ended() == "done"
    samples, rate = tab.tape("out")
    assert rate == 16000
    alike(samples, cleaned(noisy()))
    assert tab.wrong == []


@pytest.mark.slow
def test_the_microphone_is_heard_from_its_first_moment(server: tuple[Service, str], browser: Any) -> None:
    """It begins before the stream is ready: nothing of it may be lost, at whatever rate it comes."""
    tab = Tab(browser, server[1]).choose("recogniser", "Microphone")
    tab.press()
    tab.waits("#transcript", SAID)
    tab.press()
    assert tab.ended() == "done"
    assert tab.text("#transcript") == SAID
    assert tab.text("#seen-label") == "End of word to text"
    assert re.fullmatch(r"[\d.]+ m?s", tab.text("#f-seen"))
    assert tab.wrong == []


@pytest.mark.slow
def test_the_microphone_cleaned_is_what_batch_makes_of_it(server: tuple[Service, str], browser: Any) -> None:
    tab = Tab(browser, server[1]).choose("enhancer", "Microphone")
    tab.press()
    tab.waits("#f-counts", re.compile(r"[4-9]\.\d s, .*"))
    tab.press()
    assert tab.ended() == "done"
    (heard, rate), (made, to) = tab.tape("in"), tab.tape("out")
    assert np.abs(heard).max() > 0.1 and to == 16000
    alike(made, cleaned(heard if rate == to else batch(resampler(rate, to), heard[None])[0]))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["recogniser", "enhancer"])
def test_a_stream_survives_cut_connections(served: list[Any], browser: Any, name: str) -> None:
    """Cut before the first snapshot, after it, and while nobody answers for a while."""
    with serving(served, Settings(snapshot_seconds=0.4)) as (_, where):
        proxy = Proxy(where)
        tab = Tab(browser, proxy.where).choose(name, listen="in" if name == "recogniser" else "out")
        tab.press()
        for turn, moment in enumerate((0.2, 1.2, 2.4)):
            tab.waits("#f-counts", re.compile(rf"({moment}|{moment + 0.1:.1f}|[1-9]\.[{int(moment * 10) % 10}-9]) s.*"))
            proxy.shut.set()
            assert proxy.cut()
            tab.waits("#status", "Connection lost, reconnecting…")
            time.sleep(0.3 * turn)
            proxy.shut.clear()
            tab.waits("#f-lost", str(turn + 1))
        assert tab.ended() == "done"
        assert all("WebSocket" in each or "net::ERR" in each for each in tab.wrong)  # what was cut, and nothing else
        if name == "recogniser":
            assert tab.text("#transcript") == SAID
        else:
            alike(tab.tape("out")[0], cleaned(noisy()))
        proxy.close()


@pytest.mark.slow
def test_a_stream_goes_on_at_another_server(served: list[Any], browser: Any) -> None:
    store, settings = Memory(60), Settings(snapshot_seconds=0.3, key=b"theirs")
    with serving(served, settings, store) as (first, here), serving(served, settings, store) as (second, there):
        proxy = Proxy(here)
        tab = Tab(browser, proxy.where).choose("enhancer")
        tab.press()
        tab.waits("#f-counts", re.compile(r"1\.\d s.*"))
        proxy.goes_to(there)
        assert proxy.cut()
        assert tab.ended() == "done"
        alike(tab.tape("out")[0], cleaned(noisy()))
        assert second.figures.ended["enhancer", "done"] == 1 and not first.figures.ended["enhancer", "done"]
        proxy.close()


@pytest.mark.slow
def test_curves_and_results_about_the_whole_are_shown(server: tuple[Service, str], browser: Any) -> None:
    """A model of no sound gets waves that the page makes up."""
    tab = Tab(browser, server[1]).choose("curves")
    assert not tab.page.locator("#sources").is_visible()
    tab.press()
    tab.waits("#f-counts", re.compile(r"[2-9]\.\d s.*"))
    tab.press()
    assert tab.ended() == "done"
    speech, whole = (tab.page.locator(".row", has_text=name).locator(".values") for name in ("speech", "whole"))
    values = [float(v) for v in speech.inner_text().split()]
    assert len(values) == 3 and all(0 < v < 1 for v in values)
    assert len([float(v) for v in whole.inner_text().split()]) == 3
    assert tab.wrong == []


@pytest.mark.slow
def test_a_model_of_which_nobody_said_the_rate_is_shown_too(server: tuple[Service, str], browser: Any) -> None:
    """At 25 pulses a second, sent whole: a pulse of 4 frames and a delay of 3 are 70 ms; what is seen is no less."""
    tab = Tab(browser, server[1]).choose("plain")
    assert "25 pulses per second" in tab.text("#controls")
    tab.press()
    tab.waits("#f-counts", re.compile(r"[1-9]\.\d s.*"))
    tab.press()
    assert tab.ended() == "done" and tab.wrong == []
    assert tab.text("#f-model") == "70 ms"
    value, unit = tab.text("#f-seen").split()
    assert unit == "s" or float(value) >= 69


@pytest.mark.slow
def test_files_of_many_kinds_are_heard(server: tuple[Service, str], browser: Any, tmp_path: Path) -> None:
    tab = Tab(browser, server[1]).choose("recogniser", "File", speed="fast")
    tab.press()
    assert tab.ended() == "failed: Choose a file first."
    stereo = tmp_path / "stereo.wav"
    write_wav(stereo, np.repeat(lights(), 2), 32000, channels=2)  # another rate, by holding
    for each, want in ((SOUND, SAID), (stereo, SAID)):
        tab.page.locator("#file").set_input_files(each)
        tab.press()
        assert tab.ended() == "done"
        assert tab.text("#transcript") == want
    (tmp_path / "no.mp3").write_bytes(b"no sound")
    tab.page.locator("#file").set_input_files(tmp_path / "no.mp3")
    tab.press()
    assert tab.ended() == "failed: This browser cannot decode any audio in this file."


@pytest.mark.slow
def test_stop_ends_a_stream_early_and_the_rest_comes_out(
    server: tuple[Service, str], browser: Any, tmp_path: Path
) -> None:
    long = np.tile(lights(), 20)
    write_wav(tmp_path / "long.wav", long, 16000)
    tab = Tab(browser, server[1]).choose("enhancer", "File")
    tab.page.locator("#file").set_input_files(tmp_path / "long.wav")
    tab.press()
    tab.waits("#f-counts", re.compile(r"[1-9]\.\d s.*"))
    tab.press()
    assert tab.ended() == "done"
    heard = tab.tape("in")[0]
    assert 16000 <= len(heard) < len(long)
    alike(heard, long[: len(heard)])
    alike(tab.tape("out")[0], cleaned(heard))


@pytest.mark.slow
def test_a_token_is_asked_for_and_kept_from_view(served: list[Any], browser: Any) -> None:
    with serving(served, Settings(tokens=tokens(["ünsaid"]))) as (_, where):
        tab = Tab(browser, where)
        tab.waits("#status", "This server requires an access token")
        assert tab.text("#token-wrong") == ""
        tab.page.get_by_label("Access token").fill("wrong")
        tab.page.keyboard.press("Enter")
        tab.waits("#token-wrong", "The server rejected this token.")
        tab.page.get_by_label("Access token").fill("ünsaid")
        tab.page.keyboard.press("Enter")
        tab.choose("recogniser", speed="fast").press()
        assert tab.ended() == "done" and tab.text("#transcript") == SAID
        other = Tab(browser, where, "/#token=%C3%BCnsaid").is_ready()
        assert other.page.url == f"http://{where}/"


@pytest.mark.slow
@pytest.mark.parametrize("width", [320, 768, 1280])
def test_the_form_for_the_token_stands_alone_and_nothing_overlaps(browser: Any, width: int) -> None:
    with serving([small()], Settings(tokens=tokens(["unsaid"]))) as (_, where):
        tab = Tab(browser, where, viewport={"width": width, "height": 740})
        tab.waits("#status", "This server requires an access token")
        boxes = [tab.page.locator(f"#access {each}").bounding_box() for each in ("input", "button")]
        (left, right) = [(b["x"], b["y"], b["x"] + b["width"], b["y"] + b["height"]) for b in boxes if b]
        assert left[2] <= right[0] or left[3] <= right[1]
        assert not tab.page.locator("#controls").is_visible() and not tab.page.locator("#results").is_visible()
        assert tab.page.evaluate("document.documentElement.scrollWidth") <= width
        tab.page.get_by_label("Access token").fill("unsaid")
        tab.page.get_by_role("button", name="Connect").click()
        assert tab.is_ready().page.locator("#results").is_visible()


def test_models_that_are_not_open_yet_are_waited_for(browser: Any) -> None:
    """One that is opened later joins the menu, and leaves a run alone that is shown."""
    first, second = threading.Event(), threading.Event()

    def opens(may: threading.Event, name: str) -> Served:
        assert may.wait(60)
        return replace(small(), name=name)

    sources = [ModelSource(n, partial(opens, may, n)) for n, may in (("one", first), ("two", second))]
    with serving(sources) as (_, where):
        try:
            tab = Tab(browser, where)
            tab.waits("#status", "Opening one, two…")
            assert not tab.page.locator("#controls").is_visible()
            first.set()
            tab.choose("one", speed="fast").press()
            assert tab.ended() == "done"
            second.set()
            tab.waits("#model", "one (sound)two (sound)")
            assert tab.ended() == "done" and len(tab.tape("out")[0]) == len(noisy())
            tab.choose("two").press()
            assert tab.ended() == "done" and tab.wrong == []
        finally:
            first.set()
            second.set()


@pytest.mark.slow
def test_the_words_of_a_small_vocabulary_are_listed(server: tuple[Service, str], browser: Any) -> None:
    tab = Tab(browser, server[1]).choose("recogniser")
    words = (page.SOUNDS[0] / "vocabulary.txt").read_text().split()
    assert tab.text("#vocabulary") == f"This recogniser knows only these 30 words: {', '.join(words)}."
    tab.choose("enhancer")
    assert not tab.page.locator("#vocabulary").is_visible()


@pytest.mark.slow
def test_a_full_server_says_so(served: list[Any], browser: Any) -> None:
    with serving(served) as (service, where):
        service.draining = True
        tab = Tab(browser, where).choose("enhancer")
        tab.press()
        assert tab.ended() == "failed: The server accepts no streams at the moment; try again later."


@pytest.mark.slow
def test_it_is_used_by_keyboard_alone_and_everything_has_a_name(server: tuple[Service, str], browser: Any) -> None:
    tab = Tab(browser, server[1]).is_ready()
    seen = []
    for _ in range(12):
        tab.page.keyboard.press("Tab")
        seen.append(tab.page.evaluate("document.activeElement.id || document.activeElement.value"))
        if seen[-1] == "speed":
            tab.page.keyboard.press("ArrowDown")  # as fast as it goes
        if seen[-1] == "go":
            break
    assert [s for s in seen if s] == ["model", "built-in", "built-in", "speed", "listen", "go"]
    assert tab.page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"
    tab.page.keyboard.press("Enter")
    assert tab.ended() == "done"
    tree = tab.page.locator("body").aria_snapshot()
    for role, name in (
        ("combobox", "Model"),
        ("radio", "Sample"),
        ("radio", "Microphone"),
        ("button", "Start"),
        ("img", "Input: spectrogram over time"),
        ("checkbox", "preview words that are not final, in grey"),
        ("status", ""),
    ):
        assert f'{role} "{name}"' in tree if name else role in tree
    assert tab.page.locator("[aria-live=polite]").inner_text() == SAID


@pytest.mark.slow
@pytest.mark.parametrize("width", [320, 390, 768])
@pytest.mark.parametrize("colours", ["light", "dark"])
def test_it_fits_a_phone_and_can_be_read(server: tuple[Service, str], browser: Any, width: int, colours: str) -> None:
    tab = Tab(browser, server[1], viewport={"width": width, "height": 740}, color_scheme=colours).is_ready()
    for name in ("recogniser", "enhancer", "curves"):
        tab.choose(name)
        assert tab.page.evaluate("document.documentElement.scrollWidth") <= width
    names = ("text", "muted", "in", "out", "bad", "accent")
    ask = "n => getComputedStyle(document.documentElement).getPropertyValue('--' + n).trim()"
    shown = {n: luminance(tab.page.evaluate(ask, n)) for n in (*names, "surface", "accent-text")}
    for one, other in [(n, "surface") for n in names] + [("accent-text", "accent")]:
        high, low = sorted((shown[one], shown[other]), reverse=True)
        assert (high + 0.05) / (low + 0.05) >= 4.5, (one, other)


@pytest.mark.slow
def test_the_client_in_the_docs_works_as_it_stands(server: tuple[Service, str], browser: Any) -> None:
    text = (Path(__file__).parents[2] / "docs" / "serve.md").read_text("utf-8")
    (code,) = re.findall(r"```js\n(.*?)```", text, re.S)
    opened = browser.new_context().new_page()
    opened.goto(f"http://{server[1]}/health")  # of this server, and without the page's policy
    opened.add_script_tag(content=code.replace("127.0.0.1:8000", server[1]))
    opened.wait_for_function("document.body.innerText.includes('music louder')", timeout=30_000)
    assert opened.locator("body").inner_text().strip().endswith("play music louder")


def luminance(colour: str) -> float:
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return float(np.dot(linear, (0.2126, 0.7152, 0.0722)))


@pytest.mark.slow
def test_frames_are_cut_between_frames_whatever_their_layout(server: tuple[Service, str], browser: Any) -> None:
    """What is sent again begins where the server is, also in the middle of a chunk."""
    tab = Tab(browser, server[1]).is_ready()
    got = tab.page.evaluate(
        """async () => {
          const {without} = await import("/client.js");
          const data = new Uint8Array(Float32Array.from({length: 24}, (_, i) => i).buffer);
          const chunk = (outer, inner) => ({frames: 24 / outer / inner, data});
          const bytes = (outer, inner) => without(chunk(outer, inner), {outer, inner, width: 4}, 2);
          const cut = (outer, inner) => Array.from(new Float32Array(bytes(outer, inner).buffer));
          return [cut(1, 1), cut(3, 1), cut(2, 3)];
        }"""
    )
    for (outer, inner), values in zip(((1, 1), (3, 1), (2, 3)), got, strict=True):
        want = np.arange(24.0).reshape(outer, -1, inner)[:, 2:].reshape(-1)
        assert values == want.tolist()
