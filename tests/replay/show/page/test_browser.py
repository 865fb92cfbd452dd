"""The HTML page in headless Chromium: no errors, no requests, everything drawn, zoom, sorting, hostile paths.

Needs the Debian packages chromium and chromium-driver and the Python package selenium; without one it is skipped,
unless DXT_REPLAY_REQUIRE_BROWSER=1.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from profiler_merge.analysis.overview import overview
from profiler_merge.merge import merge
from replay.fidelity.compare import compare
from replay.show.page.data import lag_course
from replay.show.page.html import report_page
from tests.capture_builder import build_capture, read
from tests.replay.show.page.pages import HOSTILE, SHOWN, page_of, training
from traces.samples import sample
from traces.store.reader import open_capture

REQUIRED = os.environ.get("DXT_REPLAY_REQUIRE_BROWSER") == "1"
"""As in CI: a browser that is missing is a failure."""

if not REQUIRED:
    pytest.importorskip("selenium.webdriver", reason="selenium is not installed")
BROWSER, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
pytestmark = pytest.mark.skipif(
    not REQUIRED and (BROWSER is None or DRIVER is None),
    reason="chromium or chromedriver is not installed: apt-get install chromium chromium-driver",
)

FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-component-update",
    "--disable-background-networking", "--disable-sync", "--disable-dev-shm-usage",
)  # fmt: skip
DRAWN = "return document.documentElement.dataset.complete"
LONGEST_S = 60
"""A page that is not drawn by then has failed; it takes about two."""

CUT_OFF = """
  const over = [...document.querySelectorAll('.chart')].filter((chart) =>
    Math.max(...[...chart.querySelectorAll('.main-svg')].map((svg) => svg.clientHeight)) > chart.clientHeight + 1);
  if (over.length) return over.map((chart) => `${chart.id} covers what follows`);
  return [...document.querySelectorAll('.chart .main-svg text')].filter((text) => {
    const box = text.getBoundingClientRect();
    const chart = text.closest('.chart').getBoundingClientRect();
    return box.width && (box.left < chart.left - 1 || box.right > chart.right + 1 || box.bottom > chart.bottom + 1);
  }).map((text) => `${text.closest('.chart').id}: ${text.textContent}`)"""
"""Charts that reach out of their places, and texts that reach out of their charts."""


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    from selenium import webdriver

    assert BROWSER, "chromium is required and not installed"
    assert DRIVER, "chromedriver is required and not installed"
    options = webdriver.ChromeOptions()
    options.binary_location = BROWSER
    for flag in (*FLAGS, f"--user-data-dir={tmp_path_factory.mktemp('browser')}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(DRIVER))
    yield driver
    driver.quit()


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Files of pages: of a bundled capture, of hostile paths, of many ranks, and of a source and its replay."""
    folder = tmp_path_factory.mktemp("pages")
    files = sample("cosmictagger")
    merge([files.log], list(files.profiles), folder / "cosmictagger.capture")
    reads = [read(0, length=64, rank=rank, lane=lane, start_ns=rank) for rank in range(90) for lane in range(6)]
    source, replay = training(folder, "source"), training(folder, "again", delay_ns=3_000, due=True)
    texts = {
        "cosmictagger": page_of(open_capture(folder / "cosmictagger.capture"))[1],
        "hostile": page_of(source)[1],
        "wide": page_of(build_capture(folder, ops=reads, files=["/data"], name="wide"))[1],
        "both": report_page(overview(source), overview(replay), compare(source, replay).as_json(), lag_course(replay)),
    }
    for name, text in texts.items():
        (folder / f"{name}.html").write_text(text, encoding="utf-8")
    return {name: folder / f"{name}.html" for name in texts}


def opened(browser: Any, page: Path, width: int = 1280) -> Any:
    """The browser with a page that has been drawn in a window of that width."""
    from selenium.webdriver.support.ui import WebDriverWait

    for kind in ("browser", "performance"):
        browser.get_log(kind)
    metrics = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    browser.get(page.as_uri())
    WebDriverWait(browser, LONGEST_S, poll_frequency=0.05).until(lambda driver: driver.execute_script(DRAWN))
    return browser


def requested(browser: Any) -> list[str]:
    """What the page asked for, but for what it carries itself."""
    events = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    urls = [event["params"]["request"]["url"] for event in events if event["method"] == "Network.requestWillBeSent"]
    return [url for url in urls if not url.startswith(("data:", "blob:", "chrome:"))]


