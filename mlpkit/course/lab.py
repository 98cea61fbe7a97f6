"""A lab in progress: checks that answer at once, predictions, hints one at a time, and how far one is."""

import math
import tomllib
from pathlib import Path

from .values import NotNumbers, numbers
from .verdicts import Verdict, judge, judge_value

STEPS = 3  # a question, a direction, almost there


class Lab:
    """What is done in one notebook so far. Nothing is written to a file: a new kernel starts anew.

    tasks: the names of what there is to do, in order. hints: a TOML file with a list of three hints for each task; none
    where there is no such file.
    """

    def __init__(self, *tasks, hints="hints.toml"):
        path = Path(hints)
        self.hints = tomllib.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
        self.tasks = tasks
        self.asked = dict.fromkeys(tasks, 0)
        self.verdicts = []  # (task, Verdict), the latest last
        unknown = self.hints.keys() - set(tasks)
        if unknown:
            raise ValueError(f"{path} has hints for {', '.join(sorted(unknown))}, which are no tasks of this lab.")

    def check(self, task, function, *cases, which=""):
        """Say whether a function is right in every case (see `case`), and if not, how it is wrong.

        which: what to call it, where a task has several, such as "compiled".
        """
        return self._keep(task, judge(_called(task, which), function, cases))

    def check_value(self, task, value, expected, which="", **close):
        """Say whether a value is the expected one; `close` as for `difference`: rtol, atol, same_dtype."""
        return self._keep(task, judge_value(_called(task, which), value, expected, **close))

    def predicted(self, task, *guesses):
        """Say whether each guess is a finite number: a prediction that was made, however far off."""
        given = [guess is not None and guess is not ... for guess in guesses]
        good = [_number(guess) is not None for guess in guesses]
        missing = [place for place, there in enumerate(given, 1) if not there]
        odd = [place for place, pair in enumerate(zip(given, good, strict=True), 1) if pair == (True, False)]
        say = [f"{_numbered(missing)} {'are' if len(missing) > 1 else 'is'} still missing"] if missing else []
        say += [f"{_numbered(odd)} must be a number alone, such as 2.3: no comma, no text, no unit"] if odd else []
        return self._keep(task, Verdict(all(good), f"{task}: {'; '.join(say) or 'made'}."))

    def compare(self, task, predicted, measured, unit=""):
        """Hold a prediction against the measurement, which is shown only to those who made one.

        predicted: any object; a finite number counts. measured: a number. Return whether there was a prediction.
        """
        guess, measured = _number(predicted), float(measured)
        if guess is None:
            print(f"{task}: write your prediction first, as a number; then this cell shows the measurement.")
            return False
        far = _points(guess, measured) if unit == "%" else _distance(guess, measured)
        unit = unit and f" {unit}"
        print(f"{task}: you said {guess:.4g}{unit}, measured {measured:.4g}{unit}; {far}.")
        return True

    def ready(self, *tasks):
        """Return whether the latest check of each task said "right"; if not, print which to finish first."""
        latest = dict(self.verdicts)
        missing = [task for task in tasks if not latest.get(task)]
        if missing:
            print(f"This cell needs {', '.join(missing)}: finish that first, and run its check.")
        return not missing

    def hint(self, task):
        """Print the next hint for a task: a question first, then a direction, then nearly the way, again and again."""
        task = str(task).replace("-", "_")  # as a cell is called
        steps = self.hints.get(task, [])
        if not steps:
            print(f"There are no hints for {task}; there are for {', '.join(self.hints) or 'nothing'}.")
            return
        self.asked[task] = min(self.asked[task] + 1, len(steps))
        number = self.asked[task]
        print(f"{task}, hint {number} of {len(steps)}: {steps[number - 1]}")

    def progress(self):
        """Print a bar of the tasks whose latest check said "right", and what is still open; words are not counted."""
        latest = dict(self.verdicts)
        done = [task for task in self.tasks if latest.get(task)]
        bar = "".join("#" if latest.get(task) else "." for task in self.tasks)
        print(f"[{bar}] {len(done)} of {len(self.tasks)} tasks")
        still = [task for task in self.tasks if task not in done]
        if still:
            print("still open:", ", ".join(still))
        else:
            print("The answer in words is not counted here: a person reads it.")

    def _keep(self, task, verdict):
        self._must_be_one(task)
        self.verdicts.append((task, verdict))
        print(("✓ " if verdict else "✗ ") + verdict.sentence)
        if not verdict and self.hints.get(task) and self.asked[task] < len(self.hints[task]):
            print(f'  lab.hint("{task}") helps.')
        return verdict

    def _must_be_one(self, task):
        if task not in self.tasks:
            raise ValueError(f"{task!r} is no task of this lab; there are {', '.join(self.tasks)}.")


def _number(value):
    """Return any object as a finite float, or None."""
    try:
        array = numbers(value)
    except NotNumbers:
        return None
    if array.size != 1 or array.dtype.kind not in "iuf":
        return None
    number = float(array.reshape(())[()])
    return number if math.isfinite(number) else None


def _called(task, which):
    return f"{task}, {which}" if which else task


def _numbered(places):
    return f"number{'s' if len(places) > 1 else ''} {', '.join(map(str, places))}"


def _points(guess, measured):
    """Return how far one percentage is from another, in percentage points."""
    if guess == measured:
        return "exactly"
    return f"{abs(guess - measured):.3g} points too {'high' if guess > measured else 'low'}"


def _distance(guess, measured):
    if guess == measured:
        return "exactly"
    if not guess * measured > 0:  # NaN, too
        return f"{abs(guess - measured):.4g} apart"
    factor = max(guess / measured, measured / guess)
    if factor < 1.02:
        return "within 2 %"
    if factor < 2:
        return f"{100 * abs(guess / measured - 1):.0f} % too {'high' if abs(guess) > abs(measured) else 'low'}"
    return f"a factor of {factor:.3g} too {'high' if abs(guess) > abs(measured) else 'low'}"
