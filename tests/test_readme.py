"""The README says what is so: its headline comes from the records, its links and commands lead somewhere."""

import re
import runpy

from mlpkit import results

TEXT = (results.ROOT / "README.md").read_text(encoding="utf-8")


def test_the_headline_is_that_of_the_records():
    tool = runpy.run_path(str(results.ROOT / "tools" / "update_readme.py"))
    assert tool["MARKED"].search(TEXT)[0] == tool["headline"]()


def test_links_lead_to_files():
    targets = [target for target in re.findall(r"\]\(([^)]+)\)", TEXT) if "://" not in target]
    assert targets
    assert [target for target in targets if not (results.ROOT / target).exists()] == []


def test_make_targets_exist():
    named = set(re.findall(r"^    make (\w+)", TEXT, re.MULTILINE))
    makefile = (results.ROOT / "Makefile").read_text()
    assert {"run", "test", "lab"} <= named
    assert named <= set(re.findall(r"^(\w+):", makefile, re.MULTILINE))
