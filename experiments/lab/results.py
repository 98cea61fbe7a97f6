"""A record is a measurement that somebody else can check: the raw samples, and everything they depend on.

Records are JSON files, `results/<machine>/<experiment>.json`. Those in the repository are the runs that the chapters
show; `results/mine/` is for the reader's own, and git ignores it (in a workbook that is not the reader's to write in,
their own data folder is). While it is made, a record is written after each measurement, so an interrupted run loses
nothing that it has measured; but under another name, which ends in `.partial`.
"""

import json
import os
import re
import subprocess
import warnings
from datetime import UTC, datetime
from functools import cache, wraps
from pathlib import Path

import numpy as np
import platformdirs

from mlpkit import __version__, engines, machine
from mlpkit.files import write_atomically
from mlpkit.nn.models import MODELS
from mlpkit.nn.reading import loss_text
from mlpkit.paths import check_readable
from mlpkit.words import counted

SCHEMA = 1
ROOT = machine.ROOT
FOLDER = ROOT / "results"
MINE = "mine"
CHAPTERS = ("amd-epyc-2-cores", "nvidia-h200")  # the machines whose numbers the chapters tell
FIELDS = {
    "schema": int,
    "experiment": str,
    "date": str,
    "commit": str,
    "dirty": bool,
    "version": str,
    "machine": dict,
    "settings": dict,
    "runs": list,
}
CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff]")  # not tabs and ends of lines


class RecordError(ValueError):
    """A file is not a record that this version can read; the message names the file and what is wrong."""


def new(experiment, **settings):
    """Return an empty record of `experiment`. settings: what all of its runs share, as JSON can hold it."""
    commit, dirty = _commit()
    return {
        "schema": SCHEMA,
        "experiment": experiment,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": commit,
        "dirty": dirty,
        "version": __version__,
        "machine": machine.describe(),
        "settings": settings,
        "runs": [],
    }


def collect(record, found, save):
    """Append to a record each of the runs that `found` yields, and save it after each; return the record.

    found: a generator that measures a run when it is asked for it, so that an interruption costs one run at most.
    """
    for run in found:
        record["runs"].append(run)
        save(record)
    return record


def save(record, machine_name=MINE, folder=FOLDER):
    """Write a whole record, atomically, and return its path. What `save_part` wrote of it goes."""
    path = folder_of(machine_name, folder) / f"{record['experiment']}.json"
    write_atomically(path, _to_json(record).encode())
    _part(path, record).unlink(missing_ok=True)
    return path


def save_part(record, machine_name=MINE, folder=FOLDER):
    """Write what there is so far of a record, to `<experiment> <when>.json.partial`, and return this path."""
    path = _part(folder_of(machine_name, folder) / f"{record['experiment']}.json", record)
    write_atomically(path, _to_json(record).encode())
    return path


def _part(path, record):
    return path.with_name(f"{path.stem} {record['date'][:19].replace('T', ' ').replace(':', '.')}.json.partial")


def folder_of(machine_name, folder=FOLDER):
    """Return the folder of a machine's records, in `folder`.

    The reader's own are in the user's data folder (~/.local/share on Linux) where a workbook that others share, such as
    one in /opt, can't be written.
    """
    path = Path(folder) / machine_name
    there = next(each for each in (path, *path.parents) if each.exists())
    if machine_name != MINE or os.access(there, os.W_OK):
        return path
    return platformdirs.user_data_path("mlpkit", appauthor=False) / "results"


def place(experiment, machine_name=MINE):
    """Return the path of a record in this checkout, or of the reader's own."""
    return folder_of(machine_name, ROOT / "results") / f"{experiment}.json"


def shown(path):
    """Return a record's path as text: from the workbook on, where it is in it."""
    path = Path(path)
    return path.relative_to(ROOT).as_posix() if path.is_relative_to(ROOT) else str(path)


