"""How Sphinx sets the book. `site/build.py` collects the pages and calls Sphinx."""

import importlib.resources
import json
import re
import shutil
from functools import partial
from pathlib import Path

from myst_nb.core.render import NbElementRenderer

# The one setting. With an address such as "https://github.com/somebody/mlpkit", pages get buttons that lead there and
# that open a chapter in Colab, where `make colab` has written it for, and in Binder.
repository = ""

project = "One network, every way to train it"
author = "the authors of mlpkit"
copyright = "2026, text and figures CC BY 4.0, code MIT"
extensions = ["myst_nb"]
templates_path: list[str] = []
root_doc = "index"

nb_execution_mode = "off"
nb_ipywidgets_js: dict = {}
# A figure under sliders is stored in two forms; the one that needs no kernel is shown.
nb_mime_priority_overrides = [("html", "text/html", 0)]
myst_enable_extensions = ["dollarmath", "deflist"]
myst_heading_anchors = 3

html_theme = "sphinx_book_theme"
html_title = project
html_static_path = ["static"]
html_favicon = "static/favicon.svg"
html_context = {"default_mode": "auto"}  # light or dark, as the reader's system has it
html_css_files = ["book.css"]
html_js_files = [("book.js", {"defer": "defer"})]
html_search_scorer = str(Path(__file__).with_name("scorer.js"))
html_scaled_image_link = False
html_show_sphinx = False
html_copy_source = True
html_theme_options = {
    "navbar_persistent": [],
    "article_header_end": ["article-header-buttons.html"],
    "path_to_docs": "",
    "use_fullscreen_button": False,
    "home_page_in_toc": True,
    "show_toc_level": 2,
    "search_bar_text": "Search the book",
    "secondary_sidebar_items": ["page-toc.html"],
}

# MathJax 3 lies beside the pages: version 4 asks another server for its fonts.
MATHJAX = ("tex-chtml-full.js", "output/chtml/fonts/woff-v2")
mathjax_path = "mathjax/tex-chtml-full.js"
mathjax3_config = {"options": {"enableMenu": False}}


def setup(app):
    app.add_config_value("repository", repository, "html")
    app.add_config_value("printed", False, "html", bool)
    app.connect("config-inited", add_repository)
    app.connect("source-read", prepare)
    app.connect("html-page-context", partial(share_contents, {}), priority=400)
    app.connect("html-page-context", offer_pdf, priority=900)
    app.connect("html-page-context", lead_to_colab, priority=900)
    app.connect("build-finished", add_mathjax)
    NbElementRenderer.render_image = with_alt(NbElementRenderer.render_image)


def add_repository(app, config):
    if config.repository:
        config.html_theme_options |= {
            "repository_url": config.repository,
            "repository_branch": "main",
            "use_repository_button": True,
            "launch_buttons": {
                "notebook_interface": "jupyterlab",
                "binderhub_url": "https://mybinder.org",
                "colab_url": "https://colab.research.google.com",
            },
        }


def prepare(app, docname, source):
    """Lead links to a file of code, or to a folder, to its page; number a chapter; link the glossary to chapters."""
    here = (Path(app.srcdir) / docname).parent

    def to_page(match):
        return f"]({match[1]}.md{match[2]}" if (here / f"{match[1]}.md").is_file() else match[0]

    text = re.sub(r"\]\(README\.md\b", "](index.md", source[0]) if here == Path(app.srcdir) else source[0]
    text = re.sub(r"\]\((?!\w+:|#)([^)\s#]+?)/?([#)])", to_page, text)
    if chapter := re.match(r"notebooks/([0-9a-z]\d)_", docname):
        notebook = json.loads(text)
        title = next(cell for cell in notebook["cells"] if cell["cell_type"] == "markdown")
        title["source"] = re.sub(r"(?m)\A# ", f"# {chapter[1].upper()} ", "".join(title["source"]))
        text = json.dumps(notebook)
    if docname == "notebooks/glossary":
        names = {path.name[:2]: path.name for path in here.glob("*.ipynb")}
        text = re.sub(r"\[([0-9, a-z]+)\]$", lambda match: link_chapters(match[1], names), text, flags=re.MULTILINE)
    source[0] = text


def link_chapters(numbers, names):
    linked = [f"[{n}]({names[n]})" if n in names else n for n in numbers.split(", ")]
    return f"({', '.join(linked)})"


def with_alt(render_image):
    """Give a figure the alternative text that its output has, which MyST-NB leaves out."""

    def render(self, data):
        made = render_image(self, data)
        made[0]["alt"] = data.output_metadata.get(data.mime_type, {}).get("alt", "")
        return made

    return render


def share_contents(known, app, pagename, templatename, context, doctree):
    """Set the contents at the side once a folder for pages that are not in them: a fifth of the work."""
    make, folder = context.get("toctree"), pagename.rpartition("/")[0]

    def toctree(**wishes):
        key = folder, *sorted(wishes.items())
        if key not in known:
            known[key] = make(**wishes)
        return known[key]

    if pagename not in app.env.toctree_includes[app.config.root_doc]:
        context["toctree"] = toctree


def offer_pdf(app, pagename, templatename, context, doctree):
    """Let the button for a PDF lead to the file, where there is one, instead of printing."""
    if app.config.printed and re.match(r"notebooks/[0-9a-z]\d_", pagename):
        for button in (each for group in context["header_buttons"] for each in group.get("buttons", ())):
            if button.pop("javascript", None) == "window.print()":
                button |= {"type": "link", "url": context["pathto"](f"{pagename}.pdf", 1), "tooltip": "Download PDF"}


def lead_to_colab(app, pagename, templatename, context, doctree):
    """Let Colab's button lead to the chapter that is written for it: `colab.py` says how it differs."""
    for button in (each for group in context.get("header_buttons", ()) for each in group.get("buttons", ())):
        if str(button.get("url")).startswith("https://colab."):
            button["url"] = button["url"].replace("/main/notebooks/", "/main/colab/")


def add_mathjax(app, exception):
    package = Path(str(importlib.resources.files("sphinx-mathjax-offline")))
    for name in MATHJAX:
        source, target = package / "static" / "mathjax" / name, Path(app.outdir) / "_static" / "mathjax" / name
        if source.is_dir():
            shutil.copytree(source, target, dirs_exist_ok=True)
        else:
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, target)
