"""The page in headless Chromium: no errors, no requests, everything drawn, zoom, sorting, hostile paths.

Needs the Debian packages chromium and chromium-driver and the Python package selenium; without one it is skipped,
unless DXT_REPLAY_REQUIRE_BROWSER=1.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dxt_replay.profiler_merge.analysis.overview import overview
from dxt_replay.profiler_merge.merge import merge
from dxt_replay.replay.compare.comparison import compare
from dxt_replay.replay.show.page.chart_data import lag_course
from dxt_replay.replay.show.page.page import report_page
from dxt_replay.traces.samples import sample
from dxt_replay.traces.store.reader import open_capture
from tests.capture_builder import build_capture, read
from tests.replay.show.page.chromium import BROWSER, DRAWN, DRIVER, LONGEST_S, REQUIRED, chromium, opened, requested
from tests.replay.show.page.pages import HOSTILE, SHOWN, page_of, training

if not REQUIRED:
    pytest.importorskip("selenium.webdriver", reason="selenium is not installed")
pytestmark = pytest.mark.skipif(
    not REQUIRED and (BROWSER is None or DRIVER is None),
    reason="chromium or chromedriver is not installed: apt-get install chromium chromium-driver",
)

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

RANGES = """
  const charts = [...document.querySelectorAll('.chart')];
  return Object.fromEntries(charts.map((chart) => [chart.id, chart.layout.xaxis.range]))"""
"""Ranges of the x axes of all charts, by their ids."""

FILLED = """
  const image = new Image();
  image.src = document.getElementById('timeline-source').layout.images[0].source;
  return image.decode().then(() => {
    const canvas = document.createElement('canvas');
    [canvas.width, canvas.height] = [image.width, image.height];
    const pen = canvas.getContext('2d');
    pen.drawImage(image, 0, 0);
    const { data } = pen.getImageData(0, 0, canvas.width, canvas.height);
    return data.filter((value, i) => i % 4 === 3 && value).length;
  })"""
"""Number of coloured pixels of the timeline."""


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with chromium(tmp_path_factory.mktemp("browser")) as driver:
        yield driver


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
        "both": report_page(overview(source), overview(replay), compare(source, replay), lag_course(replay)),
    }
    for name, text in texts.items():
        (folder / f"{name}.html").write_text(text, encoding="utf-8")
    return {name: folder / f"{name}.html" for name in texts}


def window(browser: Any) -> list[float]:
    found: list[float] = browser.execute_script("return view.window")
    return found


def becomes(browser: Any, script: str) -> None:
    """Wait until a script returns something that is true."""
    from selenium.webdriver.support.ui import WebDriverWait

    WebDriverWait(browser, LONGEST_S, poll_frequency=0.05).until(lambda driver: driver.execute_script(script))


@pytest.mark.parametrize("width", [1280, 400])
@pytest.mark.parametrize("name", ["cosmictagger", "wide", "hostile", "both"])
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
    titles = browser.execute_script("return [...document.querySelectorAll('.modebar-btn')].map((e) => e.dataset.title)")
    assert set(titles) == {"Download plot as a PNG"}, "others send something away"


def test_all_charts_of_time_zoom_together(browser: Any, pages: dict[str, Path]) -> None:
    from selenium.webdriver.common.action_chains import ActionChains

    opened(browser, pages["cosmictagger"])
    before = window(browser)
    surface = browser.find_element("css selector", "#timeline-source .nsewdrag")
    browser.execute_script("arguments[0].scrollIntoView({block: 'center'})", surface)
    ActionChains(browser).move_to_element(surface).click_and_hold().move_by_offset(120, 0).release().perform()
    becomes(browser, f"return view.window[0] > {before[0]}")
    assert before[0] < window(browser)[0] < window(browser)[1] < before[1]
    browser.execute_script("Plotly.relayout('heat-source', {'xaxis.range[0]': 8, 'xaxis.range[1]': 9})")
    ranges = browser.execute_script(RANGES)
    assert {tuple(ranges[f"{chart}-source"]) for chart in ("timeline", "offsets", "course", "heat")} == {(8, 9)}
    browser.execute_script("Plotly.relayout('course-source', {'xaxis.autorange': true})")
    assert window(browser) == browser.execute_script("return page.home")
    browser.execute_script("document.querySelector('[data-zoom=out]').click()")
    assert window(browser) == browser.execute_script("return page.whole"), "the start-up is out of sight at first"
    assert window(browser)[0] < before[0]
    row = "document.querySelector('#steps tr[data-from]')"
    browser.execute_script(f"{row}.click()")
    times = browser.execute_script(f"return [Number({row}.dataset.from), Number({row}.dataset.until)]")
    assert window(browser) == pytest.approx(times)
    assert browser.get_log("browser") == []


def test_kinds_can_be_hidden_and_a_place_explains_itself(browser: Any, pages: dict[str, Path]) -> None:
    opened(browser, pages["hostile"])
    every = browser.execute_script(FILLED)
    browser.execute_script("document.querySelector('[data-kind=read]').click()")
    assert 0 < browser.execute_script(FILLED) < every
    browser.execute_script("document.querySelector('[data-kind=read]').click()")
    words = "return wordsAt(page.timelines.source, 3, 100.02e6, 0.01e6)"
    assert browser.execute_script(words) == [
        "r0 lane 0", "read from 0.100000 s, for 50 us, 4.00 KiB", "at offset 0", SHOWN[0],
    ]  # fmt: skip
    many = "return wordsAt(page.timelines.source, 3, 105e6, 6e6)"
    assert browser.execute_script(many) == ["r0 lane 0", f"{len(HOSTILE)} of read, {4 * len(HOSTILE)}.0 KiB"]


def test_recorded_paths_never_run(browser: Any, pages: dict[str, Path], tmp_path: Path) -> None:
    """Should an escape be forgotten one day, the page's policy still stops what a path holds."""
    opened(browser, pages["hostile"])
    cells = browser.execute_script("return [...document.querySelectorAll('#files td.text')].map((e) => e.textContent)")
    assert set(SHOWN) <= set(cells)
    assert (
        browser.execute_script("return document.querySelectorAll('img, main a[href^=javascript], main script').length")
        == 0
    )
    assert browser.execute_script("return window.hacked === undefined")
    injected = "<main><script>window.hacked=1</script><img src=x onerror=window.hacked=1>"
    page = tmp_path / "injected.html"
    page.write_text(pages["hostile"].read_text(encoding="utf-8").replace("<main>", injected), encoding="utf-8")
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
    for key, order in ((Keys.ENTER, "descending"), (Keys.SPACE, "ascending")):
        head.find_element("css selector", "button").send_keys(key)
        assert head.get_attribute("aria-sort") == order
        found = browser.execute_script(values)
        assert found == sorted(found, reverse=order == "descending")
        assert len(set(found)) > 1


