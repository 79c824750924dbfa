"""The report in a real browser, without a network; `browser` says what to install, or the tests are skipped.

With REFOCAL_SCREENSHOTS=docs/images the screenshots of the documentation are written.
"""

import base64
import json
import os
from pathlib import Path

import numpy as np
import pytest
from browser import chromium as open_chromium
from browser import serious_violations
from made import NAMES, calibrated, report, rows

import refocal
from refocal import Focal
from refocal.report import Report

pytest.importorskip("selenium", reason="selenium is not installed")
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import WebDriverWait

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def chromium(tmp_path_factory):
    with open_chromium(tmp_path_factory.mktemp("profile")) as browser:
        yield browser


@pytest.fixture
def tab(chromium):
    """The browser at its usual size, in light colours, with JavaScript."""
    show(chromium)
    chromium.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": False})
    return chromium


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    """The file of a report with a hostile class name."""
    path = tmp_path_factory.mktemp("page") / "report.html"
    report().write_html(path)
    return path.as_uri()


@pytest.fixture(scope="module")
def comparison(tmp_path_factory):
    path = tmp_path_factory.mktemp("page") / "comparison.html"
    Report.compare({"epoch <10>": report(), "epoch 20": calibrated()}).write_html(path)
    return path.as_uri()


@pytest.fixture(scope="module")
def shown(tmp_path_factory):
    """The file of the report that the documentation shows."""
    path = tmp_path_factory.mktemp("page") / "shown.html"
    options = {"classes": ("bird", "cat", "dog", "horse", "ship"), "name": "validation.parquet"}
    Report(*rows(4000), objective=Focal(2.0), from_logits=True, **options).write_html(path)
    return path.as_uri()


@pytest.fixture(scope="module")
def thousand(tmp_path_factory):
    """The file of a report of a thousand classes."""
    z, y = rows(300, 1000)
    path = tmp_path_factory.mktemp("page") / "thousand.html"
    names = [f"class {i}" for i in range(1000)]
    Report(z, y, objective=Focal(2.0), from_logits=True, classes=names, sample=20).write_html(path)
    return path.as_uri()


def show(tab, *, width=1100, height=900, dark=False, media=""):
    feature = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
    tab.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": media, "features": [feature]})
    size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
    tab.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)


def requests_of(tab):
    """Return the addresses that the browser asked for since the last look."""
    messages = [json.loads(entry["message"])["message"] for entry in tab.get_log("performance")]
    sent = [m["params"]["request"]["url"] for m in messages if m["method"] == "Network.requestWillBeSent"]
    return [url for url in sent if not url.startswith("data:")]


def text_of(tab, selector):
    return tab.find_element(By.CSS_SELECTOR, selector).text


def column(tab, table, number):
    script = (
        "const rows = document.querySelector(arguments[0]).tBodies[0].rows;"
        "return [...rows].map(row => row.cells[arguments[1]].innerText)"
    )
    return tab.execute_script(script, table, number)


def click_head(tab, table, number):
    tab.find_elements(By.CSS_SELECTOR, f"{table} thead button")[number].click()


@pytest.mark.parametrize("which", ["page", "comparison", "thousand"])
def test_opens_with_no_console_message_and_no_request(tab, which, request):
    address = request.getfixturevalue(which)
    tab.get_log("browser"), tab.get_log("performance")
    tab.get(address)
    assert tab.get_log("browser") == []
    assert requests_of(tab) == [address]


def test_the_policy_stops_what_is_not_ours(tab, page):
    tab.get(page)
    tab.execute_script(
        "const script = document.createElement('script'); script.textContent = 'window.evil = 1';"
        "document.body.append(script)"
    )
    assert tab.execute_script("return window.evil") is None
    assert "Content Security Policy" in tab.get_log("browser")[0]["message"]


