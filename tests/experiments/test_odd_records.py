"""A record may be somebody else's: what is missing in it, or odd, is said in a sentence."""

import json
import os
import random

import pytest
from shared import one_sentence, sweep

import experiments
from experiments.lab import results

PUBLISHED = sorted(path for path in results.FOLDER.glob("*/*.json") if path.parent.name != results.MINE)
ONE_A_NAME = {path.stem: path for path in PUBLISHED}.values()  # of the same record on several machines
ABSENT = object()
ODD = (ABSENT, None, True, -1, 0, 10**15, 10**400, 1e308, float("nan"), float("inf"), "", "x", [], [[]], [None], {})


def places(value, path=()):
    """Yield the paths to everything in a record that JSON can hold, of a long list to three of its entries."""
    if path:
        yield path
    entries = value.items() if isinstance(value, dict) else enumerate(value[:3]) if isinstance(value, list) else ()
    for key, part in entries:
        yield from places(part, (*path, key))


def put(record, path, odd):
    for key in path[:-1]:
        record = record[key]
    if odd is ABSENT:
        del record[path[-1]]
    else:
        record[path[-1]] = odd


@pytest.mark.parametrize("path", sweep(PUBLISHED, *ONE_A_NAME), ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_an_odd_record_is_shown_or_refused_in_a_sentence(path, recwarn):
    record, choice = results.load(path), random.Random(str(path.stem))
    table, text = experiments.load(path.stem).table, json.dumps(record)
    everywhere = [found for found in places(record) if found[0] in ("runs", "settings")]
    for _ in range(10):
        odd = json.loads(text)
        put(odd, choice.choice(everywhere), choice.choice(ODD))
        try:
            assert isinstance(table(odd), str)
        except results.RecordError as error:
            one_sentence(error, "record")
    assert not recwarn


@pytest.mark.parametrize("name", experiments.names())
@pytest.mark.parametrize("odd", [{}, {"runs": None}, {"runs": [{}]}, {"runs": [{"samples_us": [10**400]}]}], ids=repr)
def test_a_table_of_what_is_no_record_is_refused_in_a_sentence(name, odd):
    try:
        assert isinstance(experiments.load(name).table(odd), str)
    except results.RecordError as error:
        one_sentence(error, "record")


@pytest.mark.parametrize("path", PUBLISHED[:1])
def test_an_odd_file_is_read_or_refused_in_a_sentence(path, tmp_path):
    text, choice = path.read_text(), random.Random(0)
    everywhere = list(places(json.loads(text)))
    for _ in range(200):
        odd = json.loads(text)
        put(odd, choice.choice(everywhere), choice.choice(ODD))
        (tmp_path / "odd.json").write_text(json.dumps(odd))
        try:
            results.load(tmp_path / "odd.json")
        except results.RecordError as error:
            one_sentence(error, "odd.json")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes here")
@pytest.mark.parametrize("make", [os.mkdir, getattr(os, "mkfifo", None)], ids=["folder", "pipe"])
def test_what_is_no_file_is_refused_and_not_waited_for(make, tmp_path):
    make(tmp_path / "engines.json")
    with pytest.raises(OSError, match="can't be read") as caught:
        results.load(tmp_path / "engines.json")
    one_sentence(caught.value, "engines.json")


@pytest.mark.parametrize("told", ["v2", "abc1234", "HEAD", " " * 40, "\x1b[31m", "0" * 40 + "-dirty", "F" * 40])
def test_a_commit_that_is_none_is_refused_before_anything_is_measured(told, monkeypatch):
    monkeypatch.setenv("MLPKIT_COMMIT", told)
    with pytest.raises(ValueError, match="MLPKIT_COMMIT must be") as caught:
        results.new("engines")
    one_sentence(caught.value)
    monkeypatch.setenv("MLPKIT_COMMIT", "0123456789abcdef" * 2 + "01234567")
    assert results.new("engines")["dirty"] is False


@pytest.mark.parametrize("text", ["\x1b]0;title\x07", "\x9b31m", "\x00", "\b", "\ud800"])
@pytest.mark.parametrize("where", ["key", "value"])
def test_a_record_gives_no_commands_to_a_terminal(text, where, tmp_path):
    record = results.new("engines", **({text: 1} if where == "key" else {"name": [text]}))
    with pytest.raises(results.RecordError) as caught:
        results.load(results.save(record, folder=tmp_path))
    one_sentence(caught.value, "control characters")


def test_a_text_in_thousands_of_lists_is_refused_in_a_sentence(tmp_path):
    text = json.dumps(results.new("engines")).replace('"runs": []', f'"runs": {"[" * 900}"x"{"]" * 900}')
    (tmp_path / "deep.json").write_text(text)
    with pytest.raises(results.RecordError) as caught:
        results.load(tmp_path / "deep.json")
    one_sentence(caught.value, "deep.json")


@pytest.mark.parametrize("engine", [None, 1, ["numpy_baseline"], {}])
def test_an_engine_that_is_no_name_is_refused_in_a_sentence(engine, tmp_path):
    record = results.new("engines") | {"runs": [{"engine": engine}]}
    with pytest.raises(results.RecordError) as caught:
        results.load(results.save(record, folder=tmp_path))
    one_sentence(caught.value, "engine")
