"""What a student wrote is shown on Jupyter's own origin, to somebody who may do all there: nothing of it acts."""

import os
import re
import secrets
import subprocess
import sys
import time
import urllib.parse
from contextlib import contextmanager
from html.parser import HTMLParser

import nbformat
import pytest
from headless import BROWSER, answers, chromium, free_port, wait
from nbconvert.filters.highlight import Highlight2HTML
from nbconvert.filters.markdown_mistune import IPythonRenderer, MarkdownWithMath
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from submissions import ROOT, answer, cell

pytest.importorskip("nbgrader", reason="`make test-labs` adds what these tests need")
pytest.importorskip("nh3", reason="`make test-labs` adds what these tests need")
from nbgrader.api import Gradebook

from labs.grading import inert, layout, table


def in_a_browser(test):
    for mark in BROWSER:
        test = mark(test)
    return test


RUN = "localStorage.ran=(localStorage.ran||String())+[{}]+String.fromCharCode(32)"
SVG = "<svg xmlns='http://www.w3.org/2000/svg' onload='{}'><script>{}</script></svg>"
WORDS = [  # {} is what would run
    "<script>{}</script>",
    "<img src=x onerror='{}'>",
    "a <b onmouseover='{}' onclick='{}' style='position:fixed;inset:0;z-index:99'>b</b>",
    "<svg onload='{}'></svg>",
    "<svg><animate onbegin='{}' attributeName=x dur=1s></svg>",
    "<svg><a xlink:href='javascript:{}'><text y=9>a</text></a></svg>",
    "<math><mtext><table><mglyph><style><!--</style><img title='--&gt;&lt;img src=1 onerror={}&gt;'>",
    "<details open ontoggle='{}'><summary>a</summary></details>",
    "<iframe srcdoc='&lt;script&gt;{}&lt;/script&gt;'></iframe>",
    "<iframe src='javascript:{}'></iframe>",
    "<object data='data:text/html,<script>{}</script>'></object><embed src='javascript:{}'>",
    "<input autofocus onfocus='{}'>",
    "<form action='javascript:{}'><button>a</button></form>",
    "<base href='https://example.org/'><link rel=stylesheet href='x'><meta http-equiv=refresh content='0;url=/lab'>",
    "<video><source onerror='{}'></video><audio src=x onerror='{}'></audio>",
    "[a](javascript:{}) <javascript:{}> [b][1]\n\n[1]: javascript:{}",
    "![a](x\" onerror=\"{}) ![b](attachment:a.svg) <img src='attachment:a.svg'>",
    "```html <script>{}</script>\n</code></pre><script>{}</script>\n```\n\n```mermaid\n<img src=x onerror='{}'>\n```",
    "$\\href{{javascript:{}}}{{a}}$ $$\\require{{html}}$$\n\n\\begin{{a}}<img src=x onerror='{}'>\\end{{a}}",
    "<div>\n\n$$<img src=x onerror='{}'>$$\n\n</div><noscript><p title='</noscript><script>{}</script>'>",
    "<template><script>{}</script></template><xmp></xmp><script>{}</script><plaintext>",
    "<a id=MathJax></a><form id=base_url name=submission_id></form><a href='/formgrader/manage_students/x'>a</a>",
]


def payload(text, number):
    return text.replace("{}", RUN.replace("{}", str(number))).replace("{{", "{").replace("}}", "}")


def hostile(course):
    """Let ada hand in cells that would run, as words, as outputs and as what was pasted."""
    path = course / "submitted" / "ada" / "lab00" / "lab00.ipynb"
    notebook = answer(nbformat.read(path, as_version=4), "explain", payload(WORDS[0] + "\n\n" + WORDS[1], 96))
    run = [payload(text, number) for number, text in enumerate(WORDS)]
    svg = payload(SVG, 97)
    picture = {"a.svg": {"image/svg+xml": svg, "image/png": f'x" onerror="{payload("{}", 98)}'}}
    notebook.cells += [nbformat.v4.new_markdown_cell(text, attachments=picture) for text in run]
    notebook.cells += [nbformat.v4.new_raw_cell(text) for text in run[:3]]
    shown = {
        "text/html": run[0],
        "image/svg+xml": svg,
        "application/javascript": payload("{}", 99),
        "text/latex": run[1],
    }
    data = [nbformat.v4.new_output("display_data", {kind: text}) for kind, text in shown.items()]
    notebook.cells.append(nbformat.v4.new_code_cell("# " + run[0], outputs=data))
    notebook.metadata["widgets"] = {
        "application/vnd.jupyter.widget-state+json": {"state": {}, "a": "</script>" + run[0]}
    }
    nbformat.write(notebook, path)
    return notebook


