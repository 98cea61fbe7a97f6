"""Whose file is this, and of which lab? What a path says, as learning platforms, Colab and people write it."""

import re
import unicodedata

LONGEST = 200  # bytes of a student's name
# Canvas: NAME[_LATE]_USER_FILE_what they called it. Blackboard: TASK_USERNAME_attempt_WHEN_what they called it.
# Moodle: NAME_PARTICIPANT_assignsubmission_file, then _ or a folder. Gradescope: a folder submission_NUMBER. Where
# there are no usernames, the number is part of the student's name, since two may have the same.
PLATFORMS = [
    re.compile(r"(?P<student>\w+?)(?:_LATE)?(?P<number>_\d+)_\d+_(?P<file>[^/]+)"),
    re.compile(r"(?P<student>anon)(?:_LATE)?(?P<number>_\w+?)_\d+_(?P<file>[^/]+)"),
    re.compile(r"[^/]+?_(?P<student>[^/_]+)_attempt_[\d-]+_(?P<file>[^/]+)"),
    re.compile(r"(?P<student>[^/_]+)(?P<number>_\d+)_assignsubmission_file(?:_|_?/)(?P<file>.+)"),
    re.compile(r"(?P<student>submission)(?P<number>_\d+)/(?P<file>.+)"),
]
COPY = re.compile(r"(copy|kopie|copie|copia)[ _](of|von|de|di|van)[ _]", re.IGNORECASE)


def pattern(text):
    """Return the regular expression for a pattern such as "{lab}/* - {student} - */*.ipynb"; * is in one folder.

    Raises ValueError unless there is one {student} in it.
    """
    parts = re.split(r"(\{student\}|\{lab\}|\*)", text)
    if parts.count("{student}") != 1 or parts.count("{lab}") > 1:
        raise ValueError(f"A pattern has {{student}} in it once, and {{lab}} at most once, not as {text!r} has.")
    known = {"{student}": "(?P<student>[^/]+?)", "{lab}": "(?P<file>[^/]*?)", "*": "[^/]*"}
    return re.compile("".join(known.get(part, re.escape(part)) for part in parts))


def told(path, labs, wanted=None):
    """Return (student, lab) of a path below the inbox, as text with "/". Raises ValueError with the reason, a sentence.

    labs: the names that there are. wanted: what `pattern` returned, in place of all forms that are known.
    """
    path = unicodedata.normalize("NFC", path)
    if wanted:
        match = wanted.fullmatch(path)
        if not match:
            raise ValueError("it does not fit the pattern.")
        return plain(match["student"]), _lab(match.groupdict().get("file", path), path, labs)
    folders = path.split("/")
    while len(folders) > 2 and _labs_in(folders[0], labs):  # the folder of a lab's submissions, not of a student's
        del folders[0]
    for first in range(len(folders)):
        for known in PLATFORMS:
            if match := known.fullmatch("/".join(folders[first:])):
                student = match["student"] + (match.groupdict().get("number") or "")
                return plain(student), _lab(match["file"], path, labs)
    lab = _lab(folders[-1], path, labs)
    return plain(_before(folders[0], lab) if len(folders) == 1 else folders[0]), lab


def _before(name, lab):
    """Return the student's name in one such as "ada_lab01 (1).ipynb", or "Ada Lovelace - Copy of lab01.ipynb"."""
    return COPY.sub("", re.split(re.escape(lab), name, maxsplit=1, flags=re.IGNORECASE)[0]).rstrip(" _-")


def _labs_in(text, labs):
    return [lab for lab in labs if re.search(rf"(?<![^\W_]){re.escape(lab)}(?![^\W_])", text, re.IGNORECASE)]


def _lab(name, path, labs):
    """Return the lab that a file's name says, or else the folders around it."""
    for part in (name, *reversed(path.split("/"))):
        found = _labs_in(part, labs)
        if len(found) == 1:
            return found[0]
    raise ValueError(f"its name should have one of {', '.join(labs)} in it.")


def plain(student):
    """Return a student's name that can be a folder's, and a cell's in a table; blanks at its ends go.

    Raises ValueError for any other: a terminal, a spreadsheet, a browser would obey it.
    """
    student = student.strip()
    odd = [sign for sign in student if unicodedata.category(sign)[0] not in "LMN" and sign not in " _.@+-'’,()"]
    if not student[:1].isalnum() or odd or len(student.encode(errors="replace")) > LONGEST or student[-1] == ".":
        raise ValueError("it should begin with the student's name: letters and digits first, then . @ + - _ ' too.")
    return student
