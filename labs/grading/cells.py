"""A submission's cells, in the lab's order: nothing that a student wrote is left out, no mark of theirs is trusted."""

import re
from urllib.parse import unquote

import nbformat

EMPTY = "*Your answer, in words.*"  # what stands in the cell for one
PICTURE = re.compile(r"attachment:([^\s)\"'>]+)")


def role(cell):
    """Return what a cell is for: "solution", "test", "written" (in words), "given", or None: it is the student's."""
    about = cell.metadata.get("nbgrader", {})
    if not about.get("grade_id"):
        return None
    if about.get("solution"):
        return "written" if about.get("grade") else "solution"
    return "test" if about.get("grade") else "given"


def name_of(cell):
    return cell.metadata["nbgrader"]["grade_id"]


def merge(source, submission):
    """Return the cells to run: the source's, with the student's text in solution cells, and the student's own between.

    A cell of the student's stands behind the cell of the lab that it was put behind, and is nothing else, whatever it
    is marked as: a test would run out of the box. So it is with a copy, or the other half, of a solution cell; and what
    became of a test, or of a cell that was given, stands before that cell as it was. A solution cell that is missing is
    empty, and `missing` in its metadata. An answer in words that stands beside the cell for it is put there.
    """
    ours = {name_of(cell): cell for cell in source.cells if role(cell)}
    own, before, behind = _sorted(ours, submission)
    texts = {_handed_out(cell) for cell in source.cells if not role(cell)} | {EMPTY, ""}
    mine = {name: nbformat.from_dict(cell) for name, cell in ours.items()}
    for name, cell in mine.items():
        if role(cell) == "written":
            _gather(cell, own.get(name, []), name, behind, texts)
        elif role(cell) == "solution":
            _fill(cell, own.get(name, []))
            behind[name] = own.get(name, [])[1:] + behind.get(name, [])
    merged = [*behind.get(None, [])]
    for name, cell in mine.items():
        merged += [*before.get(name, []), cell, *behind.get(name, [])]
    for cell in merged:
        _keep_pictures(cell)
    return merged


def _sorted(ours, submission):
    """Return three dicts of lists by the names of the lab's cells: answers; changed cells; and what stands behind."""
    own: dict = {}
    before: dict = {}
    behind: dict = {}
    last = None
    for cell in submission.cells:
        name = str(cell.metadata.pop("nbgrader", {}).get("grade_id"))
        if name not in ours:
            behind.setdefault(last, []).append(cell)
            continue
        if role(ours[name]) in ("solution", "written"):
            if name in own and name != last:  # a copy that stands elsewhere
                behind.setdefault(last, []).append(cell)
            else:
                own.setdefault(name, []).append(cell)
        elif _handed_out(cell) != _handed_out(ours[name]):
            before.setdefault(name, []).append(cell)
        last = name
    return own, before, behind


def _handed_out(cell):
    """Return a cell's text as students get it, without blanks that an editor may take away."""
    text = cell.source.split("### BEGIN HIDDEN TESTS")[0].rstrip()
    return "\n".join(map(str.rstrip, text.split("\n"))).strip()


def _fill(cell, answers):
    cell.source = "".join(answer.source for answer in answers[:1])
    cell.metadata.ran = any("ran" in answer.metadata for answer in answers[:1])
    if not answers:
        cell.metadata.missing = True


def _gather(cell, answers, name, behind, texts):
    """Put into the cell for words what is in it, and in text cells behind it; or else, the student's words anywhere.

    texts: what is not the student's.
    """

    def theirs(cells, types=("markdown", "raw")):
        return [each for each in cells if each.cell_type in types and _handed_out(each) not in texts]

    anywhere = [each for cells in behind.values() for each in cells]
    found = [each for each in answers if _handed_out(each) not in texts] + theirs(behind.get(name, []))
    found = found or theirs(anywhere) or theirs(behind.get(name, []), ("code",))
    moved = {id(each) for each in theirs(found)}
    for place, cells in behind.items():
        behind[place] = [each for each in cells if id(each) not in moved]
    if not answers and not found:
        cell.metadata.missing = True
    said: list[str] = []
    pictures: dict = {}
    for number, each in enumerate(found or answers):
        text = each.source
        for old, picture in _pictures(each).items():
            new = old if pictures.get(old, picture) == picture else f"{number}-{old}"
            text, pictures[new] = text.replace(f"attachment:{old}", f"attachment:{new}"), picture
        said.append(text)
    cell.source, cell.attachments = "\n\n".join(said), pictures


def _pictures(cell):
    found = cell.get("attachments")
    found = found if isinstance(found, dict) else {}
    return {name: each for name, each in found.items() if each and isinstance(each, dict)}


def _keep_pictures(cell):
    """Make each picture that a text names one that is attached: Formgrader shows no page with another on it."""
    pictures = _pictures(cell) if cell.cell_type == "markdown" else {}
    cell.pop("attachments", None)

    def known(match):
        if unquote(match[1]) in pictures:
            pictures.setdefault(match[1], pictures[unquote(match[1])])
        return match[0] if match[1] in pictures else f"missing:{match[1]}"

    if cell.cell_type == "markdown":
        cell.source = PICTURE.sub(known, cell.source)
        if pictures:
            cell.attachments = pictures
