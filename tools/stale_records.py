"""Which records are older than the code that they time? They are listed in results/stale.txt.

A record names its commit and its engines. It is stale where one of these engines' files, as `lab.lines` finds them, has
changed since, or the experiment's own, or what that needs of kernels and of what launches them. Such a record still
says truly what was measured then: on an older state of the code. `python tools/stale_records.py` writes the list anew.
It asks git, which needs the whole history.
"""

import json
import subprocess
import sys
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1]
LIST = ROOT / "results" / "stale.txt"
sys.path.insert(0, str(ROOT))

from experiments.lab import lines, results  # noqa: E402


def timed(record):
    """Return the paths of the files that a record times, from ROOT on."""
    names = {str(run.get("engine")).rpartition(":")[2] for run in record["runs"]}  # of a prediction: "engine:NAME"
    experiment = ROOT / "experiments" / record["experiment"]
    own = [path for path in (experiment.with_suffix(".py"), *experiment.rglob("*.py")) if path.is_file()]
    found = {*lines.with_needed(own)}.union(*(lines.files(name) for name in names if lines.place(name)))
    return sorted(path.relative_to(ROOT).as_posix() for path in found)


@cache
def changed(commit):
    """Return the set of files that have changed since a commit, None where git does not know it."""
    asked = ["git", "diff", "--name-only", commit, "HEAD", "--"]
    done = subprocess.run(asked, cwd=ROOT, capture_output=True, text=True)
    return None if done.returncode else set(done.stdout.splitlines())


def stale(folder=ROOT / "results"):
    """Return the names of published records, as machine/record, whose code has changed since, or is not known."""
    found = []
    for path in sorted(folder.glob("*/*.json")):
        if path.parent.name == results.MINE:
            continue
        record = json.loads(path.read_text(encoding="utf-8"))
        since = changed(record["commit"])
        if since is None or since.intersection(timed(record)):
            found.append(f"{path.parent.name}/{path.stem}")
    return found


if __name__ == "__main__":
    names = stale()
    LIST.write_text("".join(f"{name}\n" for name in names), encoding="utf-8")
    print(f"{len(names)} records are older than the code that they time: {LIST.relative_to(ROOT)}")