def bars_drawn(browser: Any) -> int:
    return int(browser.execute_script("return document.querySelectorAll('#timeline-source .bars .point').length"))


def mode(browser: Any) -> str:
    return str(browser.execute_script("return views[0].mode"))


@pytest.mark.parametrize(
    ("name", "width"),
    [("cosmictagger", 1280), ("cosmictagger", 400), ("wide", 1280), ("hostile", 1280), ("both", 1280), ("both", 400)],
)
def test_it_opens_without_errors_or_requests(browser: Any, pages: dict[str, Path], name: str, width: int) -> None:
    opened(browser, pages[name], width)
    assert browser.get_log("browser") == []
    assert requested(browser) == [pages[name].as_uri()]
    empty = (
        "return [...document.querySelectorAll('.chart')].filter((e) => !e.querySelector('.main-svg')).map((e) => e.id)"
    )
    assert browser.execute_script(empty) == []
    assert browser.execute_script("return document.getElementById('trouble').hidden")
    wide = "return document.documentElement.scrollWidth - document.documentElement.clientWidth"
    assert browser.execute_script(wide) <= 0, "the page is wider than its window"
    assert browser.execute_script(CUT_OFF) == []


def test_charts_follow_the_window(browser: Any, pages: dict[str, Path]) -> None:
    from selenium.webdriver.support.ui import WebDriverWait

    opened(browser, pages["wide"])
    metrics = {"width": 800, "height": 3000, "deviceScaleFactor": 1, "mobile": False}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    widest = "return Math.max(...[...document.querySelectorAll('.main-svg')].map((svg) => svg.clientWidth))"
    WebDriverWait(browser, LONGEST_S, poll_frequency=0.05).until(lambda driver: driver.execute_script(widest) <= 800)
    assert browser.execute_script(CUT_OFF) == []


def test_zoom_reaches_single_operations(browser: Any, pages: dict[str, Path]) -> None:
    opened(browser, pages["cosmictagger"])
    assert mode(browser) == "bins"
    assert bars_drawn(browser) == 0
    browser.execute_script("document.querySelector('[data-window=\"slowest step\"]').click()")
    assert mode(browser) == "bars"
    assert bars_drawn(browser) > 0
    window = browser.execute_script("return views[0].data.windows.find((w) => w.name === 'slowest step')")
    assert browser.execute_script("return views[0].window") == [window["from_ns"], window["until_ns"]]
    shown = browser.execute_script("return document.getElementById('course-source').layout.xaxis.range")
    assert shown == pytest.approx([window["from_ns"] / 1e9, window["until_ns"] / 1e9])
    single = """
      const [from, until] = views[0].window;
      return views[0].tracks.filter((t) => t.operations && t.kind === 'read').flatMap((t) => {
        const inside = [...t.start.keys()].filter((i) => t.start[i] >= from && t.start[i] < until);
        return inside.map((i) => t.operations[i]);
      })"""
    counts = browser.execute_script(single)
    assert set(counts) == {1}
    browser.execute_script("document.querySelector('[data-zoom=all]').click()")
    assert mode(browser) == "bins"
    assert browser.get_log("browser") == []


def test_dragging_in_the_timeline_zooms(browser: Any, pages: dict[str, Path]) -> None:
    from selenium.webdriver.common.action_chains import ActionChains

    opened(browser, pages["cosmictagger"])
    before = browser.execute_script("return views[0].window")
    surface = browser.find_element("css selector", "#timeline-source .nsewdrag")
    browser.execute_script("arguments[0].scrollIntoView({block: 'center'})", surface)
    ActionChains(browser).move_to_element(surface).click_and_hold().move_by_offset(120, 0).release().perform()
    from selenium.webdriver.support.ui import WebDriverWait

    WebDriverWait(browser, LONGEST_S, poll_frequency=0.05).until(
        lambda driver: driver.execute_script("return views[0].window") != before
    )
    after = browser.execute_script("return views[0].window")
    assert before[0] < after[0] < after[1] < before[1]
    assert after[1] - after[0] < (before[1] - before[0]) / 4


