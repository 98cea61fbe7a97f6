"""Where an instructor meets trouble: one sentence says what to do, and nothing is lost."""

import contextlib
import errno
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import unicodedata
import zipfile

import nbformat
import pytest
from submissions import ROOT, answer, cell, solved

pytest.importorskip("nbgrader", reason="`make test-labs` adds what these tests need")
pytest.importorskip("psutil", reason="`make test-labs` adds what these tests need")
import psutil
from nbgrader.api import Gradebook
from nbgrader.converters import GenerateAssignment

from labs.grading import box, command, filenames, judge, release, submission, table
from labs.grading.collect import collect
from mlpkit.files import only_one

COMMAND = [sys.executable, "-m", "labs.grading", "--labs"]
EARLIER = "what was there before"
ONE_SENTENCE = r"[^\n]+\.\n"
FULL = OSError(errno.ENOSPC, "No space left on device")


def run(course, *arguments, redirection=""):
    """Run `python -m labs.grading` in a shell, and return its status, what it printed and its errors, as bytes."""
    line = ["bash", "-c", f'set -o pipefail; "$@" {redirection}', "bash", *COMMAND, course, *arguments]
    done = subprocess.run(list(map(str, line)), capture_output=True, cwd=ROOT, timeout=200)
    return done.returncode, done.stdout, done.stderr


def submitted(course, student):
    return course / "submitted" / student / "lab00" / "lab00.ipynb"


def places(course):
    """Return the paths of a table and of a page, with a file in each that an earlier run may have written."""
    found = {"table": course / "grades" / "lab00.csv", "page": course / "feedback" / "ada" / "lab00.md"}
    for path in found.values():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(EARLIER)
    return found


@pytest.fixture
def at_once(monkeypatch):
    """Return what is graded, without grading it: each cell is for a person."""
    graded = []

    def one(job, show, stop):
        graded.append(job[0])
        return table._none_graded(job[2], judge.BY_HAND)

    monkeypatch.setattr(table, "_one", one)
    return graded


@pytest.fixture
def inbox(course, tmp_path):
    """Return a folder with the answers of two students, one of them in a folder of her own."""
    for path in (tmp_path / "inbox" / "dee_lab00.ipynb", tmp_path / "inbox" / "eve" / "lab00.ipynb"):
        path.parent.mkdir(exist_ok=True)
        shutil.copy(submitted(course, "ada"), path)
    return tmp_path / "inbox"


# Tables and pages


@pytest.mark.parametrize("which", ["table", "page"])
@pytest.mark.parametrize("kind", ["a folder", "a device", "a file where its folder is to be"])
def test_what_can_not_be_written_is_said_before_anything_is_graded(kind, which, course, at_once):
    found = places(course)
    path = found.pop(which)
    (other,) = found.values()
    path.unlink()
    if kind == "a folder":
        path.mkdir()
    elif kind == "a device":
        path.symlink_to("/dev/full")
    else:
        path.parent.rmdir()
        path.parent.write_text(EARLIER)
    with pytest.raises(OSError, match=rf"{path} can't be written \([^\n]+\.$"):
        table.grade_all(course)
    assert not at_once
    assert other.read_text() == EARLIER


def test_a_command_that_can_not_write_says_so_in_one_sentence(course):
    (course / "grades" / "lab00.csv").mkdir(parents=True)
    status, printed, errors = run(course)
    assert (status, printed) == (1, b"")
    assert re.fullmatch(ONE_SENTENCE, errors.decode())


LATE = {
    "disk full": FULL,
    "open elsewhere": PermissionError(errno.EACCES, "Permission denied"),
    "Ctrl-C": KeyboardInterrupt(),
}


