"""The book as a site, as a reader has it: in a browser, from a folder, with nothing else within reach.

The browser may ask for what lies in the folder. All that it asks for is written down.
"""

import contextlib
import functools
import http.server
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import threading
import time
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urljoin, urlsplit

import pytest
from headless import BROWSER, chromium
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import WebDriverWait

from mlpkit.files import only_one

ROOT = Path(__file__).parents[2]
AXE = "axe-core@4.14.1"
DESK = dict(width=1280, height=900, deviceScaleFactor=1, mobile=False)
PHONE = DESK | dict(width=390)
REPOSITORY = "https://github.com/somebody/somewhere"
NEEDED = ("sphinx_book_theme", "myst_nb", "sphinx-mathjax-offline")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not all(map(importlib.util.find_spec, NEEDED)), reason="no Sphinx here: 'make site' installs it"
    ),
]


def in_a_browser(test):
    return functools.reduce(lambda test, mark: mark(test), BROWSER, test)


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """Return the folder of a site that has been built here, without the printed chapters: once for all workers."""
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "site"
    with one_at_a_time(folder.parent):
        if not folder.exists():  # it gets its name when it is whole
            command = [sys.executable, ROOT / "site" / "build.py", "--no-pdf", "--to", folder]
            done = subprocess.run(command, capture_output=True, text=True)
            assert done.returncode == 0, done.stdout + done.stderr
    return folder


@contextlib.contextmanager
def one_at_a_time(folder):
    with contextlib.ExitStack() as locks:
        while True:
            try:
                locks.enter_context(only_one(folder))
                break
            except OSError:
                time.sleep(0.2)
        yield


class Page(HTMLParser):
    """What a page refers to, what can be referred to in it, and its pictures without an alternative text."""

    def __init__(self, path):
        super().__init__()
        self.links, self.anchors, self.mute = [], set(), []
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag, attributes):
        found = dict(attributes)
        self.anchors |= {found[name] for name in ("id", "name") if found.get(name)}
        self.links += [found[name] for name in ("href", "src") if found.get(name) and tag != "base"]
        if tag == "img" and not found.get("alt"):
            self.mute.append(found.get("src", "")[:60])


@pytest.fixture(scope="module")
def pages(site):
    return {path.relative_to(site).as_posix(): Page(path) for path in sorted(site.rglob("*.html"))}


def chapters(pages):
    return [name for name in pages if re.match(r"notebooks/[0-9a-z]\d_", name)]


def test_every_notebook_has_a_page_in_the_contents_in_its_place(site, pages):
    notebooks = sorted(path.stem for path in (ROOT / "notebooks").glob("[0-9]*.ipynb"))
    notebooks += sorted(path.stem for path in (ROOT / "notebooks").glob("[a-z]*.ipynb"))
    listed = re.findall(
        r'toctree-l1"><a [^>]*href="notebooks/([0-9a-z]\d_\w+)\.html"', (site / "index.html").read_text()
    )
    assert list(dict.fromkeys(listed)) == notebooks
    for notebook in notebooks:
        assert f"<h1>{notebook[:2].upper()} " in (site / "notebooks" / f"{notebook}.html").read_text(), notebook


def test_every_link_leads_to_a_file_of_the_site_and_to_a_place_in_it(site, pages):
    broken = []
    for name, page in pages.items():
        for link in page.links:
            scheme, host, path, _, anchor = urlsplit(urljoin(f"site:///{name}", link))
            if scheme != "site" or host:
                continue
            target = unquote(path).lstrip("/")
            anchors = pages[target].anchors if anchor and target in pages else {unquote(anchor)}
            if not (site / target).is_file() or unquote(anchor) not in anchors:
                broken.append((name, link))
    assert not broken


def test_no_page_loads_anything_from_elsewhere(pages, site):
    for name in pages:
        text = (site / name).read_text()
        loaded = re.findall(r'<(?:script|img|iframe|source)\b[^>]*?\bsrc="(\w+:)?//', text)
        loaded += re.findall(r'<link\b[^>]*?rel="(?:stylesheet|preload|icon)"[^>]*?href="https?:', text)
        assert not loaded, name


def test_every_picture_has_an_alternative_text(pages):
    assert not {name: page.mute for name, page in pages.items() if page.mute}


def test_downloads_are_the_notebooks_themselves(site, pages):
    for name in chapters(pages):
        stem = Path(name).stem
        assert (site / "_sources/notebooks" / f"{stem}.ipynb").read_bytes() == (
            ROOT / "notebooks" / f"{stem}.ipynb"
        ).read_bytes()
        assert f"../_sources/notebooks/{stem}.ipynb" in pages[name].links