@contextmanager
def formgrader(course, folder):
    """Serve a course as an instructor does; yield a browser, and a function that returns the address of a page."""
    port, token = free_port(), secrets.token_hex(16)
    line = [sys.executable, "-m", "jupyterlab", "--no-browser", "--allow-root", f"--ServerApp.port={port}"]
    line += ["--ServerApp.ip=127.0.0.1", "--ServerApp.port_retries=0"]
    places = {f"JUPYTER_{name}_DIR": str(folder / name) for name in ("CONFIG", "DATA", "RUNTIME")}
    paths = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    places |= {"JUPYTER_TOKEN": token, "PYTHONPATH": paths}
    with open(folder / "server.log", "w") as log:
        server = subprocess.Popen(line, cwd=course, env=os.environ | places, stdout=log, stderr=log)
        try:
            wait(server, 120).until(lambda s: s.poll() is not None or answers(port, token))
            with chromium("host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1") as browser:
                browser.get(f"http://127.0.0.1:{port}/api/status?token={token}")  # logs in
                yield browser, lambda page: f"http://127.0.0.1:{port}/formgrader/{page}"
        finally:
            server.terminate()
            server.wait(30)


def ran(browser):
    """Return the numbers of the payloads that ran."""
    wait(browser, 60).until(lambda b: b.execute_script("return document.readyState") == "complete")
    time.sleep(1)
    return set(browser.execute_script("return localStorage.ran || ''").split())


def pressed(browser, address):
    """Open a page, press what may be pressed in a student's cells, and return the numbers of the payloads that ran."""
    browser.get(address)
    wait(browser, 60).until(lambda b: b.find_elements(By.CSS_SELECTOR, "input.score"))
    for found in browser.find_elements(By.CSS_SELECTOR, ".rendered_html a, .rendered_html button, .rendered_html b"):
        browser.execute_script("arguments[0].dispatchEvent(new MouseEvent('click', {bubbles: true}))", found)
    return ran(browser)


def shown(course, student="ada"):
    """Return the number of a student's submission, in the addresses of Formgrader's pages."""
    with Gradebook(f"sqlite:///{course / 'gradebook.db'}", "mlpkit") as book:
        return book.find_submission_notebook("lab00", "lab00", student).id


@in_a_browser
def test_nothing_of_a_submission_runs_in_formgrader(course, tmp_path):
    """Neither as it is laid out, nor where what is laid out were the submission itself; but without both it would."""
    raw, said = hostile(course), []
    table.grade_all(course, said.append)
    assert len(said) == 1
    with formgrader(course, tmp_path) as (browser, at):
        page = at(f"submissions/{shown(course)}/")
        assert not pressed(browser, page)
        assert browser.current_url.partition("#")[0] == page
        laid_out = course / "autograded" / "ada" / "lab00" / "lab00.ipynb"
        raw.cells = [cell for cell in raw.cells if "http-equiv" not in cell.source]  # leaves the page, runs nothing
        nbformat.write(raw, laid_out)
        assert not pressed(browser, page)
        browser.execute_cdp_cmd("Page.setBypassCSP", {"enabled": True})
        browser.get(page)
        assert len(ran(browser)) > 8


@in_a_browser
def test_formgrader_works_as_before(course, tmp_path):
    """With names in a page's address that would run, too."""
    path = course / "submitted" / "ada" / "lab00" / "lab00.ipynb"
    words = "A *word*, `a < b`, and\n\n- $a_1 < b_2$\n- ![a picture](attachment:p.png)"
    notebook = answer(nbformat.read(path, as_version=4), "explain", words)
    picture = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
    cell(notebook, "explain").attachments = {"p.png": {"image/png": picture}}
    nbformat.write(notebook, path)
    table.grade_all(course, lambda line: None)
    with formgrader(course, tmp_path) as (browser, at):
        browser.get(at(f"submissions/{shown(course)}/"))
        field = wait(browser, 60).until(lambda b: b.find_element(By.CSS_SELECTOR, "input#explain.score"))
        words = field.find_element(By.XPATH, "ancestor::div[contains(@class, 'nbgrader_cell')]").find_element(
            By.CSS_SELECTOR, ".rendered_html"
        )
        assert words.text == "A word, a < b, and\n$a_1 < b_2$"
        assert words.find_element(By.TAG_NAME, "img").get_property("naturalWidth") == 1
        browser.find_element(By.CSS_SELECTOR, ".glyphicon-eye-open").click()
        assert "ada" in browser.find_element(By.CSS_SELECTOR, "a.name-shown").text
        time.sleep(1)  # its page asks for the points so far
        field.send_keys("2", Keys.TAB)
        wait(browser, 20).until(lambda b: graded(course) == 2)
        for there in ("manage_assignments", "gradebook", "gradebook/lab00", "gradebook/lab00/lab00", "manage_students"):
            browser.get(at(there))
            wait(browser, 20).until(
                lambda b: re.search("lab00|ada|Submission #1", b.find_element(By.TAG_NAME, "table").text)
            )
        odd = urllib.parse.quote('"</script><script>ran=1</script>', safe="")
        browser.get(at(f"manage_students/{odd}"))
        assert browser.execute_script("return window.ran") is None


