"""A table says one thread and two threads, and keeps its columns apart."""

import re

import pytest

import experiments
from experiments.lab import results, trainings
from mlpkit.words import counted, printable

PUBLISHED = sorted(path for path in results.FOLDER.glob("*/*.json") if path.parent.name != results.MINE)
ODD = re.compile(r"(?<![\w.,])1 (?:[a-z]+ )?(?!us\b|class\b|times\b)[a-z]+s\b|\bnan\b|-0\.0+(?!\d)")


@pytest.mark.parametrize(
    ("n", "wanted"),
    [(0, "0 busy programs"), (1, "1 busy program"), (2, "2 busy programs"), (1000, "1,000 busy programs")],
)
def test_one_is_no_plural(n, wanted):
    assert counted(n, "busy program") == wanted


@pytest.mark.parametrize("path", PUBLISHED, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_no_table_says_one_threads_or_minus_nothing(path):
    found = [line for line in experiments.load(path.stem).table(results.load(path)).splitlines() if ODD.search(line)]
    assert not found


def test_what_a_terminal_would_heed_is_shown_as_its_number():
    assert printable("é \x1b[31m\r\x9b2J\udcff\u202e\n") == r"é \x1b[31m\r\x9b2J\udcff\u202e\n"
    assert printable("a\x07\n", kept="\n") == "a\\x07\n"


def test_the_columns_of_waits_are_apart():
    record = results.published("persistence")
    lines = experiments.load("persistence").table(record).splitlines()
    assert any(line.split()[-6:-4] == ["size", "optimizer"] for line in lines)


@pytest.mark.parametrize("path", [path for path in PUBLISHED if path.stem in ("lenet", "residual", "activations")])
def test_labels_of_any_length_leave_the_columns_straight(path):
    lines = trainings.table(results.load(path)).splitlines()
    assert len({len(line) for line in lines}) == 1
    assert all("  " in line for line in lines)
