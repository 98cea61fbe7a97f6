"""A student's words as HTML in which nothing acts: no script, no link, no address that is asked for.

What Markdown makes of them is shown, paragraphs, lists, tables, code and formulas; HTML of their own is shown as it was
typed. nh3, a sanitizer, has the last word. A page is shown on Jupyter's own origin, where a script may do all that
whoever reads it may do.
"""

import html
import re
import signal
import time
from contextlib import contextmanager

import nh3
from mistune import HTMLRenderer
from nbconvert.filters.markdown_mistune import IPythonRenderer, MarkdownWithMath

from mlpkit.words import printable

from .submission import PICTURES

LONGEST = 10_000  # characters of a cell that are shown: Formgrader takes a second for as many
WIDEST = 300  # characters of a line of code; a paragraph of words may be one line
SECONDS = 5  # for a cell
DEEPEST = 30  # elements in elements
KEPT = "\n\t\xa0\u200b\u200c\u200d\ufe0f"  # of what is not printable
TAGS = {"p", "br", "hr", "em", "strong", "del", "code", "pre", "blockquote", "ul", "ol", "li", "dl", "dt", "dd"}
TAGS |= {"h1", "h2", "h3", "h4", "h5", "h6", "table", "thead", "tbody", "tr", "th", "td", "img"}
PICTURE = re.compile(rf"data:({'|'.join(PICTURES)});base64,[A-Za-z0-9+/]*=*")
# Of TeX's: they make links, attributes and other commands, or load some (MathJax: "HTML", "Macros", "Require").
COMMANDS = """href url class cssId style data require autoload unicode mmlToken bbox includegraphics def let gdef edef
xdef newcommand renewcommand providecommand newenvironment renewenvironment DeclareMathOperator DeclarePairedDelimiter
Newextarrow setOptions texttip tip mathtip toggle html htmlClass htmlId htmlStyle htmlData""".split()  # noqa: SIM905
COMMAND = re.compile(rf"\\(?={'|'.join(COMMANDS)})")
TAG = re.compile(r"<(/?)([a-z]\w*)")


class _Renderer(IPythonRenderer):
    """Markdown as Formgrader reads it, without links, colours, and pictures from elsewhere."""

    def __init__(self, pictures):
        super().__init__(escape=True, exclude_anchor_links=True)
        self.pictures = pictures

    def block_code(self, code, info=None):
        return HTMLRenderer.block_code(self, code)

    def link(self, text, url, title=None):
        said = html.escape(url)
        return text if said in text else f"{text} ({said})"

    def image(self, text, url, title=None):
        ((kind, data),) = self.pictures.get(url.removeprefix("attachment:"), {"": ""}).items()
        return f'<img src="data:{kind};base64,{data}" alt="">' if data else f"{text} ({html.escape(url)})"


def markdown(source, pictures=None):
    """Return HTML in one line, which Markdown passes on as it is. pictures: {name: {type: base64}}."""
    source = shown(source)
    try:
        with _seconds(SECONDS):
            made = MarkdownWithMath(renderer=_Renderer(pictures or {})).render(source)
            clean = nh3.clean(
                made,
                tags=TAGS,
                attributes={"img": {"src", "alt"}, "ol": {"start"}},
                attribute_filter=lambda tag, name, value: value if name != "src" or PICTURE.fullmatch(value) else None,
                url_schemes={"data"},
                link_rel=None,
            )
        if _depth(clean) > DEEPEST:
            return text(source)
    except Exception:  # whatever odd words lead to, lateness included
        return text(source)
    return _one_line(clean)


def text(source):
    """Return text as HTML in one line that shows it as it was typed."""
    return _one_line(f"<pre>{html.escape(shown(source))}</pre>")


def code(source):
    """Return as much of a text as is shown of code, without blanks at lines' ends: they cost a highlighter seconds."""
    lines = map(str.rstrip, shown(source).split("\n"))
    return "\n".join(line if len(line) <= WIDEST else f"{line[:WIDEST]} [...]" for line in lines)


def shown(source):
    """Return as much of a text as is shown, with what is not printable written out, and a word where it is cut."""
    cut = f"\n[... {len(source) - LONGEST:,} more characters]" if len(source) > LONGEST else ""
    return printable(source[:LONGEST], KEPT) + cut


def _one_line(clean):
    # A blank line would end the HTML, and what is behind it would be read as Markdown.
    plain = COMMAND.sub("\N{SET MINUS}", clean).replace("\n", "&#10;")
    return f"<div>{plain}</div>"


def _depth(clean):
    depth = deepest = 0
    for end, name in TAG.findall(clean):
        depth += 0 if name in ("br", "hr", "img") else -1 if end else 1
        deepest = max(deepest, depth)
    return deepest


@contextmanager
def _seconds(limit):
    """Raise TimeoutError in the block when so many seconds are over; in the main thread only."""

    def late(*_):
        raise TimeoutError

    began, before = time.monotonic(), signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, limit)
    try:
        yield began
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