def test_sliders_redraw_the_diagram_and_the_number_is_pythons(tab, page):
    z, y = rows()
    grid = report().numbers.grid
    tab.get(page)
    sliders = {name: tab.find_element(By.ID, name) for name in ("gamma", "temperature")}
    seen = []
    for keys in ({}, {"gamma": Keys.ARROW_RIGHT}, {"temperature": Keys.HOME}, {"gamma": Keys.END}):
        for name, key in keys.items():
            sliders[name].send_keys(key)
        gamma = grid.gammas[int(sliders["gamma"].get_property("value"))]
        temperature = grid.temperatures[int(sliders["temperature"].get_property("value"))]
        probs = refocal.psi(np.exp(refocal.log_psi(z / temperature, 0.0)), gamma)
        assert text_of(tab, '[data-is="ece"]') == f"{refocal.ece(probs, y):.4f}"
        assert text_of(tab, '[data-is="nll"]') == f"{refocal.nll(probs, y):.4f}"
        assert sliders["gamma"].get_attribute("aria-valuetext") == f"{gamma:.3g}"
        stats = refocal.CalibrationStats().update(probs, y)
        drawn = tab.execute_script(
            "return [...document.querySelectorAll('#explored .bin')].map(b => [b.classList.contains('empty'),"
            " +b.querySelector('.dot').getAttribute('cx'), +b.querySelector('.dot').getAttribute('cy'),"
            " +b.querySelector('.bar').getAttribute('height')])"
        )
        for j, (empty, x, height, bar) in enumerate(drawn):
            assert empty == (stats.counts[j] == 0)
            if not empty:
                assert x == pytest.approx(48 + 260 * stats.confidence[j], abs=0.02)
                assert height == pytest.approx(10 + 260 * (1 - stats.accuracy[j]), abs=0.02)
                assert bar == pytest.approx(54 * stats.counts[j] / stats.counts.max(), abs=0.02)
        seen.append((gamma, temperature, str(drawn)))
    assert len(set(seen)) == 4


def test_presets_are_methods(tab, page):
    tab.get(page)
    raw = tab.find_element(By.CSS_SELECTOR, ".presets button")
    raw.click()
    assert (raw.text, raw.get_attribute("aria-pressed")) == ("raw", "true")
    assert text_of(tab, '[data-is="ece"]') == f"{report().numbers.metrics['ece']:.4f}"
    assert text_of(tab, '[data-is="nll"]') == f"{report().numbers.metrics['nll']:.4f}"


def test_tables_sort_up_and_down(tab, page):
    tab.get(page)
    rows_of = [f"{c.rows:,}" for c in sorted(report().numbers.classes, key=lambda c: -c.rows)]
    click_head(tab, "#class-table", 1)
    assert column(tab, "#class-table", 1) == rows_of
    click_head(tab, "#class-table", 1)
    assert column(tab, "#class-table", 1) == rows_of[::-1]
    head = tab.find_elements(By.CSS_SELECTOR, "#class-table thead th")[1]
    assert head.get_attribute("aria-sort") == "ascending"
    click_head(tab, "#class-table", 0)
    assert sorted(column(tab, "#class-table", 0)) == sorted(NAMES)
    tab.find_elements(By.CSS_SELECTOR, ".methods thead button")[1].send_keys(Keys.ENTER)  # by keyboard too
    nll = [float(text.split()[0]) for text in column(tab, ".methods table", 1)]
    assert nll == sorted(nll, reverse=True)


def test_a_thousand_classes_are_searched_and_sorted_at_once(tab, thousand):
    tab.get(thousand)
    box = tab.find_element(By.ID, "search")
    box.send_keys("ss 99")
    script = "return [...document.querySelectorAll('#class-table tbody tr:not([hidden])')].length"
    assert tab.execute_script(script) == 11  # 99, 990, ..., 999
    assert text_of(tab, ".search output") == "11 of 1,000 shown"
    box.send_keys(Keys.BACK_SPACE * 5)
    assert tab.execute_script(script) == 1000
    spent = tab.execute_script(
        "const b = document.querySelectorAll('#class-table thead button')[4]; const t = performance.now();"
        "b.click(); document.body.offsetHeight; return performance.now() - t"
    )
    assert spent < 2000
    share = [float(x) for x in column(tab, "#class-table", 4)]
    assert share == sorted(share, reverse=True)


def rendered(tab):
    """Return the text that has a place on the page, and the names of the elements that have one."""
    found = tab.execute_cdp_cmd("DOMSnapshot.captureSnapshot", {"computedStyles": []})
    strings, (document, *_) = found["strings"], found["documents"]
    layout, names = document["layout"], document["nodes"]["nodeName"]
    texts = [strings[i] for i in layout["text"] if i >= 0]
    return " ".join(" ".join(texts).split()), [strings[names[i]] for i in layout["nodeIndex"]]


