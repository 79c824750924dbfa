"""The built site in a real browser, without a network: ``make docs`` builds it and runs this.

Where Chromium, selenium or axe-core is missing the tests are skipped, as those of the report are.
"""

import json
from pathlib import Path

import pytest
from browser import chromium, serious_violations

pytest.importorskip("selenium", reason="selenium is not installed")
from selenium.webdriver.common.by import By
from selenium.webdriver.support.ui import WebDriverWait

SITE = Path(__file__).parents[2] / "out" / "docs"
KINDS = ("index", "start/first", "start/which-loss", "theory", "reference/paper", "reference/command-line")
"""One page of each kind: words, figures, wide tables, formulas, docstrings, help texts."""

pytestmark = [
    pytest.mark.docs,
    pytest.mark.skipif(not (SITE / "index.html").exists(), reason="the site is not built: make docs"),
]


@pytest.fixture(scope="module")
def tab(tmp_path_factory):
    with chromium(tmp_path_factory.mktemp("profile")) as browser:
        yield browser


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
    show(tab, page, dark=dark, width=width)
    assert serious_violations(tab) == []


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