def test_buttons_lead_to_the_repository_that_is_set_and_there_are_none_without(pages, tmp_path):
    services = ("colab.research.google.com", "mybinder.org")
    for page in pages.values():
        assert not [link for link in page.links if urlsplit(link).hostname in services]
    book, name = tmp_path / "book", "notebooks/00_start_here"
    (book / "notebooks").mkdir(parents=True)
    (book / "index.md").write_text(f"# A book\n\n```{{toctree}}\n{name}\n```\n")
    shutil.copy(ROOT / f"{name}.ipynb", book / "notebooks")
    sphinx = [sys.executable, "-m", "sphinx", "-q", "-c", ROOT / "site", f"-Drepository={REPOSITORY}", book, tmp_path]
    assert subprocess.run(sphinx, capture_output=True).returncode == 0  # links to other chapters are warned of
    links = " ".join(Page(tmp_path / f"{name}.html").links)
    for_colab = name.replace("notebooks", "colab")
    assert f"https://colab.research.google.com/github/somebody/somewhere/blob/main/{for_colab}.ipynb" in links
    assert f"https://mybinder.org/v2/gh/somebody/somewhere/main?urlpath=lab/tree/{name}.ipynb" in links
    assert f"{REPOSITORY} " in f"{links} "


# In a browser


@pytest.fixture(scope="module")
def address(site):
    handler = functools.partial(Quiet, directory=site)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *args):
        pass


@pytest.fixture(scope="module")
def browser():
    cut = "disable-dev-shm-usage", "host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1"  # the network is
    with chromium(*cut, loggingPrefs={"performance": "ALL", "browser": "ALL"}) as browser:
        browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", DESK)
        browser.set_script_timeout(60)
        yield browser


@pytest.fixture
def opened(browser, address):
    """Return a function that opens a page; afterwards, nothing was asked for elsewhere, and no script failed."""

    def open_page(name):
        browser.get(f"{address}/{name}")
        return browser

    for kind in ("performance", "browser"):
        browser.get_log(kind)  # what there was before
    yield open_page
    asked = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    asked = [each["params"]["request"]["url"] for each in asked if each["method"] == "Network.requestWillBeSent"]
    assert asked
    assert not [url for url in asked if not url.startswith((f"{address}/", "data:", "blob:"))]
    assert not [entry for entry in browser.get_log("browser") if entry["level"] == "SEVERE"]


def wait(browser, condition, seconds=30):
    return WebDriverWait(browser, seconds, poll_frequency=0.1).until(condition)


SHOWN = "return arguments[0].querySelector('img').src"
# Move a figure's control over all its values, with the others at their start, and with each of them elsewhere; return
# the most pictures that were seen in a row, the texts beside the control, and whether all went back to the start.
MOVE = """
const [figure, k] = arguments, inputs = [...figure.querySelectorAll("input")], [img] = figure.querySelectorAll("img");
const move = (i, value) => { inputs[i].value = value; inputs[i].dispatchEvent(new Event("input", {bubbles: true})); };
const start = inputs.map(input => input.value), back = () => start.forEach((value, i) => move(i, value));
const before = img.src, texts = new Set();
let most = 0;
for (const other of inputs.keys()) {
    const pictures = new Set();
    back();
    if (other != k) move(other, start[other] == "0" ? inputs[other].max : "0");
    for (let value = 0; value <= Number(inputs[k].max); value++) {
        move(k, value);
        pictures.add(img.src);
        texts.add(inputs[k].parentElement.querySelector("output").value);
    }
    most = Math.max(most, pictures.size);
}
back();
return [most, texts.size, img.src == before];
"""
FORMULAS = """
const done = arguments[0];
MathJax.startup.promise.then(() => document.fonts.ready).then(() => done({
    raw: document.querySelectorAll(".math").length,
    set: [...document.querySelectorAll("mjx-container")].filter(each => each.offsetWidth > 0).length,
    wrong: document.querySelectorAll("mjx-merror").length,
    spoken: document.querySelectorAll("mjx-assistive-mml math").length,
    fonts: [...document.fonts].filter(each => /MJX/.test(each.family) && each.status == "loaded").length,
}));
"""
CUT = """
return [...document.querySelectorAll("div.cell_input pre")].filter(each => each.scrollWidth > each.clientWidth)
    .map(each => each.textContent.split("\\n").reduce((a, b) => a.length < b.length ? b : a));
"""
RUN_AXE = """
const done = arguments[0];
axe.run(document, {resultTypes: ["violations"]}).then(result => done(result.violations
    .filter(each => ["serious", "critical"].includes(each.impact))
    .map(each => [each.id, each.nodes.length, each.nodes[0].html.slice(0, 200)])));
"""
THEME = "localStorage.setItem('mode', arguments[0]); localStorage.setItem('theme', arguments[0])"


@in_a_browser
def test_search_finds_a_word_in_its_chapter_and_in_the_glossary(opened):
    browser = opened("search.html?q=roofline")
    results = "#search-results ul.search li a"
    wait(browser, lambda b: "search finished" in b.find_element(By.CSS_SELECTOR, "#search-results").text.lower())
    found = [urlsplit(each.get_attribute("href")).path for each in browser.find_elements(By.CSS_SELECTOR, results)]
    assert {"/notebooks/03_find_the_floor.html", "/notebooks/glossary.html"} <= set(found)
    assert not [path for path in found if path.startswith("/mlpkit/")]  # source text would bury the chapters