def _to_json(record):
    """Return the record as JSON with a line for each run, so that a difference between two records can be read."""
    head = [f"{json.dumps(name)}: {json.dumps(value)}" for name, value in record.items() if name != "runs"]
    runs = ",\n".join(json.dumps(run) for run in record["runs"])
    return "{\n" + ",\n".join(head) + ',\n"runs": [\n' + runs + "\n]}\n"


def load(path):
    """Return the record in the file `path`, with the losses of its models as they are written now.

    Raises RecordError where it is not a whole record of this schema.
    """
    check_readable(path)
    try:
        record = json.loads(Path(path).read_text(encoding="utf-8"), object_hook=_renewed)
        odd = any(map(CONTROL.search, _texts(record)))
    except (ValueError, RecursionError) as error:
        raise RecordError(f"{path} is not a JSON file: {error}.") from error
    if not isinstance(record, dict) or record.get("schema") != SCHEMA:
        found = record.get("schema") if isinstance(record, dict) else None
        raise RecordError(f"{path} has schema {found}; this version reads schema {SCHEMA}.")
    for name, kind in FIELDS.items():
        if not isinstance(record.get(name), kind):
            raise RecordError(f"{path} lacks {name!r}, or it is no {kind.__name__}.")
    gpu = record["machine"].get("gpu")
    if not {"cpu", "cores"} <= record["machine"].keys() or not isinstance(gpu, dict) or "found" not in gpu:
        raise RecordError(f"{path} does not say on which machine it was made: 'machine' lacks cpu, cores or gpu.")
    if not all(isinstance(run, dict) and isinstance(run.get("engine", ""), str) for run in record["runs"]):
        raise RecordError(f"{path} has a run that is no dict, or whose engine is no name.")
    if odd:
        raise RecordError(
            f"{path} has a text with control characters, or parts of some, which could be commands to a terminal."
        )
    return record


def _renewed(found):
    """Return what JSON calls an object: where it is a model of version 0.2, as this version writes it.

    So two models are the same where their dictionaries are, whichever version wrote them.
    """
    is_model = found.keys() == {"input", "layers", "loss"} and isinstance(found["loss"], str)
    return found | {"loss": loss_text(found["loss"])} if is_model else found


def _texts(value):
    """Yield all texts in what JSON can hold."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for part in [*value, *value.values()] if isinstance(value, dict) else value:
            yield from _texts(part)


def load_of(experiment, path):
    """Return what `load` returns. Raises RecordError also for another experiment's record, such as a copy renamed."""
    record = load(path)
    if record["experiment"] != experiment:
        raise RecordError(f"{path} holds a record of {record['experiment']!r}: give the file that experiment's name.")
    return record


def reads(table):
    """Have a function of a record raise RecordError, in one sentence, where the record is not as the function needs it.

    Whether the fields of a run are there, and are numbers, shows when they are read: a record may be somebody else's.
    """

    @wraps(table)
    def read(record, *arguments, **options):
        try:
            with warnings.catch_warnings(action="ignore"):  # as of the mean of no samples, which is NaN
                return table(record, *arguments, **options)
        except RecordError:
            raise
        except (ArithmeticError, AttributeError, LookupError, StopIteration, TypeError, ValueError) as error:
            what = " ".join(f"{type(error).__name__}: {error}".split()).rstrip(".")
            raise RecordError(f"this record can't be read, a field is missing or odd ({what}).") from error

    return read


def published(experiment, folder=FOLDER):
    """Return the record of `experiment` that came with the workbook; another machine's, by name, only where none did.

    Raises FileNotFoundError without any.
    """
    names = {path.parent.name: path for path in sorted(Path(folder).glob(f"*/{experiment}.json"))}
    for name in (*CHAPTERS, *names):
        if name in names and name != MINE:
            return load_of(experiment, names[name])
    raise FileNotFoundError(
        f"no record of {experiment!r} in {folder}: run `python -m mlpkit bench {experiment}` to make one."
    )


def runs(record, **wanted):
    """Return the runs of a record that have all of the given values. What few have is best named last."""
    found = record["runs"]
    for key, value in reversed(wanted.items()):  # one after the other: the next looks at fewer
        found = [run for run in found if run.get(key) == value]
    return list(found)


