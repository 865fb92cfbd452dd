"""The page in headless Chromium: no errors, no requests, everything drawn, zoom, sorting, hostile paths.

Needs the Debian packages chromium and chromium-driver and the Python package selenium; without one it is skipped,
unless DXT_REPLAY_REQUIRE_BROWSER=1, as in CI.
"""

import json
import os
import shutil

import pytest

from dxt_replay.profiler_merge.analysis.overview import overview
from dxt_replay.replay.compare.comparison import compare
from dxt_replay.replay.show.page.chart_data import lag_course
from dxt_replay.replay.show.page.page import report_page
from tests.capture_builder import build_capture, read
from tests.replay.show.page.pages import HOSTILE, SHOWN, page_of, training

REQUIRED = os.environ.get("DXT_REPLAY_REQUIRE_BROWSER") == "1"
PROGRAMS = [shutil.which(name) for name in ("chromium", "chromedriver")]
if not REQUIRED:
    pytest.importorskip("selenium.webdriver", reason="selenium is not installed")
pytestmark = pytest.mark.skipif(
    not REQUIRED and None in PROGRAMS,
    reason="chromium or chromedriver is not installed: apt-get install chromium chromium-driver",
)

FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-component-update",
    "--disable-background-networking", "--disable-sync", "--disable-dev-shm-usage",
)  # fmt: skip
DRAWN = "document.documentElement.dataset.complete"
LONGEST_S = 60
"""A page that is not drawn by then has failed; it takes about two."""

CUT_OFF = """
  [...document.querySelectorAll('.chart')].filter((chart) =>
    Math.max(...[...chart.querySelectorAll('.main-svg')].map((svg) => svg.clientHeight)) > chart.clientHeight + 1
  ).map((chart) => `${chart.id} covers what follows`).concat(
    [...document.querySelectorAll('.chart .main-svg text')].filter((text) => {
      const box = text.getBoundingClientRect();
      const chart = text.closest('.chart').getBoundingClientRect();
      return box.width && (box.left < chart.left - 1 || box.right > chart.right + 1 || box.bottom > chart.bottom + 1);
    }).map((text) => `${text.closest('.chart').id}: ${text.textContent}`))"""
"""Charts that reach out of their places, and texts that reach out of their charts."""

RANGES = "Object.fromEntries([...document.querySelectorAll('.chart')].map((e) => [e.id, e.layout.xaxis.range]))"
"""Ranges of the x axes of all charts, by their ids."""

FILLED = """(() => {
  const image = new Image();
  image.src = document.getElementById('timeline-source').layout.images[0].source;
  return image.decode().then(() => {
    const canvas = document.createElement('canvas');
    [canvas.width, canvas.height] = [image.width, image.height];
    const pen = canvas.getContext('2d');
    pen.drawImage(image, 0, 0);
    const { data } = pen.getImageData(0, 0, canvas.width, canvas.height);
    return data.filter((value, i) => i % 4 === 3 && value).length;
  });
})()"""
"""Number of coloured pixels of the timeline."""