def graded(course):
    with Gradebook(f"sqlite:///{course / 'gradebook.db'}", "mlpkit") as book:
        return book.find_grade("explain", "lab00", "lab00", "ada").manual_score


@pytest.mark.parametrize("text", WORDS)
def test_words_are_inert_however_markdown_reads_them_again(text):
    """What is laid out is one line of HTML, which Markdown passes on."""
    source = payload(text, 1)
    for each in (source, f"- {source}", source.replace(" ", "\n\n"), f"> {source}", f"|a|\n|-|\n|{source}|"):
        made = inert.markdown(each)
        assert "\n" not in made
        assert MarkdownWithMath(renderer=IPythonRenderer(escape=False)).render(made).strip() == made
        page = Elements(made)
        assert page.tags <= inert.TAGS | {"div"}
        assert page.attributes <= {"src", "alt", "start"}
        assert "\\href" not in made
        assert "\\require" not in made


class Elements(HTMLParser):
    """The tags and attributes in a text."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.attributes = set(), set()
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attributes}
        assert all(value.startswith("data:image/") for name, value in attributes if name == "src")


COSTLY = ["*" * 9999, "[" * 9999, "a**b" * 2500, "> " * 5000, "- " * 5000, "<b>" * 3333, "![[" * 3333, "`" * 9999]
COSTLY += ["." * 100_000, "\\begin{a}" * 1100, "\n" * 9999, "$" * 9999, "&#" * 5000, "|a" * 5000, "\u202e\x00\x1b[31m"]


@pytest.mark.parametrize("text", COSTLY, ids=[text[:4].encode("unicode_escape").decode() for text in COSTLY])
def test_costly_words_are_shown_soon(text):
    for show in (inert.markdown, inert.text, inert.code):
        began = time.monotonic()
        made = show(text)
        assert time.monotonic() - began < inert.SECONDS + 5
        assert len(made) < 20 * inert.LONGEST
        assert not set("\u202e\x00\x1b") & set(made)


@pytest.mark.parametrize("text", [" \n", "\t\n", "x = !\n \n", "%%perl\n" + "m{"])
def test_costly_code_is_highlighted_soon(text):
    """Lines of a blank took twenty seconds."""
    made = nbformat.v4.new_code_cell(text * (9999 // len(text)))
    layout._show(made, layout.SHOWN)
    began = time.monotonic()
    Highlight2HTML()(made.source, language="ipython3")
    assert time.monotonic() - began < inert.SECONDS


def test_a_paragraph_in_one_line_is_shown_to_its_end():
    """An editor of notebooks has no other lines."""
    assert inert.markdown("It is n times too long. " * 50 + "*And* more.").endswith("<em>And</em> more.</p>&#10;</div>")


def test_words_below_a_long_cell_are_shown(course):
    path = course / "submitted" / "ada" / "lab00" / "lab00.ipynb"
    notebook = answer(nbformat.read(path, as_version=4), "explain", "My answer.")
    notebook.cells.insert(1, nbformat.v4.new_code_cell("x = 1\n" * 100_000))
    nbformat.write(notebook, path)
    made = layout.lay_out(course / "release" / "lab00" / "lab00.ipynb", path, course / "nowhere", {})
    assert "My answer." in made["notebook"]


def test_what_is_laid_out_is_ours_but_for_words_and_code(course):
    hostile(course)
    folder = course / "release" / "lab00" / "lab00.ipynb"
    path = course / "submitted" / "ada" / "lab00" / "lab00.ipynb"
    made = layout.lay_out(folder, path, course / "nowhere", {"test-shape": "right."})
    notebook = nbformat.reads(made["notebook"], as_version=4)
    nbformat.validate(notebook)
    assert "widgets" not in notebook.metadata
    assert not any(cell.get("attachments") for cell in notebook.cells)
    assert [cell.outputs[0].text for cell in notebook.cells if cell.get("outputs")] == ["right."]
    assert len({cell.id for cell in notebook.cells}) == len(notebook.cells)
