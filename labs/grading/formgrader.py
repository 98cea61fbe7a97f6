"""A second lock on the pages of nbgrader's Formgrader: a script runs there only if nbgrader's own templates have it.

What `layout` lays out is inert, and this holds where that failed: each page has a Content-Security-Policy with a
number, new for each page, that the templates' scripts have, too (https://www.w3.org/TR/CSP3, "nonce"). A student's text
is none of a template, and cannot know the number. Names that stand in a page's address are escaped.
"""

import base64
import hashlib
import re
import secrets
from contextvars import ContextVar

from jinja2 import BaseLoader
from nbgrader.server_extensions.formgrader.base import BaseHandler

HANDLERS = ("toggle_name(true);", "toggle_name(false);", "toggleAllNames()")  # attributes `onclick` of the templates
MATHJAX = "https://cdnjs.cloudflare.com"  # from where nbconvert's template loads it, with its styles and fonts
NONCE: ContextVar[str] = ContextVar("nonce")


class _Marked(BaseLoader):
    """Templates as another loader finds them, in which each script bears the number of the page."""

    def __init__(self, loader):
        self.loader = loader

    def get_source(self, environment, template):
        text, *rest = self.loader.get_source(environment, template)
        return re.sub(r"<script(?=[\s>])", '<script nonce="{{ nonce() }}"', text), *rest

    def list_templates(self):
        return self.loader.list_templates()


def guard():
    """Lock all pages of Formgrader in this server, whose Jupyter extension has been loaded. Twice does no harm."""
    BaseHandler.content_security_policy = property(_policy)
    BaseHandler.exporter = property(_exporter)
    BaseHandler.render = _render


def _policy(handler):
    digests = (base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in HANDLERS)
    scripts = [f"'nonce-{_nonce(handler)}'", "'strict-dynamic'", "'unsafe-hashes'", *(f"'sha256-{d}'" for d in digests)]
    return "; ".join(
        [
            "default-src 'self'",
            f"script-src {' '.join(scripts)} 'unsafe-eval'",  # MathJax 2 evaluates its configuration
            f"style-src 'self' 'unsafe-inline' {MATHJAX}",
            f"font-src 'self' data: {MATHJAX}",
            "img-src 'self' data:",
            *(f"{what} 'none'" for what in ("object-src", "base-uri", "frame-src", "worker-src")),
            "form-action 'self'",
            "frame-ancestors 'self'",
        ]
    )


def _nonce(handler):
    if not hasattr(handler, "page_nonce"):
        handler.page_nonce = secrets.token_urlsafe(16)
    return handler.page_nonce


def _exporter(handler):
    NONCE.set(_nonce(handler))
    exporter = handler.settings["nbgrader_exporter"]
    _mark(exporter.environment)
    return exporter


def _render(handler, name, **values):
    NONCE.set(_nonce(handler))
    environment = handler.settings["nbgrader_jinja2_env"]
    environment.autoescape = True
    _mark(environment)
    return environment.get_template(name).render(**values)


def _mark(environment):
    """Let templates that an environment loads from now on bear the number; it keeps none that it loaded before."""
    if not isinstance(environment.loader, _Marked):
        environment.loader = _Marked(environment.loader)
        environment.globals["nonce"] = NONCE.get
        environment.cache.clear()