class Browser:
    """A driver of the browser, and short words for what the tests do with it."""

    def __init__(self, driver):
        self.driver = driver

    def open(self, page, width=1280):
        """A page that has been drawn in a window of that width."""
        self.errors()
        self.driver.get_log("performance")
        metrics = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
        self.driver.get(page.as_uri())
        self.until(DRAWN)
        return self

    def __call__(self, script):
        """The value of an expression."""
        return self.driver.execute_script(f"return {script.strip()}")

    def until(self, script):
        from selenium.webdriver.support.ui import WebDriverWait

        WebDriverWait(self.driver, LONGEST_S, poll_frequency=0.05).until(lambda _: self(script))

    def errors(self):
        return self.driver.get_log("browser")

    def requests(self):
        """What the page asked for, but for what it carries itself."""
        events = [json.loads(entry["message"])["message"] for entry in self.driver.get_log("performance")]
        urls = [event["params"]["request"]["url"] for event in events if event["method"] == "Network.requestWillBeSent"]
        return [url for url in urls if not url.startswith(("data:", "blob:", "chrome:"))]


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    from selenium import webdriver

    assert None not in PROGRAMS, "chromium or chromedriver is required and not installed"
    options = webdriver.ChromeOptions()
    options.binary_location = str(PROGRAMS[0])
    for flag in (*FLAGS, f"--user-data-dir={tmp_path_factory.mktemp('browser')}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(PROGRAMS[1]))
    yield Browser(driver)
    driver.quit()


@pytest.fixture(scope="module")
def pages(tmp_path_factory, drawn):
    """Files of pages: of a bundled capture, of hostile paths, of many ranks, and of a source and its replay."""
    folder = tmp_path_factory.mktemp("pages")
    reads = [read(0, length=64, rank=rank, lane=lane, start_ns=rank) for rank in range(90) for lane in range(6)]
    source, replay = training(folder, "source"), training(folder, "again", delay_ns=3_000, due=True)
    texts = {
        "cosmictagger": drawn[1],
        "hostile": page_of(source)[1],
        "wide": page_of(build_capture(folder, ops=reads, files=["/data"], name="wide"))[1],
        "both": report_page(overview(source), overview(replay), compare(source, replay), lag_course(replay)),
    }
    for name, text in texts.items():
        (folder / f"{name}.html").write_text(text, encoding="utf-8")
    return {name: folder / f"{name}.html" for name in texts}


@pytest.mark.parametrize(
    ("name", "width"),
    [*((name, 1280) for name in ("cosmictagger", "wide", "hostile", "both")), ("cosmictagger", 400), ("both", 400)],
)
def test_it_opens_without_errors_or_requests(browser, pages, name, width):
    browser.open(pages[name], width)
    assert browser.errors() == []
    assert browser.requests() == [pages[name].as_uri()]
    empty = "[...document.querySelectorAll('.chart')].filter((e) => !e.querySelector('.main-svg')).map((e) => e.id)"
    assert browser(empty) == []
    assert browser("document.getElementById('trouble').hidden")
    assert browser("document.documentElement.scrollWidth <= document.documentElement.clientWidth")
    assert browser(CUT_OFF) == []
    titles = browser("[...document.querySelectorAll('.modebar-btn')].map((e) => e.dataset.title)")
    assert set(titles) == {"Download plot as a PNG"}, "others send something away"


def test_all_charts_of_time_zoom_together(browser, pages):
    from selenium.webdriver.common.action_chains import ActionChains

    window, row = "view.window", "document.querySelector('#steps tr[data-from]')"
    before = browser.open(pages["cosmictagger"])(window)
    surface = browser.driver.find_element("css selector", "#timeline-source .nsewdrag")
    browser.driver.execute_script("arguments[0].scrollIntoView({block: 'center'})", surface)
    ActionChains(browser.driver).move_to_element(surface).click_and_hold().move_by_offset(120, 0).release().perform()
    browser.until(f"view.window[0] > {before[0]}")
    assert before[0] < browser(window)[0] < browser(window)[1] < before[1]
    browser("Plotly.relayout('heat-source', {'xaxis.range[0]': 8, 'xaxis.range[1]': 9})")
    ranges = browser(RANGES)
    assert {tuple(ranges[f"{chart}-source"]) for chart in ("timeline", "offsets", "course", "heat")} == {(8, 9)}
    browser("Plotly.relayout('course-source', {'xaxis.autorange': true})")
    assert browser(window) == browser("page.home")
    browser("document.querySelector('[data-zoom=out]').click()")
    assert browser(window) == browser("page.whole"), "the start-up is out of sight at first"
    assert browser(window)[0] < before[0]
    browser(f"{row}.click()")
    assert browser(window) == pytest.approx(browser(f"[Number({row}.dataset.from), Number({row}.dataset.until)]"))
    assert browser.errors() == []


def test_kinds_can_be_hidden_and_a_place_explains_itself(browser, pages):
    every = browser.open(pages["hostile"])(FILLED)
    browser("document.querySelector('[data-kind=read]').click()")
    assert 0 < browser(FILLED) < every
    browser("document.querySelector('[data-kind=read]').click()")
    one = ["r0 lane 0", "read from 0.100000 s, for 50 us, 4.00 KiB", "at offset 0", SHOWN[0]]
    assert browser("wordsAt(page.timelines.source, 3, 100.02e6, 0.01e6)") == one
    many = ["r0 lane 0", f"{len(HOSTILE)} of read, {4 * len(HOSTILE)}.0 KiB"]
    assert browser("wordsAt(page.timelines.source, 3, 105e6, 6e6)") == many


def test_recorded_paths_never_run(browser, pages, tmp_path):
    """Should an escape be forgotten one day, the page's policy still stops what a path holds."""
    browser.open(pages["hostile"])
    assert set(SHOWN) <= set(browser("[...document.querySelectorAll('#files td.text')].map((e) => e.textContent)"))
    assert browser("document.querySelectorAll('img, main a[href^=javascript], main script').length") == 0
    assert browser("window.hacked === undefined")
    injected = "<main><script>window.hacked=1</script><img src=x onerror=window.hacked=1>"
    page = tmp_path / "injected.html"
    page.write_text(pages["hostile"].read_text(encoding="utf-8").replace("<main>", injected), encoding="utf-8")
    assert browser.open(page)("window.hacked === undefined")
    assert len(browser.errors()) >= 2, "the policy said nothing"


def test_tables_sort_from_the_keyboard(browser, pages):
    from selenium.webdriver.common.keys import Keys

    head = browser.open(pages["cosmictagger"]).driver.find_element(
        "xpath", "//section[@id='files']//th[button[text()='reads']]"
    )
    place = "[...document.querySelectorAll('#files thead th')].findIndex((cell) => cell.textContent === 'reads')"
    values = f"[...document.querySelectorAll('#files tbody tr')].map((row) => Number(row.cells[{place}].dataset.v))"
    for key, order in ((Keys.ENTER, "descending"), (Keys.SPACE, "ascending")):
        head.find_element("css selector", "button").send_keys(key)
        assert head.get_attribute("aria-sort") == order
        found = browser(values)
        assert found == sorted(found, reverse=order == "descending")
        assert len(set(found)) > 1


def test_a_link_leads_to_the_same_view(browser, pages):
    browser.open(pages["both"])
    browser("Plotly.relayout('course-source', {'xaxis.range[0]': 0.05, 'xaxis.range[1]': 0.1})")
    for name, text in (("ranks", "1"), ("files", "img")):
        browser.driver.find_element("id", f"{name}-filter").send_keys(text)
    browser("document.querySelector('[data-kind=step]').click()")
    seen = """
      [view.window.map((time) => time.toFixed(0)), view.ranks, view.files, [...view.hide],
        [...document.querySelectorAll('#files tbody tr, #numbers tbody tr')].map((row) => row.hidden),
        document.getElementById('ranks-filter').value, document.querySelector('[data-kind=step]').checked,
        document.getElementById('heat-source').data[0].y,
        document.getElementById('timeline-source').layout.yaxis.ticktext]"""
    before, address = browser(seen), browser.driver.current_url
    assert before[1:4] == ["1", "img", ["step"]]
    assert (before[7], {label.split()[0] for label in before[8]}) == (["1"], {"r1"})
    browser.driver.get("about:blank")
    browser.driver.get(address)
    browser.until(DRAWN)
    assert browser(seen) == before
    browser("location.hash = ''")
    browser.until("isHome() && view.ranks === ''")


def test_a_damaged_link_shows_the_page(browser, pages):
    browser.driver.get("about:blank")
    browser.driver.get(f"{pages['hostile'].as_uri()}#%E0%A4%A")
    browser.until(DRAWN)
    for fragment in ("t=9..1&ranks=x&hide=nothing", "t=a..b", "nowhere&t=1", "files", "ranks=1"):
        browser(f"location.hash = '{fragment}'")
    browser.until("view.ranks === '1'")
    assert browser("document.getElementById('trouble').hidden")
    assert browser.errors() == []


def test_a_choice_shows_another_file(browser, pages):
    choice, traces = (
        "document.querySelector('[data-choose=offsets-source]')",
        "document.getElementById('offsets-source').data",
    )
    assert browser.open(pages["hostile"])(f"{choice}.length") == len(HOSTILE)
    lines = f"{traces}.find((t) => t.name === 'read').y.filter((_, i) => i % 3 === 0)"
    assert sorted(browser(lines)) == sorted(4096 * step for step in range(10) for _ in (0, 1))
    written = f"{traces}.filter((t) => t.name === 'write').map((t) => t.y)"
    assert browser(written) == [[0, 123_457, None]]
    browser.driver.execute_script(f"{choice}.value = 1; {choice}.dispatchEvent(new Event('change'))")
    assert browser(written) == []


def test_light_dark_and_paper(browser, pages):
    ink = "getComputedStyle(document.querySelector('#course-source .xtick text')).fill"
    light = browser.open(pages["hostile"])(ink)
    dark_scheme = {"features": [{"name": "prefers-color-scheme", "value": "dark"}]}
    browser.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", dark_scheme)
    browser.until(f"{ink} !== '{light}'")
    printed = browser(f"(window.dispatchEvent(new Event('beforeprint')), {ink})")
    widths = browser("[...document.querySelectorAll('.main-svg')].map((e) => e.clientWidth)")
    assert max(widths) <= 700, "wider than paper"
    after = browser(f"(window.dispatchEvent(new Event('afterprint')), {ink})")
    browser.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})
    assert printed == "rgb(0, 0, 0)"
    assert after not in (light, printed)
    assert browser.errors() == []