@in_a_browser
def test_search_names_the_section_and_a_chapter_comes_before_the_glossary(opened):
    browser = opened("search.html?q=dropout")
    wait(browser, lambda b: b.find_elements(By.CSS_SELECTOR, "#search-results ul.search li a[href*='#']"))
    first = browser.find_element(By.CSS_SELECTOR, "#search-results ul.search li a")
    wait(browser, lambda b: "#" in first.get_attribute("href"))
    page, section = urlsplit(first.get_attribute("href"))[2], urlsplit(first.get_attribute("href")).fragment
    assert page.startswith("/notebooks/")
    assert "glossary" not in page
    assert ": " in first.text
    browser.get(first.get_attribute("href"))
    assert "dropout" in browser.find_element(By.ID, section).text.lower()


@in_a_browser
def test_a_menu_goes_when_its_page_moves_on(opened):
    browser = opened("notebooks/01_build_the_mlp.html")
    browser.find_element(By.CSS_SELECTOR, ".dropdown-download-buttons > button").click()
    menu = browser.find_element(By.CSS_SELECTOR, ".dropdown-download-buttons > .dropdown-menu")
    wait(browser, lambda b: menu.is_displayed())
    browser.execute_script("window.scrollBy(0, 400)")
    browser.execute_cdp_cmd("Input.dispatchMouseEvent", dict(type="mouseMoved", x=600, y=600))
    wait(browser, lambda b: not menu.is_displayed())


@in_a_browser
def test_every_slider_of_every_figure_changes_it_and_no_chapter_is_wider_than_a_phone(opened, pages):
    """Three questions to each chapter, which is opened once: that takes longest."""
    figures, wide, cut = 0, [], []
    for name in chapters(pages):
        browser = opened(name)
        for figure in browser.find_elements(By.CSS_SELECTOR, "figure[id^=frames-]"):
            for k, slider in enumerate(figure.find_elements(By.TAG_NAME, "input")):
                pictures, texts, back = browser.execute_script(MOVE, figure, k)
                values = int(slider.get_attribute("max")) + 1
                assert (min(pictures, 2), texts, back) == (2, values, True), (name, figure.get_attribute("id"), k)
            figures += 1
        cut += [(name, each) for each in browser.execute_script(CUT)]
        with on_a_phone(browser):
            wide += [name] if width(browser) > PHONE["width"] else []
    assert figures >= len(chapters(pages))
    assert not wide
    assert not cut


@in_a_browser
def test_a_slider_moves_with_the_keyboard(opened):
    browser = opened("notebooks/00_start_here.html")
    figure = browser.find_element(By.CSS_SELECTOR, "figure[id^=frames-]")
    before = browser.execute_script(SHOWN, figure)
    figure.find_element(By.CSS_SELECTOR, "input").send_keys(Keys.ARROW_RIGHT)
    assert browser.execute_script(SHOWN, figure) != before


@in_a_browser
def test_formulas_are_set_in_mathjaxs_own_letters(opened):
    browser = opened("notebooks/01_build_the_mlp.html")
    found = browser.execute_async_script(FORMULAS)
    assert found["set"] == found["raw"] == found["spoken"] > 20
    assert found["fonts"] >= 2
    assert found["wrong"] == 0


@contextlib.contextmanager
def on_a_phone(browser):
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", PHONE)
    yield
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", DESK)


def width(browser):
    return browser.execute_script("return document.documentElement.scrollWidth")


@in_a_browser
@pytest.mark.parametrize("name", ["index", "notebooks/glossary", "mlpkit/kernels/ptx.cuh", "notebooks/00_start_here"])
def test_no_page_that_a_phone_opens_is_wider(opened, browser, name):
    with on_a_phone(browser):
        assert width(opened(f"{name}.html")) <= PHONE["width"]


@pytest.fixture(scope="module")
def axe(tmp_path_factory):
    if not shutil.which("npm"):
        pytest.skip("no npm here, with which axe-core would come")
    folder = tmp_path_factory.mktemp("npm")
    command = ["npm", "install", "--prefix", folder, "--ignore-scripts", "--no-audit", "--no-fund", AXE]
    if subprocess.run(command, capture_output=True, timeout=120).returncode:
        pytest.skip(f"npm can't get {AXE}: no package registry within reach")
    return (folder / "node_modules/axe-core/axe.min.js").read_text(encoding="utf-8")


@in_a_browser
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_axe_finds_no_serious_violation(opened, axe, theme):
    names = [
        "index",
        "search",
        "notebooks/glossary",
        "notebooks/00_start_here",
        "notebooks/08_launch_less",
        "mlpkit/nn",
    ]
    opened("index.html").execute_script(THEME, theme)
    for name in names:
        browser = opened(f"{name}.html")
        wait(browser, lambda b: b.execute_script("return document.readyState") == "complete")
        assert browser.execute_script("return document.documentElement.dataset.theme") == theme
        browser.execute_script(axe)
        assert not browser.execute_async_script(RUN_AXE), name
