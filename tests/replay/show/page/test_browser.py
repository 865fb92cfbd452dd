"""The HTML page in headless Chromium: no errors, no requests, everything drawn, zoom, sorting, hostile paths.

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
from dxt_replay.replay.fidelity.compare import compare
from dxt_replay.replay.show.page.data import lag_course
from dxt_replay.replay.show.page.html import report_page
from dxt_replay.traces.samples import sample
from dxt_replay.traces.store.reader import open_capture
from dxt_replay.traces.units import MIB
from tests.capture_builder import build_capture, read
from tests.replay.show.page.chromium import (
    BROWSER,
    DRAWN,
    DRIVER,
    LONGEST_S,
    REQUIRED,
    chromium,
    opened,
    requested,
)
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


def bars_drawn(browser: Any) -> int:
    return int(browser.execute_script("return document.querySelectorAll('#timeline-source .bars .point').length"))


def mode(browser: Any) -> str:
    return str(browser.execute_script("return timelines[0].mode"))


def window(browser: Any) -> list[float]:
    found: list[float] = browser.execute_script("return state.window")
    return found


RANGES = """
  const charts = [...document.querySelectorAll('.chart')];
  return Object.fromEntries(charts.map((chart) => [chart.id, chart.layout.xaxis.range]))"""
"""Ranges of the x axes of all charts, by their ids."""


def jump(browser: Any, name: str) -> dict[str, Any]:
    """Press the button of a stretch of time and return the stretch."""
    browser.execute_script(
        f"[...document.querySelectorAll('[data-window]')].find((e) => e.textContent === '{name}').click()"
    )
    found: dict[str, Any] = browser.execute_script(f"return timelines[0].data.windows.find((w) => w.name === '{name}')")
    return found


def zoomed(browser: Any, chart: str, low: float, high: float) -> None:
    """Zoom a chart as a drag in it does."""
    browser.execute_script(f"Plotly.relayout('{chart}', {{'xaxis.range[0]': {low}, 'xaxis.range[1]': {high}}})")


@pytest.mark.parametrize(
    ("name", "width"),
    [
        ("cosmictagger", 1280),
        ("cosmictagger", 400),
        ("wide", 1280),
        ("hostile", 1280),
        ("both", 1280),
        ("both", 400),
    ],
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
    stretch = jump(browser, "slowest step")
    assert mode(browser) == "bars"
    assert bars_drawn(browser) > 0
    assert window(browser) == [stretch["from_ns"], stretch["until_ns"]]
    single = """
      const [from, until] = state.window;
      return timelines[0].tracks.filter((t) => t.operations && t.kind === 'read').flatMap((t) => {
        const inside = [...t.start.keys()].filter((i) => t.start[i] >= from && t.start[i] < until);
        return inside.map((i) => t.operations[i]);
      })"""
    counts = browser.execute_script(single)
    assert set(counts) == {1}
    browser.execute_script("document.querySelector('[data-zoom=home]').click()")
    assert mode(browser) == "bins"
    assert browser.get_log("browser") == []


def test_dragging_in_the_timeline_zooms(browser: Any, pages: dict[str, Path]) -> None:
    from selenium.webdriver.common.action_chains import ActionChains

    opened(browser, pages["cosmictagger"])
    before = window(browser)
    surface = browser.find_element("css selector", "#timeline-source .nsewdrag")
    browser.execute_script("arguments[0].scrollIntoView({block: 'center'})", surface)
    ActionChains(browser).move_to_element(surface).click_and_hold().move_by_offset(120, 0).release().perform()
    from selenium.webdriver.support.ui import WebDriverWait

    WebDriverWait(browser, LONGEST_S, poll_frequency=0.05).until(lambda driver: window(driver) != before)
    after = window(browser)
    assert before[0] < after[0] < after[1] < before[1]
    assert after[1] - after[0] < (before[1] - before[0]) / 4


def test_two_timelines_zoom_together(browser: Any, pages: dict[str, Path]) -> None:
    opened(browser, pages["both"])
    home = browser.execute_script("return state.home")
    browser.execute_script("document.querySelector('[data-zoom=in]').click()")
    low, high = window(browser)
    assert high - low == pytest.approx((home[1] - home[0]) / 4)
    ranges = browser.execute_script(RANGES)
    for side in ("source", "replay"):
        for chart in ("timeline", "offsets", "course", "heat"):
            assert ranges[f"{chart}-{side}"] == pytest.approx([low / 1e9, high / 1e9])
    assert ranges["lag-replay"] == pytest.approx([low / 1e9, high / 1e9])


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
      const tracks = timelines[0].tracks.filter((track) => track.file);
      return [...new Set(tracks.flatMap((track) => track.file.map((_, i) => timelines[0].label(track, i))))]"""
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
    assert set(titles) == {"Download plot as a PNG", "Zoom", "Pan", "Reset axes"}