@pytest.mark.parametrize("kept", [["table"], ["page"], ["table", "page"]], ids=" and ".join)
@pytest.mark.parametrize("error", LATE.values(), ids=LATE)
def test_a_file_that_can_no_longer_be_written_stays_whole(error, kept, course, at_once, monkeypatch):
    """And the others are written: of what was graded, as much is there as can be."""
    found = places(course)

    def fails(old, new, *, replace=os.replace):
        if new in [found[which] for which in kept]:
            raise error
        replace(old, new)

    monkeypatch.setattr(os, "replace", fails)
    with pytest.raises(KeyboardInterrupt if isinstance(error, KeyboardInterrupt) else OSError) as caught:
        table.grade_all(course, lambda line: None)
    for which, path in found.items():
        if which in kept:
            assert path.read_text() == EARLIER
        elif isinstance(error, OSError):
            assert judge.BY_HAND in path.read_text()
    assert not list(course.rglob("*.mlpkit"))
    if isinstance(error, OSError):
        said = rf"{found[kept[0]]} can't be written \({error.strerror}\): .+\."
        assert re.fullmatch(said + " So it is with 1 more files." * (len(kept) - 1), str(caught.value))


def test_of_two_runs_at_once_one_is_refused(course, at_once):
    """Else the gradebook refuses both by turns, and a table lacks points that a person gave."""
    (course / "grades").mkdir()
    with only_one(course / "grades"), pytest.raises(OSError, match="another run is at work"):
        table.grade_all(course)
    assert not at_once


# What is printed, and who reads it

STREAMS = {">/dev/full": 1, "2>/dev/full": 1, "| head -1": 141, ">&-": 0, "2>&-": 0, ">&- 2>&-": 0}


@pytest.mark.parametrize("redirection", STREAMS)
def test_the_table_is_written_whoever_reads_what_is_printed(redirection, course, inbox):
    for path in inbox.rglob("*.ipynb"):
        path.rename(path.with_suffix(".txt"))  # each is a line of the errors, as ada is one of the output
    if "head" in redirection:
        for student in ("ben", "cy"):
            shutil.copytree(submitted(course, "ada").parent, submitted(course, student).parent)
    status, _, errors = run(course, inbox, redirection=redirection)
    assert status == STREAMS[redirection], errors
    assert b"Traceback" not in errors
    assert (b"not every line" in errors) == (redirection == ">/dev/full")
    assert "\nada," in (course / "grades" / "lab00.csv").read_text()


# Ctrl-C


def family_of(process, least):
    """Return a process and those that it started, once there are so many."""
    deadline = time.monotonic() + 60
    while len(family := psutil.Process(process.pid).children(recursive=True)) < least:
        assert time.monotonic() < deadline, process.communicate()
        time.sleep(0.05)
    return [psutil.Process(process.pid), *family]


def gone(process):
    """Return whether a process ends within 5 seconds; one that nobody has waited for yet has ended, too."""
    deadline = time.monotonic() + 5
    with contextlib.suppress(psutil.NoSuchProcess):
        while process.status() != psutil.STATUS_ZOMBIE:
            if time.monotonic() > deadline:
                return False
            time.sleep(0.05)
    return True


def heed_all():
    """Let a process heed its signals: a job in the background ignores one, and what `nohup` starts another."""
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)


def test_all_whom_a_process_has_started_end_with_it():
    """A box that has only begun would wait for its parent for ever."""
    with box.started(["sh", "-c", "sleep 1000 & echo $!; wait"]) as process:
        child = psutil.Process(int(process.stdout.readline()))
    assert gone(child)


