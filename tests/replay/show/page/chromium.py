"""Headless Chromium for the tests of the page."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

REQUIRED = os.environ.get("DXT_REPLAY_REQUIRE_BROWSER") == "1"
"""As in CI: a browser that is missing is a failure."""

BROWSER, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")

FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-component-update",
    "--disable-background-networking", "--disable-sync", "--disable-dev-shm-usage",
)  # fmt: skip
DRAWN = "return document.documentElement.dataset.complete"
LONGEST_S = 60
"""A page that is not drawn by then has failed; it takes about two."""


@contextmanager
def chromium(folder: Path) -> Iterator[Any]:
    """A driver of the browser, which keeps what it needs in `folder`."""
    from selenium import webdriver

    assert BROWSER, "chromium is required and not installed"
    assert DRIVER, "chromedriver is required and not installed"
    options = webdriver.ChromeOptions()
    options.binary_location = BROWSER
    for flag in (*FLAGS, f"--user-data-dir={folder}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(DRIVER))
    try:
        yield driver
    finally:
        driver.quit()


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