@cache
def models():
    """Return the workbook's models by name, each as a record has it."""
    return {name: model.to_dict() for name, model in MODELS.items()}


def median(run, name="samples_us"):
    """Return the median of one of a run's lists of samples, in the samples' unit."""
    return float(np.median(run[name]))


def median_us(run):
    """Return the median of a run's samples in microseconds a step, None where it has none."""
    return median(run) if run["samples_us"] else None


def pooled_us(record, **wanted):
    """Return the median of all samples of the runs with these values, rounds together; None where there are none."""
    found = [run["samples_us"] for run in runs(record, **wanted) if not run["why_not"]]
    return float(np.median(np.concatenate(found))) if found else None


def by_engine(record, title, columns, value, form, widths):
    """Return a table for the terminal: a row an engine, and below who did not run.

    columns: {heading: key}; value(engine, key) is formatted by `form`, None is a dash. widths: of the first column, and
    of the others.
    """
    first, width = widths
    lines = [f"{title:<{first}}" + "".join(f"{heading:>{width}}" for heading in columns)]
    for who in dict.fromkeys(run["engine"] for run in record["runs"]):
        found = [value(who, key) for key in columns.values()]
        lines.append(f"{who:<{first}}" + "".join(f"{'-' if x is None else format(x, form):>{width}}" for x in found))
    return "\n".join([*lines, *not_run(record["runs"])])


def brief(us):
    """Return microseconds as text: with a decimal, where there are less than ten."""
    return f"{us:,.1f}" if us < 10 else f"{us:,.0f}"


def not_run(runs):
    """Return a line for each reason why engines have no time: with their names, or, of more than two, their number."""
    names: dict[str, dict[str, None]] = {}
    for run in runs:
        if run["why_not"] or not run["samples_us"]:
            reason = run["why_not"] or "interrupted before its turn"
            reason = reason.removeprefix(f"engine {run['engine']} ").removeprefix("can't run on this machine: ")
            names.setdefault(reason, {})[run["engine"]] = None
    return [f"not run: {_who(list(shared))}: {reason}" for reason, shared in names.items()]


def _who(names):
    if len(names) <= 2:
        return ", ".join(names)
    kind = "GPU engines" if all(map(engines.on_gpu, names)) else "engines"
    return f"{len(names)} {kind}"


def mean_and_spread(fractions):
    """Return the mean and the standard deviation over seeds as percentages: "97.50% +- 0.71%"; "97.50%" of one."""
    mean = f"{np.mean(fractions):.2%}"
    return f"{mean} +- {np.std(fractions, ddof=1):.2%}" if len(fractions) > 1 else mean


@reads
def caption(record, cpu=True):
    """Return where and when the record was made, in one line. cpu=False: name the GPU alone, where there was one."""
    facts = record["machine"]
    where = [facts["gpu"]["name"]] if facts["gpu"]["found"] else []
    if cpu or not where:
        where += [facts["cpu"], counted(facts["cores"], "core")]
    return ", ".join([*where, record["date"][:10]])


def _commit():
    """Return the checkout's commit, and whether the package or its pins differ from it; 'unknown' outside of one.

    A copy without its history, on another machine, is told by the variable MLPKIT_COMMIT which clean commit it is. A
    copy that lies inside somebody's own repository is not that repository's commit, unless this has the package too.
    """
    if told := os.environ.get("MLPKIT_COMMIT"):
        if not re.fullmatch("[0-9a-f]{40}", told):
            raise ValueError(f"MLPKIT_COMMIT must be the 40 digits of a commit, as of git rev-parse, not {told!r}.")
        return told, False
    try:
        commit, _ = _git("rev-parse", "HEAD", "HEAD:./mlpkit").split()
        return commit, bool(_git("status", "--porcelain", "--", "mlpkit", "experiments", "constraints.txt"))
    except (OSError, subprocess.SubprocessError):
        return "unknown", True


def _git(*arguments):
    command = ["git", "-C", str(ROOT), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=10).stdout.strip()