def test_a_chart_has_one_tab_stop(browser: Any, pages: dict[str, Path]) -> None:
    opened(browser, pages["cosmictagger"])
    stops = """
      return [...document.querySelectorAll('.chart')].map((chart) =>
        [...chart.querySelectorAll('button, a, input, select, [tabindex]')].filter((e) => e.tabIndex >= 0).length)"""
    assert set(browser.execute_script(stops)) == {1}


def test_charts_are_drawn_when_the_page_counts_as_loaded(browser: Any, pages: dict[str, Path]) -> None:
    """A screenshot or a printer that waits for `load` alone finds every chart."""
    opened(browser, pages["cosmictagger"])
    drawn, loaded = browser.execute_script(
        "return [Number(document.documentElement.dataset.complete), "
        "performance.getEntriesByType('navigation')[0].loadEventStart]"
    )
    assert drawn <= loaded + 1


def test_all_charts_of_time_zoom_together(browser: Any, pages: dict[str, Path]) -> None:
    opened(browser, pages["cosmictagger"])
    stretch = jump(browser, "slowest step")
    seconds = pytest.approx([stretch["from_ns"] / 1e9, stretch["until_ns"] / 1e9])
    ranges = browser.execute_script(RANGES)
    assert all(ranges[f"{chart}-source"] == seconds for chart in ("timeline", "offsets", "course", "heat"))
    low, high = ranges["steps-source"]
    assert 0 < high - low <= 2, "the steps of one step's time"
    zoomed(browser, "heat-source", 8, 9)
    ranges = browser.execute_script(RANGES)
    assert {tuple(ranges[f"{chart}-source"]) for chart in ("timeline", "offsets", "course", "heat")} == {(8, 9)}
    zoomed(browser, "steps-source", 10, 20)
    times = browser.execute_script("return [steps.source.from_ns[10], steps.source.until_ns[19]]")
    assert window(browser) == pytest.approx(times)
    assert browser.execute_script(RANGES)["course-source"] == pytest.approx([time / 1e9 for time in times])
    browser.execute_script("Plotly.relayout('course-source', {'xaxis.autorange': true})")
    assert window(browser) == browser.execute_script("return state.home")


def test_an_idle_start_up_is_folded_away(browser: Any, pages: dict[str, Path]) -> None:
    opened(browser, pages["cosmictagger"])
    first, last = browser.execute_script("return state.whole")
    begin = window(browser)[0]
    assert begin - first > 0.4 * (last - first), "the start-up fills two fifths of the time"
    note = browser.find_element("id", "quiet-note")
    assert "start-up without I/O" in note.text
    note.find_element("css selector", "button").click()
    assert window(browser) == [first, last]
    assert browser.execute_script(RANGES)["heat-source"] == pytest.approx([first / 1e9, last / 1e9])
    assert not note.is_displayed()


def test_a_link_leads_to_the_same_view(browser: Any, pages: dict[str, Path]) -> None:
    opened(browser, pages["both"])
    zoomed(browser, "course-source", 0.05, 0.1)
    for element, text in (("rank-filter", "1"), ("file-filter", "img")):
        browser.find_element("id", element).send_keys(text)
    browser.execute_script("document.querySelector('[data-kind=step]').click()")
    browser.execute_script("document.querySelector('[data-for=sizes-source] [data-log]').click()")
    browser.execute_script("document.querySelector('nav a[href=\"#heat\"]').click()")
    view = """
      return [state.window, state.rankText, state.fileText, [...state.hidden], state.linear.sizes,
        [...document.querySelectorAll('#files tbody tr')].map((row) => row.hidden),
        document.getElementById('rank-filter').value, document.querySelector('[data-kind=step]').checked,
        document.querySelector('[data-for=sizes-source] [data-log]').getAttribute('aria-pressed')]"""
    seen, address = browser.execute_script(view), browser.current_url
    assert seen[1:5] == ["1", "img", ["step"], True]
    assert "#heat&" in address
    browser.get("about:blank")
    browser.get(address)
    assert browser.execute_script(view)[1:] == seen[1:]
    assert browser.execute_script(view)[0] == pytest.approx(seen[0])
    assert browser.execute_script("return document.getElementById('heat').getBoundingClientRect().top") < 300
    browser.execute_script("location.hash = ''")
    from selenium.webdriver.support.ui import WebDriverWait

    WebDriverWait(browser, LONGEST_S, poll_frequency=0.05).until(
        lambda driver: driver.execute_script("return state.atHome && state.rankText === ''")
    )