def test_two_timelines_zoom_together(browser: Any, pages: dict[str, Path]) -> None:
    opened(browser, pages["both"])
    browser.execute_script("document.querySelector('[data-zoom=in]').click()")
    windows = browser.execute_script("return views.map((view) => view.window[1] - view.window[0])")
    whole = browser.execute_script("return views.map((view) => view.data.until_ns - view.data.from_ns)")
    assert [part / all_ for part, all_ in zip(windows, whole, strict=True)] == pytest.approx([0.25, 0.25])


def test_kinds_can_be_hidden(browser: Any, pages: dict[str, Path]) -> None:
    opened(browser, pages["hostile"])
    every = bars_drawn(browser)
    browser.execute_script("document.querySelector('[data-kind=read]').click()")
    assert every - bars_drawn(browser) == 20 * len(HOSTILE)


def test_recorded_paths_never_run(browser: Any, pages: dict[str, Path]) -> None:
    opened(browser, pages["hostile"])
    assert browser.execute_script("return window.hacked === undefined")
    cells = browser.execute_script("return [...document.querySelectorAll('#files td.text')].map((e) => e.textContent)")
    assert set(SHOWN) <= set(cells)
    script = """
      const tracks = views[0].tracks.filter((track) => track.file);
      return [...new Set(tracks.flatMap((track) => track.file.map((_, i) => views[0].label(track, i))))]"""
    labels = browser.execute_script(script)
    assert labels
    assert not [label for label in labels if "<img" in label or "<script" in label or "<svg" in label or "<a " in label]


def test_a_script_without_the_word_does_not_run(browser: Any, pages: dict[str, Path], tmp_path: Path) -> None:
    """Should an escape be forgotten one day, the page's policy still stops what a path holds."""
    page = tmp_path / "injected.html"
    text = pages["hostile"].read_text(encoding="utf-8")
    injected = "<script>window.hacked=1</script><img src=x onerror=window.hacked=1>"
    page.write_text(text.replace("<main>", f"<main>{injected}"), encoding="utf-8")
    opened(browser, page)
    assert browser.execute_script("return window.hacked === undefined")
    assert len(browser.get_log("browser")) >= 2, "the policy said nothing"


def test_tables_sort_from_the_keyboard(browser: Any, pages: dict[str, Path]) -> None:
    from selenium.webdriver.common.keys import Keys

    opened(browser, pages["cosmictagger"])
    head = browser.find_element("xpath", "//section[@id='files']//th[button[text()='reads']]")
    values = """
      const table = document.querySelector('#files table');
      const place = [...table.tHead.rows[0].cells].findIndex((cell) => cell.textContent === 'reads');
      return [...table.tBodies[0].rows].map((row) => Number(row.cells[place].dataset.v))"""
    found = []
    for key, order in ((Keys.ENTER, "descending"), (Keys.SPACE, "ascending")):
        head.find_element("css selector", "button").send_keys(key)
        assert head.get_attribute("aria-sort") == order
        found.append(browser.execute_script(values))
    assert found[0] == sorted(found[0], reverse=True)
    assert found[1] == sorted(found[1])
    assert len(set(found[0])) > 1


def test_no_button_sends_anything_away(browser: Any, pages: dict[str, Path]) -> None:
    opened(browser, pages["cosmictagger"])
    titles = browser.execute_script("return [...document.querySelectorAll('.modebar-btn')].map((e) => e.dataset.title)")
    assert set(titles) == {"Download plot as a PNG", "Zoom", "Pan", "Zoom in", "Zoom out", "Reset axes"}


def test_light_dark_and_paper(browser: Any, pages: dict[str, Path]) -> None:
    from selenium.webdriver.support.ui import WebDriverWait

    opened(browser, pages["cosmictagger"])
    ink = "return getComputedStyle(document.querySelector('#course-source .xtick text')).fill"
    light = browser.execute_script(ink)
    dark_scheme = {"features": [{"name": "prefers-color-scheme", "value": "dark"}]}
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", dark_scheme)
    WebDriverWait(browser, LONGEST_S, poll_frequency=0.05).until(lambda driver: driver.execute_script(ink) != light)
    printed = browser.execute_script("window.dispatchEvent(new Event('beforeprint'));" + ink)
    widths = browser.execute_script("return [...document.querySelectorAll('.main-svg')].map((e) => e.clientWidth)")
    assert max(widths) <= 700, "wider than paper"
    after = browser.execute_script("window.dispatchEvent(new Event('afterprint'));" + ink)
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})
    assert printed == light
    assert after != light
    assert browser.get_log("browser") == []
