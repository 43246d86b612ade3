"""`pulsify report`, from the command line into a browser: read wide and narrow, light and dark, by keyboard."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import onnx
import pytest
from click.testing import CliRunner

from pulsify.cli.main import main
from tests.browser import chromium
from tests.models import look_ahead

ZOO = Path(__file__).parent / "zoo" / "fixtures" / "legacy"
NARROW, WIDE = 380, 1280


def command(*arguments: str) -> Any:
    return CliRunner().invoke(main, ["report", *arguments], catch_exceptions=False)


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("pages")
    made = {}
    for name in ("unet", "attn_full_causal"):
        made[name] = folder / f"{name}.html"
        command(str(ZOO / f"{name}.onnx"), "-o", str(made[name]), "--seconds", "0.02", "--sample-rate", "100")
    return made


def test_it_writes_a_page_and_says_what_it_does(tmp_path: Path) -> None:
    onnx.save(look_ahead(), tmp_path / "m.onnx")
    done = command(str(tmp_path / "m.onnx"), "-o", str(tmp_path / "r.html"), "--seconds", "0.02")
    assert done.exit_code == 0 and "written to" in done.stdout
    assert done.stderr == "", "progress is for who watches"
    assert (tmp_path / "r.html").read_text("utf-8").startswith("<!doctype html>")


def test_json_is_what_the_page_is_drawn_from(tmp_path: Path) -> None:
    onnx.save(look_ahead(), tmp_path / "m.onnx")
    done = command(str(tmp_path / "m.onnx"), "--json", "-o", str(tmp_path / "r.html"), "--seconds", "0.02")
    facts = json.loads(done.stdout)
    held = re.search(r'id="facts">(.*?)</script>', (tmp_path / "r.html").read_text("utf-8"), re.S)
    assert held is not None and facts.pop("saved") == str(tmp_path / "r.html")
    assert json.loads(held[1].replace("<\\/", "</")) == facts


def test_a_refused_model_has_a_page_and_an_exit_code(tmp_path: Path) -> None:
    done = command(str(ZOO / "flip.onnx"), "-o", str(tmp_path / "r.html"))
    assert done.exit_code == 3 and "not streamable" in done.stderr and "Ways out" in (tmp_path / "r.html").read_text()


def test_a_stream_is_no_model_to_report_on(tmp_path: Path) -> None:
    import pulsify

    pulsify.stream(look_ahead(), 4, verify=False).save(tmp_path / "s.onnx")
    assert command(str(tmp_path / "s.onnx")).exit_code == 2


def test_inspect_tells_the_same_chain_of_delays() -> None:
    path = str(ZOO / "conv_same.onnx")
    done = CliRunner().invoke(main, ["inspect", path, "--delay"], catch_exceptions=False)
    assert all(node in done.stdout for node in ("/0/Conv", "/2/Conv", "/4/Conv")) and "reads ahead" in done.stdout
    told = json.loads(CliRunner().invoke(main, ["inspect", path, "--delay", "--json"]).stdout)
    assert [w["added"] for w in told["delays"][0]["waits"]] == [2, 2, 1] and told["delays"][0]["delay"] == 5
    both = CliRunner().invoke(main, ["inspect", path, "--delay", "--stage", "windows"])
    assert both.exit_code == 2


# ---- in a browser


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as opened:
        yield opened


def opened(browser: Any, path: Path, width: int = WIDE, scheme: str = "light") -> tuple[Any, list[str]]:
    """The page in a window, and what went wrong or was asked for from outside."""
    page, wrong = browser.new_page(viewport={"width": width, "height": 800}, color_scheme=scheme), list[str]()
    page.on("console", lambda m: wrong.append(m.text) if m.type == "error" else None)
    page.on("pageerror", lambda e: wrong.append(str(e)))
    page.on("request", lambda r: wrong.append(r.url) if not r.url.startswith("file:") else None)
    page.goto(path.as_uri())
    return page, wrong


@pytest.mark.parametrize("name", ["unet", "attn_full_causal"])
@pytest.mark.parametrize("width", [WIDE, NARROW])
def test_nothing_fails_and_nothing_is_wider_than_the_window(
    browser: Any, pages: dict[str, Path], name: str, width: int
) -> None:
    page, wrong = opened(browser, pages[name], width)
    assert wrong == []
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    small = page.evaluate(
        "[...document.querySelectorAll('p, td, li, .who')].filter(e => e.innerText.trim())"
        ".map(e => parseFloat(getComputedStyle(e).fontSize)).reduce((a, b) => Math.min(a, b))"
    )
    assert small >= 12, "all text can be read"


def test_light_and_dark_follow_the_reader(browser: Any, pages: dict[str, Path]) -> None:
    light, dark = (
        opened(browser, pages["unet"], scheme=s)[0].evaluate("getComputedStyle(document.body).backgroundColor")
        for s in ("light", "dark")
    )
    brightness = [sum(map(int, re.findall(r"\d+", c)[:3])) for c in (light, dark)]
    assert brightness[0] > 600 > 150 > brightness[1]


def test_another_output_frame_moves_what_is_read(browser: Any, pages: dict[str, Path]) -> None:
    page, _ = opened(browser, pages["unet"])
    facts = json.loads(page.inner_text("#facts") or page.evaluate("document.getElementById('facts').textContent"))
    told = facts["plan"]["reading"][0]
    low, high = told["range"]

    def drawn(frame: int) -> None:
        for n, lane in enumerate(page.query_selector_all(".lane")):
            x, width = (
                float(lane.query_selector(".reads").get_attribute(a)) / 1000 * (high - low) for a in ("x", "width")
            )
            first, last, _ = told["frames"][frame]["read"][n]
            assert x + low == pytest.approx(first, abs=0.01) and x + width + low == pytest.approx(last, abs=0.01)

    drawn(0)
    page.focus(".lane >> nth=2")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    drawn(2)
    assert page.inner_text(".controls output") == str(told["frames"][2]["frame"])
    page.keyboard.press("ArrowDown")
    assert page.evaluate("[...document.querySelectorAll('.lane')].indexOf(document.activeElement)") == 3
    assert told["layers"][3]["node"] in page.inner_text(".told")
    page.hover(".lane >> nth=1")
    assert told["layers"][1]["node"] in page.inner_text(".told")
    assert "needs what it gives at the time of input frame" in page.inner_text(".told")
    page.hover(".lane >> nth=-1")
    assert "is at the time of input frame" in page.inner_text(".told"), "of the output itself nothing is needed"
    page.fill(".time input", str(len(told["frames"]) - 1))
    drawn(len(told["frames"]) - 1)


def test_it_prints(browser: Any, pages: dict[str, Path], tmp_path: Path) -> None:
    page, _ = opened(browser, pages["unet"])
    page.pdf(path=str(tmp_path / "r.pdf"))
    assert (tmp_path / "r.pdf").stat().st_size > 10_000
    page.emulate_media(media="print")
    assert not page.is_visible(".controls input") and page.is_visible(".lane")