@pytest.mark.filterwarnings("ignore::sqlalchemy.exc.SAWarning")
@pytest.mark.parametrize("sent", ["SIGINT to all, as a terminal does", "SIGINT", "SIGHUP", "SIGTERM"])
def test_ctrl_c_leaves_nobody_at_work_and_keeps_what_there_is(sent, course):
    with Gradebook(f"sqlite:///{course / 'gradebook.db'}", "mlpkit") as book:
        book.add_student("ada")
        book.add_submission("lab00", "ada")
        book.find_grade("explain", "lab00", "lab00", "ada").manual_score = 2
        book.db.commit()
    nbformat.write(answer(solved("lab00"), "shape", "while True:\n    pass"), submitted(course, "ada"))
    shutil.copytree(submitted(course, "ada").parent, submitted(course, "ben").parent)
    found = places(course)
    pipes = dict(stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    line = [*COMMAND, str(course)]
    with subprocess.Popen(line, cwd=ROOT, **pipes, start_new_session=True, preexec_fn=heed_all) as running:
        family = family_of(running, least=3)  # a judge, and two of a box
        (os.killpg if "all" in sent else os.kill)(running.pid, getattr(signal, sent.split()[0]))
        _, errors = running.communicate(timeout=30)
    assert running.returncode == 130
    assert re.fullmatch("Interrupted: .+ points that a person gave are kept.+" + ONE_SENTENCE, errors)
    assert all(map(gone, family))
    assert [path.read_text() for path in found.values()] == [EARLIER, EARLIER]
    with Gradebook(f"sqlite:///{course / 'gradebook.db'}", "mlpkit") as book:
        assert book.find_grade("explain", "lab00", "lab00", "ada").manual_score == 2


@pytest.fixture
def ctrl_c():
    """Return a function that presses it; what it does is afterwards as it was."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield lambda *_: signal.raise_signal(signal.SIGINT)
    signal.signal(signal.SIGINT, before)


def test_ctrl_c_is_no_fault_of_a_lab(ctrl_c, course, monkeypatch, capsys):
    """nbgrader makes an error of it, as of any exception."""
    monkeypatch.setattr(GenerateAssignment, "start", ctrl_c)
    assert command.run(lambda say: release.release(course), "make them again.") == 130
    assert capsys.readouterr().err == "Interrupted: make them again.\n"


@pytest.mark.parametrize("damaged", ["source/lab00/lab00.ipynb", "gradebook.db", "release"])
def test_a_lab_that_can_not_be_made_is_said_in_one_sentence(damaged, course, capsys):
    if (course / damaged).is_dir():
        shutil.rmtree(course / damaged)
    (course / damaged).write_text("{ what is neither a notebook, nor a gradebook, nor a folder" * 100)
    assert command.run(lambda say: release.release(course), "") == 1
    assert re.fullmatch(r"nbgrader could not make lab00: \w+Error: [^\n]+\n", capsys.readouterr().err)


# Names

ODD = ["\x1b[2J\x1b]0;gone\x07", "\r", "two\nlines", "\udcff\udcfe", "\u202egnp", "\x9b31m", "=1+1", "@A1", "-1", "+1"]


def test_an_odd_name_is_written_out_and_reaches_no_table(course, tmp_path):
    """Whatever a terminal or a spreadsheet would do with it."""
    inbox = tmp_path / "inbox"
    inbox.mkdir()
    for odd in ODD:
        shutil.copy(submitted(course, "ada"), inbox / f"{odd}_lab00.ipynb")
        shutil.copytree(course / "submitted" / "ada", course / "submitted" / odd)
    status, printed, errors = run(course, inbox)
    assert status == 0
    for said in (printed.decode().splitlines(), errors.decode().splitlines()):
        assert all(line.isprintable() for line in said)
        assert sum(": look by hand, " in line for line in said) == len(ODD)
        assert len(said) == len(ODD) + (said[-1].startswith("lab00  ada "))
    rows = (course / "grades" / "lab00.csv").read_text().splitlines()
    assert [row.split(",")[0] for row in rows] == ["student", "ada"]
    assert os.listdir(course / "feedback") == ["ada"]


# The inbox


NO_INBOX = {
    "a file": lambda path: path.touch(),
    "a damaged zip file": lambda path: path.write_bytes(b"PK\x05\x06" + b"\xff" * 18),
    "nothing": lambda path: None,
    "a circle of links": lambda path: path.symlink_to(path),
    "a folder without permission": lambda path: path.mkdir(),
    "the folder of the labs": lambda path: path.symlink_to(path.parent / "course"),
    "a folder around them": lambda path: path.symlink_to(path.parent),
}


@pytest.fixture
def unreadable(monkeypatch):
    """Return a list of paths that can't be read, not by root either."""
    paths = []

    def guarded(function):
        def call(path=".", *rest, **options):
            if str(path) in map(str, paths):
                raise PermissionError(errno.EACCES, "Permission denied", str(path))
            return function(path, *rest, **options)

        return call

    for name in ("scandir", "listdir", "stat"):
        monkeypatch.setattr(os, name, guarded(getattr(os, name)))
    return paths


@pytest.mark.parametrize("kind", NO_INBOX)
def test_what_is_no_inbox_is_refused(kind, course, tmp_path, unreadable):
    NO_INBOX[kind](tmp_path / "inbox")
    if "permission" in kind:
        unreadable.append(tmp_path / "inbox")
    with pytest.raises(OSError, match=r"^Nothing was graded: [^\n]+ the folder, or the zip file, of what came in\.$"):
        collect(tmp_path / "inbox", course)
    assert os.listdir(course / "submitted") == ["ada"]


@pytest.mark.parametrize("what", ["eve", "eve/lab00.ipynb", "dee_lab00.ipynb"])
def test_what_can_not_be_read_is_said_and_not_left_out_in_silence(what, course, inbox, unreadable):
    unreadable.append(inbox / what)
    assert collect(inbox, course) == [(inbox / what, "it can't be read (Permission denied).")]
    assert len(os.listdir(course / "submitted")) == 2


def test_submissions_that_can_not_be_read_or_are_out_of_place_are_said(course, at_once, unreadable):
    for student in ("ben", "cy", "dee"):
        shutil.copytree(submitted(course, "ada").parent, submitted(course, student).parent)
    unreadable.append(submitted(course, "ben").parent)
    submitted(course, "cy").rename(submitted(course, "cy").with_name("mine.ipynb"))
    submitted(course, "dee").parent.rename(course / "submitted" / "dee" / "lab99")
    said = []
    assert len(table.grade_all(course, said.append)) == 1
    assert [line.split(judge.BY_HAND)[0] for line in said[:3]] == [
        f"{course / 'submitted' / path}: " for path in ("ben/lab00", "cy/lab00/mine.ipynb", "dee/lab99/lab00.ipynb")
    ]


def test_a_link_to_a_folder_is_said_and_a_circle_is_not_walked(course, inbox):
    (inbox / "all").symlink_to(inbox)
    (inbox / "fay").symlink_to(inbox / "eve")
    assert collect(inbox, course) == [
        (inbox / name, "it can't be read (it is a link to a folder).") for name in ("all", "fay")
    ]


@pytest.mark.parametrize("kind", ["a link", "a pipe", "a large file"])
def test_what_takes_a_files_place_while_it_is_collected_is_no_submission(kind, course, inbox, monkeypatch):
    told = filenames.told

    def swap(path, *rest):
        if path == "dee_lab00.ipynb":
            (inbox / path).unlink()
            if kind == "a link":
                (inbox / path).symlink_to(course / "source" / "lab00" / "lab00.ipynb")
            elif kind == "a pipe":
                os.mkfifo(inbox / path)
            else:
                (inbox / path).write_bytes(bytes(submission.LARGEST_NOTEBOOK + 1))
        return told(path, *rest)

    monkeypatch.setattr(filenames, "told", swap)
    assert [path.name for path, _ in collect(inbox, course)] == ["dee_lab00.ipynb"]
    assert not submitted(course, "dee").exists()


def test_a_folder_of_submissions_that_is_a_link_is_said(course, at_once):
    (course / "submitted" / "ben").symlink_to(course / "submitted" / "ada")
    said = []
    table.grade_all(course, said.append)
    assert said == [f"{course / 'submitted' / 'ben'}: look by hand, it can't be read (it is a link to a folder)."]


# As learning platforms name files

DOWNLOADS = {
    # Canvas
    "lovelaceada_1234_567890_lab00.ipynb": "lovelaceada_1234",
    "lovelaceada_LATE_1234_567890_lab00-1.ipynb": "lovelaceada_1234",
    "müllervonderheide_1234_567890_Copy_of_lab00.ipynb": "müllervonderheide_1234",
    "anon_LATE_ab12C_567890_lab00.ipynb": "anon_ab12C",
    # Moodle
    "Ada Lovelace_1234_assignsubmission_file/lab00.ipynb": "Ada Lovelace_1234",
    "Jürgen Groß-Weiß_1234_assignsubmission_file_/lab00 (1).ipynb": "Jürgen Groß-Weiß_1234",
    "Seán O'Brien_1234_assignsubmission_file_my lab00.ipynb": "Seán O'Brien_1234",
    "CS1-Lab00-77/Ada Lovelace_1234_assignsubmission_file/work/lab00.ipynb": "Ada Lovelace_1234",
    "王小明_1234_assignsubmission_file/lab00.ipynb": "王小明_1234",
    # Blackboard
    "Lab 00_al123_attempt_2026-11-28-10-15-59_lab00.ipynb": "al123",
    "Week 1_al123_attempt_2026-11-28-10-15-59_LAB00_final.ipynb": "al123",
    # Gradescope
    "assignment_4321_export/submission_98765432/lab00.ipynb": "submission_98765432",
    # Colab, Classroom, and browsers
    "Ada Lovelace - Copy of lab00.ipynb": "Ada Lovelace",
    "ada_lab00 (2).ipynb": "ada",
    "ada_love_lace_lab00-Copy1.ipynb": "ada_love_lace",
    "ada/Copy of lab00.ipynb": "ada",
    "ada/Kopie von lab00.ipynb": "ada",
    # People
    "lab00/ada/notebook.ipynb": "ada",
    "ada/lab00/ada lovelace.ipynb": "ada",
}


def came(inbox, path, course):
    """Put an answer into an inbox, under a name."""
    (inbox / path).parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(course / "release" / "lab00" / "lab00.ipynb", inbox / path)


@pytest.mark.parametrize("path", DOWNLOADS)
@pytest.mark.parametrize("form", ["NFC", "NFD"])
def test_downloads_of_learning_platforms_are_recognised(path, form, course, tmp_path):
    shutil.rmtree(course / "submitted")
    came(tmp_path / "inbox", unicodedata.normalize(form, path), course)
    assert collect(tmp_path / "inbox", course) == []
    assert os.listdir(course / "submitted") == [DOWNLOADS[path]]
    assert submitted(course, DOWNLOADS[path]).is_file()


def test_each_judge_has_a_core_of_its_own(course, monkeypatch):
    """So has its box: else forty processes in one, which all compute, leave nothing for the box beside it."""
    before, cores = os.sched_getaffinity(0), []
    monkeypatch.setattr(table, "_one", lambda job, show, stop: cores.append(os.sched_getaffinity(0)))
    monkeypatch.setattr(table, "_laid_out", lambda *job: {})
    job = ("ada", "lab00", None, None)
    assert sorted(place for place, *_ in table._judged(course, [job] * 20, print)) == list(range(20))
    assert all(len(core) == 1 and core <= before for core in cores)
    assert os.sched_getaffinity(0) == before


def test_whoever_is_collected_is_graded(course, tmp_path, at_once):
    names = ["Lovelace, Ada (2)", "O’Brien's", "Seán O'Brien_1234", "x" * 90, "हिन्दी नाम"]
    for name in names:
        came(tmp_path / "inbox", f"{name}_lab00.ipynb", course)
    assert collect(tmp_path / "inbox", course) == []
    said = []
    table.grade_all(course, said.append)
    assert said == []
    assert sorted(at_once) == sorted([*names, "ada"])
    assert sorted(os.listdir(course / "feedback")) == sorted([*names, "ada"])


@pytest.mark.parametrize("path", ["lab00.ipynb", "Copy of lab00.ipynb", "ada_lab99.ipynb", "ada_lab00_lab000.ipynb"])
def test_what_does_not_say_who_and_which_lab_is_left_for_a_person(path, course, tmp_path):
    came(tmp_path / "inbox", path, course)
    left = collect(tmp_path / "inbox", course)
    assert ([each.name for each, _ in left] == [path]) == ("000" not in path)


def test_two_files_of_one_time_are_said_unless_they_are_the_same(course, tmp_path):
    inbox, times = tmp_path / "inbox", (1.7e9, 1.7e9)
    for name, more in {
        "lab00.ipynb": " ",
        "lab00 (1).ipynb": "",
        "lab00 (2).ipynb": " ",
        "lab00-old.ipynb": "  ",
    }.items():
        came(inbox, f"ben/{name}", course)
        with open(inbox / "ben" / name, "a") as file:
            file.write(more)
        os.utime(inbox / "ben" / name, (1.6e9, 1.6e9) if "old" in name else times)
    ((path, why),) = collect(inbox, course)
    assert path == inbox / "ben" / "lab00 (1).ipynb"
    assert why == "lab00.ipynb is of the same time, and was taken: delete the one that doesn't count."
    assert submitted(course, "ben").read_bytes() == (inbox / "ben" / "lab00.ipynb").read_bytes()


def test_a_pattern_says_how_files_are_called(course, tmp_path):
    wanted = "{lab}/* - {student} - */*.ipynb"
    came(tmp_path / "inbox", "Lab00 week 1/1-2 - Ada Lovelace - 28 Nov, 2026 2:30/Untitled.ipynb", course)
    came(tmp_path / "inbox", "ben_lab00.ipynb", course)
    assert collect(tmp_path / "inbox", course, wanted) == [
        (tmp_path / "inbox" / "ben_lab00.ipynb", "it does not fit the pattern.")
    ]
    assert submitted(course, "Ada Lovelace").is_file()


@pytest.mark.parametrize("wrong", ["*.ipynb", "{student}/{student}", "{lab}{lab}{student}"])
def test_a_pattern_that_is_none_is_refused_in_a_sentence(wrong, course, tmp_path):
    status, _, errors = run(course, tmp_path, "--pattern", wrong)
    assert status == 1
    assert re.fullmatch("Nothing was graded: A pattern has " + ONE_SENTENCE, errors.decode())


def test_a_zip_file_is_taken_as_it_is(course, tmp_path):
    """And nothing of it lands elsewhere."""
    with zipfile.ZipFile(tmp_path / "all.zip", "w") as file:
        text = submitted(course, "ada").read_bytes()
        for name in ("ben_1_2_lab00.ipynb", "Cy Ö_1_assignsubmission_file/lab00.ipynb", "../../dee_lab00.ipynb"):
            file.writestr(zipfile.ZipInfo(name, (2026, 11, 28, 10, 0, 0)), text)
        file.writestr("huge_lab00.ipynb", bytes(submission.LARGEST_NOTEBOOK + 1))
        file.writestr("__MACOSX/._ben_1_2_lab00.ipynb", b"")
        for name in ("who.ipynb", "Eve_1_assignsubmission_file/lab00.zip", "fay_lab00.IPYNB", ".DS_Store"):
            file.writestr(name, text)
    left = [path.relative_to(tmp_path / "all.zip").as_posix() for path, _ in collect(tmp_path / "all.zip", course)]
    assert left.pop(0) == "huge_lab00.ipynb"
    assert sorted(left) == ["Eve_1_assignsubmission_file/lab00.zip", "fay_lab00.IPYNB", "who.ipynb"]
    assert sorted(os.listdir(course / "submitted")) == ["Cy Ö_1", "ada", "ben_1", "dee"]
    assert time.localtime(submitted(course, "ben_1").stat().st_mtime)[:4] == (2026, 11, 28, 10)


@pytest.mark.parametrize("method", [zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_a_damaged_file_in_a_zip_file_is_said_and_stops_nobody_else(method, course, tmp_path):
    text = submitted(course, "ada").read_bytes()
    with zipfile.ZipFile(tmp_path / "all.zip", "w", method) as file:
        file.writestr("ben_lab00.ipynb", text)
        file.writestr("cy_lab00.ipynb", text)
    data = bytearray((tmp_path / "all.zip").read_bytes())
    data[60:90] = b"\xff" * 30
    (tmp_path / "all.zip").write_bytes(data)
    ((path, why),) = collect(tmp_path / "all.zip", course)
    assert path == tmp_path / "all.zip" / "ben_lab00.ipynb"
    assert why.startswith("it can't be unpacked (")
    assert submitted(course, "cy").is_file()


def test_a_huge_file_is_not_copied(course, inbox):
    with open(inbox / "fay_lab00.ipynb", "wb") as file:
        file.truncate(submission.LARGEST_NOTEBOOK + 1)
    assert collect(inbox, course) == [(inbox / "fay_lab00.ipynb", "it is larger than 20 MB.")]


@pytest.mark.parametrize("name", ["Dee_lab00.ipynb", "ADA_lab00.ipynb"])
def test_students_whose_names_differ_in_capitals_only_are_not_mixed_up(name, course, inbox):
    """On a disk that takes both for one, the second would replace the first; ada's came in before."""
    shutil.copy(inbox / "dee_lab00.ipynb", inbox / name)
    ((_, why),) = collect(inbox, course)
    assert "capitals alone" in why
    assert sorted(map(str.casefold, os.listdir(course / "submitted"))) == ["ada", "dee", "eve"]


def test_a_disk_that_is_full_keeps_the_earlier_submission_and_takes_the_new_one_later(course, inbox, monkeypatch):
    """Half a copy would be newer than what came in, as if somebody had mended it."""
    assert not collect(inbox, course)
    before = submitted(course, "dee").read_bytes()
    came = inbox / "dee_lab00.ipynb"
    came.write_bytes(before + b" " * 1000)

    def fails(*arguments):
        raise FULL

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", fails)
        left = collect(inbox, course)
    assert len(left) == 2
    assert all("No space left on device" in why for _, why in left)
    assert submitted(course, "dee").read_bytes() == before
    assert not collect(inbox, course)
    assert submitted(course, "dee").read_bytes() == came.read_bytes()


# Damaged files of ours, and what a submission says


def test_a_damaged_file_of_ours_is_named(course, at_once):
    said = []
    table.grade_all(course, said.append)
    laid_out = course / "autograded" / "ada" / "lab00" / "lab00.ipynb"
    laid_out.write_text("{")
    table.grade_all(course, said.append)
    assert f"{laid_out}: the file is no notebook" in said[-1]
    source = course / "source" / "lab00" / "lab00.ipynb"
    source.write_text("{")
    with pytest.raises(RuntimeError, match=f"^{source}: the file is no notebook"):
        table.grade_all(course, said.append)


def test_labs_that_are_gone_are_missed_at_once(course, inbox):
    shutil.rmtree(course / "source")
    with pytest.raises(OSError, match="there is no lab in"):
        collect(inbox, course)


def test_what_a_submission_says_is_short_and_plain(earned):
    """It may change what words its box finds for an error."""
    words = "import gc\n(text_of,) = [o for o in gc.get_objects() if getattr(o, '__qualname__', 0) == 'text_of']\n"
    words += "text_of.__globals__['text_of'] = lambda error: ('X', '\x1b[31m' + 'A ' * 4500)\n1 / 0\n"
    notebook = solved("lab00")
    points, says = earned("lab00", answer(notebook, "shape", words + cell(notebook, "shape").source))["test-shape"]
    assert points == 0
    assert "Its cell stopped: X: \\x1b[31mA A A" in says
    assert len(says) <= judge.LONGEST
