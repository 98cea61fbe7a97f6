"""Build the book as a site: collect its pages, let Sphinx set them, print the chapters with Chromium.

Nothing is executed and nothing downloaded: a page shows the outputs that its notebook has stored.
"""

import argparse
import ast
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import nbformat

ROOT = Path(__file__).resolve().parents[1]
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")
LINK = re.compile(r"\]\((?!\w+:|#)([^)\s#]+)(?:#[^)\s]*)?\)")  # to somewhere in the repository
CODE = re.compile(r"(?ms)^ *(```+|~~~+).*?^ *\1|(?<!`)(`+)(?!`).*?(?<!`)\2(?!`)")
LANGUAGES = {".py": "python", ".cu": "cuda", ".cuh": "cuda", ".sh": "bash", ".toml": "toml", ".yml": "yaml"}
GENERATED = "---\norphan: true\nnosearch: true\n---\n\n"
TOCTREE = "\n```{{toctree}}\n:hidden:\n:maxdepth: 1\n:caption: {}\n\n{}\n```\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--to", type=Path, default=ROOT / "build" / "site", help="the site's folder")
    parser.add_argument("--no-pdf", dest="pdf", action="store_false", help="leave the printed chapters out")
    parser.add_argument("--repository", help="its address, instead of the one in site/conf.py")
    asked = parser.parse_args()

    began, target = time.time(), asked.to.resolve()
    if not may_be_replaced(target):
        sys.exit(f"{target} is no site that was built, and would be replaced as a whole: name a folder of its own.")
    browser = next(filter(None, map(shutil.which, BROWSERS)), None) if asked.pdf else None
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="site-", dir=target.parent) as work:
        site = Path(work, "site")
        set_pages(Path(work), site, browser is not None, asked.repository)
        if browser:
            print_chapters(browser, site)
        elif asked.pdf:
            print("There is no Chromium here: the chapters are not printed, and a page's button prints it instead.")
        size = sum(path.stat().st_size for path in site.rglob("*") if path.is_file())
        if target.exists():
            target.rename(Path(work, "before"))
        site.rename(target)
    print(f"{target / 'index.html'}: {size / 1e6:.0f} MB in {time.time() - began:.0f} s")


def may_be_replaced(target):
    """Say whether nobody loses anything by a new site in this place: there is nothing, or one that Sphinx has made."""
    if not target.exists():
        return True
    return target.is_dir() and ((target / ".buildinfo").is_file() or not any(target.iterdir()))


def set_pages(work, site, printed, repository):
    """Let Sphinx set all pages into the folder `site`. Raises SystemExit where Sphinx has something to say."""
    for name, content in collect().items():
        (work / "pages" / name).parent.mkdir(parents=True, exist_ok=True)
        (work / "pages" / name).write_bytes(content)
    sphinx = [sys.executable, "-m", "sphinx", "--quiet", "--jobs=auto", "--fail-on-warning", "-c", str(ROOT / "site")]
    sphinx += ["-d", str(work / "doctrees"), f"-Dprinted={int(printed)}"]
    sphinx += [] if repository is None else [f"-Drepository={repository}"]
    if status := subprocess.run([*sphinx, work / "pages", site]).returncode:
        sys.exit(status)


# The pages: the README, the chapters, the glossary, the package, and whatever these link to


def collect():
    """Return {name: bytes} of all pages and pictures; a file of code and a folder become a page of Markdown, too.

    Raises SystemExit where a link leads to what there is not.
    """
    chapters, appendices = find_chapters()
    waiting = ["README.md", *chapters, *appendices, "notebooks/glossary.md", "mlpkit", "experiments"]
    seen, pages, missing = set(), {}, []
    while waiting:
        if (name := waiting.pop(0)) in seen:
            continue
        seen.add(name)
        path = ROOT / name
        if path.suffix in (".md", ".ipynb"):
            pages[name] = path.read_bytes()
            for target in links(path):
                inside = Path(os.path.relpath((path.parent / target).resolve(), ROOT)).as_posix()
                if (ROOT / inside).exists() and not inside.startswith(".."):
                    waiting.append(inside)
                else:
                    missing.append(f"{target} in {name}")
        elif path.suffix in (".png", ".svg", ".jpg"):
            pages[name] = path.read_bytes()
        elif path.is_dir():
            content = [each for each in sorted(path.iterdir()) if not each.name.startswith(("__pycache__", "."))]
            pages[f"{name}.md"] = folder_page(name, content).encode()
            waiting += [f"{name}/{each.name}" for each in content if has_page(each)]
        else:
            pages[f"{name}.md"] = code_page(name).encode()
    if missing:
        sys.exit(f"Links lead to what there is not: {', '.join(missing)}.")

    others = [name for name in pages if name.endswith(".md") and not pages[name].startswith(GENERATED.encode())]
    others = [name for name in [*others, "mlpkit.md", "experiments.md"] if name != "README.md"]
    contents = {"Chapters": chapters, "Appendices": appendices, "Beside the chapters": others}
    trees = [TOCTREE.format(title, "\n".join(names)) for title, names in contents.items() if names]
    pages["index.md"] = pages.pop("README.md") + "".join(trees).encode()
    return pages


