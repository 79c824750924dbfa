"""The page: valid, whole without a network, every text escaped, the same bytes for the same rows."""

import base64
import functools
import hashlib
import html
import json
import re
import subprocess
import sys
from html.parser import HTMLParser

import html5lib
import numpy as np
import pytest
from made import NAMES, calibrated, entries, report, rows

import refocal
from refocal import Focal, SigmoidFocal
from refocal.report import Comparison, Report


class Elements(HTMLParser):
    """All elements with their attributes, and the text outside scripts and styles."""

    def __init__(self, page):
        super().__init__()
        self.found, self.text, self._inside = [], [], ""
        self.feed(page)

    def handle_starttag(self, name, attributes):
        self.found.append((name, dict(attributes)))
        self._inside = name if name in ("script", "style") else ""

    def handle_endtag(self, name):
        self._inside = ""

    def handle_data(self, data):
        if not self._inside:
            self.text.append(data)


PAGES = {
    "report": report,
    "psi": calibrated,
    "comparison": lambda: Report.compare({"first": report(), "<i>second": calibrated()}),
    "labels": lambda: Report(*entries(100), objective=SigmoidFocal(), from_logits=True, classes=NAMES[:3]),
}


@functools.cache
def page_of(name):
    return PAGES[name]().html()


@pytest.mark.parametrize("name", PAGES)
def test_page_is_valid_html(name):
    page = page_of(name)
    html5lib.HTMLParser(strict=True).parse(page)
    assert page.startswith('<!doctype html>\n<html lang="en">')
    elements = Elements(page)
    ids = [a["id"] for _, a in elements.found if "id" in a]
    assert len(ids) == len(set(ids))
    links = [a["href"][1:] for e, a in elements.found if e == "a" and a["href"].startswith("#")]
    assert links
    assert set(links) <= set(ids)
    for key in ("for", "aria-labelledby"):
        named = [part for _, a in elements.found for part in a.get(key, "").split()]
        assert set(named) <= set(ids)


@pytest.mark.parametrize("name", ["report", "comparison"])
def test_page_fetches_nothing(name):
    page = page_of(name)
    for element, attributes in Elements(page).found:
        for key in ("src", "href", "srcset", "action", "data"):
            value = attributes.get(key, "")
            assert value == "" or value.startswith(("#", "data:")), (element, key, value)
    css = page[page.index("<style>") : page.index("</style>")]
    assert "url(" not in css
    assert "@import" not in css
    assert "default-src &#39;none&#39;" in page


@pytest.mark.parametrize("name", ["report", "comparison", "labels"])
def test_names_are_shown_as_text(name):
    page = page_of(name)
    elements = Elements(page)
    assert "<script>alert(1)</script>" not in page
    assert [e for e, _ in elements.found if e == "b"] == []
    assert NAMES[0] in "".join(elements.text)
    assert NAMES[1] in "".join(elements.text)
    scripts = [a for e, a in elements.found if e == "script"]
    assert all(a in ({}, {"type": "application/json"}) for a in scripts)


def test_the_one_script_is_the_one_that_the_policy_allows():
    page = html.unescape(report().html())
    script = page[page.rindex("<script>") + 8 : page.rindex("</script>")]
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}'" in page


def test_every_number_of_the_method_table_is_there():
    text = "".join(Elements(calibrated().html()).text)
    for method in calibrated().numbers.selection.methods:
        for metric in ("nll", "brier", "ece", "classwise_ece", "error_rate"):
            x = getattr(method, metric)
            assert f"{x.value:.4f}{x.low:.4f} to {x.high:.4f}" in text


def test_verdict_warnings_and_code_are_there():
    numbers = calibrated().numbers
    text = "".join(Elements(calibrated().html()).text)
    for words in (numbers.headline, numbers.sentence, numbers.python, numbers.command, *numbers.warnings):
        assert words in text
    few = Report(*rows(40, 3), from_logits=True)
    for words in few.numbers.warnings:
        assert words in "".join(Elements(few.html()).text)


def test_choice_of_the_page_is_the_selection():
    (link,) = (a["href"] for e, a in Elements(calibrated().html()).found if a.get("download"))
    data = json.loads(base64.b64decode(link.removeprefix("data:application/json;base64,")))
    assert refocal.Selection.from_dict(data) == calibrated().numbers.selection