def rendered_with(tab, text):
    """Return what is rendered once it has a text: a page without scripts does not say when it is laid out."""
    found = []

    def has_text(tab):
        found[:] = rendered(tab)
        return text in found[0]

    WebDriverWait(tab, 30).until(has_text)
    return found


def test_without_javascript_the_content_is_there(tab, page, thousand):
    tab.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": True})
    tab.get(page)
    numbers = report().numbers
    words, elements = rendered_with(tab, numbers.headline)
    for text in (numbers.headline, numbers.sentence, numbers.command, NAMES[0], "Scores as they are"):
        assert text in words
    for method in numbers.selection.methods:
        assert f"{method.nll.value:.4f}" in words
    for row in numbers.classes:
        assert f"{row.mean:.4f}" in words
    tab.get(thousand)
    _, more = rendered_with(tab, "class 999")
    assert more.count("TR") > 1000
    assert not {"INPUT", "BUTTON"} & {*elements, *more}  # what would not work is not shown


def test_hostile_names_are_text(tab, page):
    tab.get(page)
    assert column(tab, "#class-table", 0) == list(NAMES)
    assert tab.find_element(By.TAG_NAME, "h1").text == "a <b>model</b>"
    assert tab.execute_script("return document.querySelectorAll('b').length") == 0


def test_comparison_opens_each_model(tab, comparison):
    tab.get(comparison)
    tab.find_element(By.CSS_SELECTOR, "#m2- > summary").click()
    tab.find_element(By.ID, "m2-gamma").send_keys(Keys.HOME)
    assert text_of(tab, '#m2-explore [data-is="gamma-shown"]') == "0"
    assert text_of(tab, "table tbody th a") == "epoch <10>"


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("which", ["page", "comparison"])
def test_axe_finds_no_serious_violation(tab, which, dark, request):
    address = request.getfixturevalue(which)
    show(tab, dark=dark)
    tab.get(address)
    tab.execute_script("for (const d of document.querySelectorAll('details')) d.open = true")
    assert serious_violations(tab) == []


@pytest.mark.parametrize(
    "name, width, dark", [("light", 1100, False), ("dark", 1100, True), ("mobile", 390, False)]
)
def test_screenshots_are_as_wide_as_the_window(tab, shown, name, width, dark):
    show(tab, width=width, dark=dark)
    tab.get(shown)
    wide, ink = tab.execute_script(
        "return [document.documentElement.scrollWidth, getComputedStyle(document.body).color]"
    )
    assert wide == width  # nothing has to be scrolled sideways, but tables in their own frames
    assert (sum(map(int, ink[4:-1].split(","))) > 380) == dark
    height = 1500 if name == "mobile" else 2050
    show(tab, width=width, height=height, dark=dark)
    picture = base64.b64decode(tab.execute_cdp_cmd("Page.captureScreenshot", {"format": "png"})["data"])
    assert len(picture) > 30_000
    if "REFOCAL_SCREENSHOTS" in os.environ:
        (ROOT / os.environ["REFOCAL_SCREENSHOTS"] / f"report-{name}.png").write_bytes(picture)


def test_prints_whole_tables_and_no_controls(tab, page):
    tab.get(page)
    show(tab, media="print")
    assert not tab.find_element(By.ID, "gamma").is_displayed()
    assert not tab.find_element(By.CSS_SELECTOR, "nav").is_displayed()
    overflow = tab.execute_script("return getComputedStyle(document.querySelector('.tall')).maxHeight")
    assert overflow == "none"
    printed = base64.b64decode(tab.execute_cdp_cmd("Page.printToPDF", {})["data"])
    assert printed.startswith(b"%PDF")


def test_a_frame_of_a_notebook_works_and_changes_nothing_outside(tab, tmp_path):
    path = tmp_path / "notebook.html"
    path.write_text(f"<!doctype html><title>n</title><p>cell</p>{report()._repr_html_()}", encoding="utf-8")
    tab.get(path.as_uri())
    outside = "return getComputedStyle(document.querySelector('p')).maxWidth"
    assert tab.execute_script(outside) == "none"
    tab.switch_to.frame(0)
    assert text_of(tab, ".headline") == report().numbers.headline
    tab.find_element(By.ID, "gamma").send_keys(Keys.HOME)
    assert text_of(tab, '[data-is="gamma-shown"]') == "0"
    tab.switch_to.default_content()