def find_chapters():
    """Return the names of the chapters and of the appendices, in the order of their numbers."""
    names = sorted(f"notebooks/{path.name}" for path in (ROOT / "notebooks").glob("*.ipynb"))
    return [[name for name in names if re.match(begin, name)] for begin in (r"notebooks/\d\d_", r"notebooks/[a-z]\d_")]


def links(path):
    """Return where a page's text leads to in the repository, as it is written there."""
    if path.suffix == ".ipynb":
        cells = nbformat.read(path, nbformat.NO_CONVERT).cells
        text = "\n\n".join(cell.source for cell in cells if cell.cell_type == "markdown")
    else:
        text = path.read_text(encoding="utf-8")
    return dict.fromkeys(LINK.findall(CODE.sub("", text)))


def has_page(path):
    return path.is_dir() or path.suffix in LANGUAGES


def folder_page(name, inside):
    idea = says(ROOT / name / "__init__.py", whole=True)
    lines = [f"{GENERATED}# `{name}`\n\n{idea}\n"]
    for path in inside:
        text = f"`{path.name}/`" if path.is_dir() else f"`{path.name}`"
        link = f"[{text}]({path.parent.name}/{path.name}.md)" if has_page(path) else text
        lines.append(f"- {link} {says(path / '__init__.py' if path.is_dir() else path)}")
    return "\n".join(lines) + "\n"


def says(path, whole=False):
    """Return what a file says of itself: a module's docstring or its first sentence, a kernel's first comment."""
    text = path.read_text(encoding="utf-8") if path.is_file() and path.suffix in LANGUAGES else ""
    if path.suffix == ".py":
        text = ast.get_docstring(ast.parse(text)) or ""
    else:
        comment = re.findall(r"\A((?:(?://|#) .*\n)*)", text)[0]
        text = " ".join(line.lstrip("/# ") for line in comment.splitlines())
    return text if whole else " ".join(re.split(r"(?<=[.?])\s|\n\n", text, maxsplit=1)[0].split())


def code_page(name):
    text, language = (ROOT / name).read_text(encoding="utf-8"), LANGUAGES.get(Path(name).suffix, "text")
    return f"{GENERATED}# `{name}`\n\n``````{{code-block}} {language}\n:linenos:\n\n{text}\n``````\n"


# The chapters on paper


def print_chapters(browser, site):
    """Write a PDF beside each chapter's page. Raises SystemExit where Chromium writes none."""
    pages = [(site / name).with_suffix(".html") for names in find_chapters() for name in names]
    with ThreadPoolExecutor(2) as pool:
        failures = list(filter(None, pool.map(lambda page: print_page(browser, page), pages)))
    if failures:
        sys.exit("\n".join(failures))


def print_page(browser, page):
    pdf = page.with_suffix(".pdf")
    flags = ["--headless", "--disable-gpu", "--no-pdf-header-footer", "--generate-pdf-document-outline"]
    flags += ["--disable-dev-shm-usage", "--virtual-time-budget=15000"]  # for MathJax
    flags += ["--no-sandbox"] if hasattr(os, "geteuid") and os.geteuid() == 0 else []  # root has to do without it
    with tempfile.TemporaryDirectory() as profile:
        command = [browser, *flags, f"--user-data-dir={profile}", f"--print-to-pdf={pdf}", page.as_uri()]
        done = subprocess.run(command, capture_output=True, text=True)
    return None if pdf.exists() else f"Chromium did not print {page.name}: {done.stderr.strip()[-300:]}"


if __name__ == "__main__":
    main()
