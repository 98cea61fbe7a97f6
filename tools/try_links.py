"""Try every address outside that the workbook names: `python tools/try_links.py`, where there is internet.

A line for each says what it answers, or why it could not be tried. What was found goes into
tests/repository/links.toml by hand; a test holds that file to what the workbook names.
"""

import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import urlsplit

import requests

ROOT = Path(__file__).resolve().parents[1]
ADDRESS = re.compile(r"""https?://[^\s"'`<>\\()\[\]{},|]+""")
TEXT = {".cff", ".cu", ".cuh", ".css", ".ipynb", ".js", ".json", ".md", ".py", ".sh", ".toml", ".txt", ""}
TEXT |= {".yaml", ".yml"}
# Not on the web: this machine, addresses that are made up as examples, and names that only look like addresses
NOWHERE = re.compile(r"https?://(127\.0\.0\.1|localhost|www\.w3\.org/2000/svg|github\.com/somebody/)")
LISTS = ("tests/", "results/")  # tests name what they make up, records what a machine said


def named() -> dict[str, list[str]]:
    """Return {address: names of the files that name it}, of all files that git has."""
    try:
        listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        sys.exit(f"git does not know {ROOT}: this needs git, and the repository with its history.")
    found: dict[str, list[str]] = {}
    for name in listed.splitlines():
        path = ROOT / name
        if name.startswith(LISTS) or path.suffix not in TEXT or not path.is_file():
            continue
        for address in dict.fromkeys(ADDRESS.findall(path.read_text(encoding="utf-8"))):
            address = address.rstrip(".;:!?")
            if not NOWHERE.match(address) and "." in (urlsplit(address).hostname or "").strip("."):
                found.setdefault(address, []).append(name)
    return found


def answer(address: str) -> str:
    """Return what an address answers, in a few words."""
    try:
        with requests.get(address, timeout=20, stream=True) as reply:
            moved = f", from {reply.url}" if reply.url.rstrip("/") != address.rstrip("/") else ""
            return f"{reply.status_code} {reply.reason}{moved}"
    except requests.RequestException as error:
        return f"could not be tried: {type(error).__name__}"


def main() -> int:
    found = named()
    with ThreadPoolExecutor(4) as pool:
        answers = dict(zip(found, pool.map(answer, found), strict=True))
    for address, said in answers.items():
        print(f"{said:28} {address}  ({', '.join(found[address])})")
    return int(any(not said.startswith("200") for said in answers.values()))


if __name__ == "__main__":
    sys.exit(main())