def test_a_damaged_link_shows_the_page(browser: Any, pages: dict[str, Path]) -> None:
    browser.get("about:blank")
    for fragment in ("t=9..1&ranks=x&heat=99&file=77&hide=nothing", "t=a..b", "%E0%A4%A", "nowhere&t=1"):
        browser.get(f"{pages['hostile'].as_uri()}#{fragment}")
        assert browser.execute_script(DRAWN), fragment
        assert browser.execute_script("return document.getElementById('trouble').hidden"), fragment
        browser.get("about:blank")


def test_the_filter_of_ranks(browser: Any, pages: dict[str, Path]) -> None:
    opened(browser, pages["hostile"])
    before = bars_drawn(browser)
    browser.find_element("id", "rank-filter").send_keys("1")
    assert 0 < bars_drawn(browser) < before
    ticks = browser.execute_script("return document.getElementById('timeline-source').layout.yaxis.ticktext")
    assert {tick.split()[0] for tick in ticks} == {"r1"}
    assert browser.execute_script("return document.getElementById('heat-source').data[0].y") == ["1"]
    ranks = """
      const rows = [...document.querySelectorAll('#ranks tbody tr')];
      return rows.filter((row) => !row.hidden).map((row) => row.cells[0].innerText)"""
    assert browser.execute_script(ranks) == ["1"]
    assert "The filter of ranks applies to" in browser.find_element("id", "filter-note").text
    area = """
      const trace = document.getElementById('course-source').data[0];
      return trace.y.slice(0, -1).reduce((sum, rate, i) => sum + rate * (trace.x[i + 1] - trace.x[i]), 0)"""
    assert browser.execute_script(area) * MIB == pytest.approx(10 * len(HOSTILE) * 4096, rel=0.01)


def test_the_filter_of_files_and_the_search(browser: Any, pages: dict[str, Path]) -> None:
    opened(browser, pages["hostile"])
    browser.execute_script(
        "for (const box of document.querySelectorAll('[data-kind]')) if (box.dataset.kind !== 'read') box.click()"
    )
    every = bars_drawn(browser)
    browser.find_element("id", "file-filter").send_keys("REVERSED")
    assert bars_drawn(browser) == 20, "one read of it a rank and step"
    assert every > 20
    shown = "return [...document.querySelectorAll('#files tbody tr')].filter((e) => !e.hidden).length"
    assert browser.execute_script(shown) == 1
    assert browser.execute_script("return document.querySelector('[data-offsets]').length") == 1
    opened(browser, pages["cosmictagger"])
    search = browser.find_element("css selector", "#files input[type=search]")
    assert search.get_attribute("aria-label") == "search in Files"
    search.send_keys("cosmic.h5")
    assert browser.execute_script(shown) == 1
    assert "1 of 28 rows" in browser.find_element("css selector", "#files .controls").text


def test_offsets_over_time(browser: Any, pages: dict[str, Path]) -> None:
    opened(browser, pages["hostile"])
    assert browser.execute_script("return document.querySelector('[data-offsets]').length") == len(HOSTILE)
    lines = """
      const [trace] = document.getElementById('offsets-source').data.filter((t) => t.name === 'read');
      return trace.y.filter((_, i) => i % 3 === 0)"""
    assert sorted(browser.execute_script(lines)) == sorted(4096 * step for step in range(10) for _ in (0, 1))
    written = (
        "return document.getElementById('offsets-source').data.filter((t) => t.name === 'write').flatMap((t) => t.y)"
    )
    assert browser.execute_script(written) == [0, 123_457, None]


def test_tables_of_a_narrow_window_say_that_they_scroll(browser: Any, pages: dict[str, Path]) -> None:
    opened(browser, pages["cosmictagger"], 400)
    hints = """
      return [...document.querySelectorAll('#files .scroll, #ranks .scroll')].map((place) => [
        place.scrollWidth > place.clientWidth, place.classList.contains('sideways'),
        getComputedStyle(place.previousElementSibling, '::after').content.includes('scroll sideways'),
        getComputedStyle(place.querySelector('tfoot th')).position])"""
    assert browser.execute_script(hints) == [[True, True, True, "static"]] * 2


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
