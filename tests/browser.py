"""Debian's Chromium without a network, and the accessibility rules of axe-core, for pages that we make.

Where there is none, tests are skipped: ``apt-get install chromium chromium-driver`` brings the browser, and
``npm install --prefix .venv/npm axe-core`` the rules.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

AXE = Path(
    os.environ.get("AXE_CORE", Path(__file__).parents[1] / ".venv/npm/node_modules/axe-core/axe.min.js")
)
FLAGS = (
    "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync --disable-dev-shm-usage --hide-scrollbars"
)


@contextlib.contextmanager
def chromium(profile: Path) -> Iterator[Any]:
    """Open a browser with a new profile, which logs its messages and its requests."""
    webdriver = pytest.importorskip("selenium.webdriver", reason="selenium is not installed")
    from selenium.webdriver.chrome.service import Service

    browser = shutil.which("chromium") or shutil.which("google-chrome")
    driver = shutil.which("chromedriver")
    if not browser or not driver:
        pytest.skip("no Chromium with chromedriver: apt-get install chromium chromium-driver")
    options = webdriver.ChromeOptions()
    options.binary_location = browser
    for flag in (*FLAGS.split(), f"--user-data-dir={profile}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    tab = webdriver.Chrome(options=options, service=Service(driver))
    try:
        yield tab
    finally:
        tab.quit()


def serious_violations(tab: Any) -> list[tuple[str, list[str]]]:
    """Return what axe-core finds serious on the page that is open, with some of the elements."""
    if not AXE.exists():
        pytest.skip("axe-core is missing: npm install --prefix .venv/npm axe-core")
    tab.execute_script(AXE.read_text(encoding="utf-8"))
    found = tab.execute_async_script("axe.run({preload: false}).then(arguments[0])")
    assert len(found["passes"]) > 20
    serious = [v for v in found["violations"] if v["impact"] in ("serious", "critical")]
    return [(v["id"], [node["html"] for node in v["nodes"]][:3]) for v in serious]