def test_the_same_rows_give_the_same_bytes():
    made = [Report(*rows(100, 3), objective=Focal(2.0), from_logits=True) for _ in range(2)]
    assert made[0].html() == made[1].html()
    assert made[0].json() == made[1].json()


def test_a_thousand_classes_stay_small():
    z, y = rows(400, 1000)
    names = [f"class {i} with a name of some length & more" for i in range(1000)]
    made = Report(z, y, objective=Focal(2.0), from_logits=True, classes=names, sample=50)
    page = made.html()
    assert len(page.encode()) < 2_000_000
    assert sum(1 for e, _ in Elements(page).found if e == "tr") > 1000
    assert made.numbers.n_sample == 50


def test_more_classes_than_the_table_holds_are_said(monkeypatch):
    monkeypatch.setattr("refocal.report.page.SHOWN_CLASSES", 3)
    page = report().html()
    assert "The 3 of 5 classes with the largest difference" in page
    classes = report().numbers.classes
    far = sorted(classes, key=lambda c: -abs(c.mean - c.share))
    table = page[page.index('id="class-table"') :]
    assert [html.escape(c.name).replace("&quot;", "&#34;") in table for c in far] == [True] * 3 + [False] * 2


def test_files_are_written_whole(tmp_path):
    path = tmp_path / "report.html"
    report().write_html(path)
    assert path.read_text(encoding="utf-8") == report().html()
    assert [p.name for p in tmp_path.iterdir()] == ["report.html"]
    report().write_html(str(path))


def test_a_notebook_shows_it_in_a_frame_of_its_own():
    (frame,) = Elements(report()._repr_html_()).found
    assert frame[0] == "iframe"
    assert frame[1]["srcdoc"] == report().html()
    assert "allow-same-origin" not in frame[1]["sandbox"]


def test_comparison_names_the_best_and_says_if_rows_differ():
    text = "".join(Elements(page_of("comparison")).text)
    assert "These reports are not of the same labels" in text
    other = Report(*rows(sharp=2.0), objective=Focal(2.0), from_logits=True)
    both = Report.compare({"sharp": other, "soft": report()})
    text = "".join(Elements(both.html()).text)
    nll = {
        n: r.numbers.selection.method(r.numbers.selection.winner).nll.value for n, r in both.reports.items()
    }
    best = min(nll, key=nll.get)
    assert f"{best} has the smallest NLL after its recommended method, {nll[best]:.4f}." in text
    assert "not of the same labels" not in text
    assert set(json.loads(both.json())) == {"sharp", "soft"}


def test_comparison_of_nothing_and_of_something_else():
    with pytest.raises(ValueError, match=r"^reports must hold at least one, got none$"):
        Report.compare({})
    with pytest.raises(TypeError, match=r"^reports must hold a Report for each name, got 1 for 'a'$"):
        Comparison({"a": 1})


def test_without_jinja2_numbers_are_there_and_the_page_says_what_to_install():
    code = (
        "import sys; sys.modules['jinja2'] = None; import numpy as np; from refocal.report import Report\n"
        "r = Report(np.array([[0.9, 0.1], [0.3, 0.7], [0.8, 0.2]]), np.array([0, 1, 1]))\n"
        "assert r.json(); r.html()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stderr.splitlines()[-1] == "ImportError: a report page needs jinja2: pip install jinja2"


def test_charts_have_a_name_and_a_description():
    page = report().html()
    for drawing in re.findall(r"<svg.*?</svg>", page, flags=re.DOTALL):
        assert re.match(r'<svg id="[\w-]+" viewBox="[\d. ]+" role="img" aria-labelledby=', drawing)
        assert re.search(r"<title id=.*?>.+?</title><desc id=.*?>.+?</desc>", drawing)
    assert page.count("<svg") == 5


def test_numbers_of_pictures_are_finite():
    z, y = rows(30, 3)
    z[0] = [-np.inf, 0.0, -np.inf]
    y[0] = 1
    for made in (report(), Report(z, y, from_logits=True)):
        drawings = re.findall(r"<svg.*?</svg>", made.html(), flags=re.DOTALL)
        assert not any("nan" in d.lower() or "inf" in d.lower().replace("information", "") for d in drawings)
