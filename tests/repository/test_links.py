"""Addresses outside are few, well formed and listed, each once: links.toml says which were tried, and with what result.

What is seen here needs no internet. `python tools/try_links.py` asks each address, where there is one.
"""

import re
import runpy
import shutil
import tomllib
from pathlib import Path
from urllib.parse import urlsplit

import pytest

ROOT = Path(__file__).parents[2]
TOOL = runpy.run_path(str(ROOT / "tools" / "try_links.py"))
LISTED = tomllib.loads((ROOT / "tests" / "repository" / "links.toml").read_text(encoding="utf-8"))


def wrong(address):
    """Return what is wrong with an address, None where nothing is."""
    parts = urlsplit(address)
    if not re.fullmatch(r"([a-z0-9]([a-z0-9-]*[a-z0-9])?\.)+[a-z]{2,}", parts.netloc):
        return "its host is no plain name"
    if not re.fullmatch(r"[\w./~%+-]*", parts.path) or "//" in parts.path:
        return "its path has odd characters"
    if parts.query or parts.fragment:
        return "it leads into a page, which moves sooner than the page"
    return None


def place(address):
    """Return what two spellings of one address have in common."""
    parts = urlsplit(address)
    return parts.netloc.removeprefix("www."), re.sub(r"(/|/index\.html)$", "", parts.path)


@pytest.mark.skipif(not shutil.which("git") or not (ROOT / ".git").exists(), reason="no git here to list the files")
def test_every_address_that_a_file_names_is_listed_and_no_other():
    assert {*TOOL["named"]()} == {*LISTED}


@pytest.mark.parametrize("address", LISTED)
def test_an_address_is_well_formed_and_secure_or_says_why_not(address):
    assert wrong(address) is None
    assert address.startswith("https://") != ("http" in LISTED[address])
    assert re.search(r"\d{4}-\d\d-\d\d", LISTED[address]["tried"])


def test_no_place_has_two_addresses():
    assert len({*map(place, LISTED)}) == len(LISTED)


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("see [this](https://example.org/a_b) and", "https://example.org/a_b"),
        ("see <https://example.org/>, where", "https://example.org/"),
        ('url = "http://example.org/a/"', "http://example.org/a/"),
        ('"text": "at https://example.org/a.\\n"', "https://example.org/a."),  # the full stop is taken off later
    ],
)
def test_an_address_is_found_as_it_is_written(text, address):
    assert TOOL["ADDRESS"].findall(text) == [address]


@pytest.mark.parametrize(
    "address",
    [
        "https://example",
        "https://exa mple.org",
        "https://me@example.org",
        "https://example.org//a",
        "https://a.org/b#c",
    ],
)
def test_a_malformed_address_is_found(address):
    assert wrong(address)


def test_two_spellings_of_a_place_are_one():
    same = ["http://www.example.org/a", "https://example.org/a/", "https://example.org/a/index.html"]
    assert len({*map(place, same)}) == 1