def test_a_link_leads_to_the_same_view(browser: Any, pages: dict[str, Path]) -> None:
    opened(browser, pages["both"])
    browser.execute_script("Plotly.relayout('course-source', {'xaxis.range[0]': 0.05, 'xaxis.range[1]': 0.1})")
    for name, text in (("ranks", "1"), ("files", "img")):
        browser.find_element("id", f"{name}-filter").send_keys(text)
    browser.execute_script("document.querySelector('[data-kind=step]').click()")
    seen = """
      return [view.window.map((time) => time.toFixed(0)), view.ranks, view.files, [...view.hide],
        [...document.querySelectorAll('#files tbody tr, #numbers tbody tr')].map((row) => row.hidden),
        document.getElementById('ranks-filter').value, document.querySelector('[data-kind=step]').checked,
        document.getElementById('heat-source').data[0].y,
        document.getElementById('timeline-source').layout.yaxis.ticktext]"""
    before, address = browser.execute_script(seen), browser.current_url
    assert before[1:4] == ["1", "img", ["step"]]
    assert (before[7], {label.split()[0] for label in before[8]}) == (["1"], {"r1"})
    browser.get("about:blank")
    browser.get(address)
    becomes(browser, DRAWN)
    assert browser.execute_script(seen) == before
    browser.execute_script("location.hash = ''")
    becomes(browser, "return isHome() && view.ranks === ''")


@pytest.mark.parametrize("fragment", ["t=9..1&ranks=x&hide=nothing", "t=a..b", "%E0%A4%A", "nowhere&t=1", "files"])
def test_a_damaged_link_shows_the_page(browser: Any, pages: dict[str, Path], fragment: str) -> None:
    browser.get("about:blank")
    browser.get(f"{pages['hostile'].as_uri()}#{fragment}")
    becomes(browser, DRAWN)
    assert browser.execute_script("return document.getElementById('trouble').hidden")


def test_a_choice_shows_another_file(browser: Any, pages: dict[str, Path]) -> None:
    opened(browser, pages["hostile"])
    assert browser.execute_script("return document.querySelector('[data-choose=offsets-source]').length") == len(
        HOSTILE
    )
    lines = """
      const [trace] = document.getElementById('offsets-source').data.filter((t) => t.name === 'read');
      return trace.y.filter((_, i) => i % 3 === 0)"""
    assert sorted(browser.execute_script(lines)) == sorted(4096 * step for step in range(10) for _ in (0, 1))
    written = "return document.getElementById('offsets-source').data.filter((t) => t.name === 'write').map((t) => t.y)"
    assert browser.execute_script(written) == [[0, 123_457, None]]
    browser.execute_script(
        "const choice = document.querySelector('[data-choose=offsets-source]');"
        "choice.value = 1; choice.dispatchEvent(new Event('change'))"
    )
    assert browser.execute_script(written) == []


def test_light_dark_and_paper(browser: Any, pages: dict[str, Path]) -> None:
    opened(browser, pages["cosmictagger"])
    ink = "return getComputedStyle(document.querySelector('#course-source .xtick text')).fill"
    light = browser.execute_script(ink)
    dark_scheme = {"features": [{"name": "prefers-color-scheme", "value": "dark"}]}
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", dark_scheme)
    becomes(browser, f"{ink} !== '{light}'")
    printed = browser.execute_script("window.dispatchEvent(new Event('beforeprint'));" + ink)
    widths = browser.execute_script("return [...document.querySelectorAll('.main-svg')].map((e) => e.clientWidth)")
    assert max(widths) <= 700, "wider than paper"
    after = browser.execute_script("window.dispatchEvent(new Event('afterprint'));" + ink)
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})
    assert printed == "rgb(0, 0, 0)"
    assert after not in (light, printed)
    assert browser.get_log("browser") == []
