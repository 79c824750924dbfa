"""The built site in a real browser, without a network: ``make docs`` builds it and runs this.

Where Chromium, selenium or axe-core is missing the tests are skipped, as those of the report are.
"""

import json
import os
import shutil
from pathlib import Path

import pytest

webdriver = pytest.importorskip("selenium.webdriver", reason="selenium is not installed")
from selenium.webdriver.chrome.service import Service  # noqa: E402
from selenium.webdriver.common.by import By  # noqa: E402
from selenium.webdriver.support.ui import WebDriverWait  # noqa: E402

ROOT = Path(__file__).parents[2]
SITE = ROOT / "out" / "docs"
AXE = Path(os.environ.get("AXE_CORE", ROOT / ".venv/npm/node_modules/axe-core/axe.min.js"))
FLAGS = (
    "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync --disable-dev-shm-usage --hide-scrollbars"
)
KINDS = ("index", "start/first", "start/which-loss", "theory", "reference/paper", "reference/command-line")
"""One page of each kind: words, figures, wide tables, formulas, docstrings, help texts."""

pytestmark = [
    pytest.mark.docs,
    pytest.mark.skipif(not (SITE / "index.html").exists(), reason="the site is not built: make docs"),
]


@pytest.fixture(scope="module")
def tab(tmp_path_factory):
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    driver = shutil.which("chromedriver")
    if not browser or not driver:
        pytest.skip("no Chromium with chromedriver: apt-get install chromium chromium-driver")
    options = webdriver.ChromeOptions()
    options.binary_location = browser
    for flag in (*FLAGS.split(), f"--user-data-dir={tmp_path_factory.mktemp('profile')}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    browser = webdriver.Chrome(options=options, service=Service(driver))
    yield browser
    browser.quit()


def show(tab, page, *, width=1200, dark=False):
    feature = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
    tab.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "", "features": [feature]})
    size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
    tab.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    tab.get((SITE / f"{page}.html").as_uri())


@pytest.mark.parametrize("page", KINDS)
def test_nothing_comes_from_elsewhere(tab, page):
    tab.get_log("browser"), tab.get_log("performance")
    show(tab, page)
    messages = [json.loads(entry["message"])["message"] for entry in tab.get_log("performance")]
    sent = [m["params"]["request"]["url"] for m in messages if m["method"] == "Network.requestWillBeSent"]
    assert len(sent) > 3
    assert not [url for url in sent if url.startswith(("http", "ws", "//"))]
    assert tab.get_log("browser") == []


@pytest.mark.parametrize("page", KINDS)
def test_nothing_is_wider_than_a_phone(tab, page):
    show(tab, page, width=390)
    assert tab.execute_script("return document.documentElement.scrollWidth") == 390


@pytest.mark.parametrize("page", KINDS)
@pytest.mark.parametrize("dark, width", [(False, 1200), (True, 390)])
def test_axe_finds_no_serious_violation(tab, page, dark, width):
    if not AXE.exists():
        pytest.skip("axe-core is missing: npm install --prefix .venv/npm axe-core")
    show(tab, page, dark=dark, width=width)
    tab.execute_script(AXE.read_text(encoding="utf-8"))
    found = tab.execute_async_script("axe.run({preload: false}).then(arguments[0])")
    assert len(found["passes"]) > 15
    serious = [v for v in found["violations"] if v["impact"] in ("serious", "critical")]
    assert [(v["id"], [n["html"] for n in v["nodes"]][:3]) for v in serious] == []


@pytest.mark.parametrize("dark", [False, True])
def test_one_of_both_figures_is_shown(tab, dark):
    show(tab, "start/first", dark=dark)
    shown = [image for image in tab.find_elements(By.CSS_SELECTOR, ".drawn img") if image.is_displayed()]
    assert len(shown) == 2
    assert all(("dark" in image.get_attribute("src")) == dark for image in shown)
    assert all(image.get_property("naturalWidth") > 0 for image in shown)


def test_formulas_are_laid_out(tab):
    show(tab, "theory")
    heights = [math.size["height"] for math in tab.find_elements(By.CSS_SELECTOR, ".formula math")]
    assert len(heights) >= 2
    assert min(heights) > 20  # a fraction is higher than a line


def test_the_search_finds_a_function(tab):
    tab.get((SITE / "search.html").as_uri() + "?q=focal_minimizer")
    found = WebDriverWait(tab, 30).until(lambda tab: tab.find_elements(By.CSS_SELECTOR, "ul.search li a"))
    assert any("reference/paper.html" in link.get_attribute("href") for link in found)
