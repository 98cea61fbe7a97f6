"""A student's file, read: bounded before a library sees it, and made anew from the few things in it that count.

These are each cell's kind, its text, nbgrader's name for it, whether it ran to its end, and pictures that were pasted
into words. All else a file may hold, outputs, tags and ids, is left behind. Whoever calls `read` does so in a process
with limits of its own.
"""

import base64
import contextlib
import json
import re

import nbformat

LARGEST_NOTEBOOK = 20 * 2**20  # bytes
MOST_CELLS = 500
LONGEST_TEXT = 1_000_000  # bytes of all cells
MEMORY = 2 * 2**30  # bytes of addresses for a process that reads a file: JSON takes up to 30 times its own size
PICTURES = ("image/png", "image/jpeg", "image/gif")
LARGEST_PICTURE = 2**20  # characters of base64
IN_TEXT = re.compile(rf"data:({'|'.join(PICTURES)});base64,([A-Za-z0-9+/]+=*)")


class NotALab(Exception):
    """The file is not a submission of this lab; the message says why."""


def read(path):
    """Return a notebook with a student's cells. Raises NotALab unless the file is one."""
    try:
        cells = _contents(path)["cells"]
        if len(cells) > MOST_CELLS:
            raise NotALab(f"the file has more than {MOST_CELLS} cells.")
        made = [_cell(cell, number) for number, cell in enumerate(cells)]
    except NotALab:
        raise
    except Exception as error:  # whatever a damaged file leads to
        raise NotALab(f"the file is no notebook ({type(error).__name__}).") from None
    if sum(len(cell["source"].encode()) for cell in made) > LONGEST_TEXT:
        raise NotALab(f"the file has more than {LONGEST_TEXT:,} bytes in its cells.")
    return nbformat.from_dict({"cells": made, "metadata": {}, "nbformat": 4, "nbformat_minor": 5})


def _contents(path):
    if not path.is_file():  # a pipe would wait for its other end
        raise NotALab("it is no file.")
    with open(path, "rb") as file:
        data = file.read(LARGEST_NOTEBOOK + 1)
    if len(data) > LARGEST_NOTEBOOK:
        raise NotALab(f"the file is larger than {LARGEST_NOTEBOOK >> 20} MB.")
    contents = json.loads(data)
    if contents["nbformat"] != 4:
        raise NotALab("the file is a notebook of another format than 4: open it in JupyterLab, and save it.")
    return contents


def _cell(cell, number):
    kind, text = cell["cell_type"], cell["source"]
    text = text if isinstance(text, str) else "".join(text)
    if kind not in ("code", "markdown", "raw"):
        raise NotALab("the file is no notebook.")
    text = text.encode(errors="replace").decode()  # with no half characters, which no file can hold
    name = _within(_within(cell, "metadata"), "nbgrader").get("grade_id")
    made = {"id": f"cell-{number}", "cell_type": kind, "source": text, "metadata": {}}
    if isinstance(name, str):
        made["metadata"] = {"nbgrader": {"grade_id": name}}
    if kind == "code":
        made |= {"outputs": [], "execution_count": None}
        if _ran(cell):
            made["metadata"]["ran"] = True
    if kind == "markdown":
        found = dict(_within(cell, "attachments"))
        made["source"] = IN_TEXT.sub(lambda match: _attached(found, *match.groups()), text)
        made["attachments"] = _pictures(found)
    return made


def _ran(cell):
    """Return whether code, by its number and what stands below it, ran to its end where it was written."""
    outputs = cell.get("outputs")
    said = [each.get("output_type") for each in outputs if isinstance(each, dict)] if isinstance(outputs, list) else []
    return isinstance(cell.get("execution_count"), int) and "error" not in said


def _within(about, name):
    """Return the dict that a dict has under a name, an empty one where it has something else there, or nothing."""
    found = about.get(name)
    return found if isinstance(found, dict) else {}


def _attached(attachments, kind, data):
    """Put a picture that stood in the text, as Colab pastes one, beside those attached, and return its address."""
    name = f"in-the-text-{len(attachments)}"
    attachments[name] = {kind: data}
    return f"attachment:{name}"


def _pictures(attachments):
    """Return {name: {type: base64}} of what is a picture, and small."""
    found: dict = {}
    for name in attachments:
        for kind in PICTURES:
            data = _within(attachments, name).get(kind)
            if isinstance(data, str) and len(data) <= LARGEST_PICTURE and len(found) < 10:
                with contextlib.suppress(ValueError):  # it is no base64
                    found[name] = {kind: base64.b64encode(base64.b64decode(data)).decode()}
    return found
