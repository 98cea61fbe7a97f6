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

    def check(self, task, function, *cases):
        """Say whether a function is right in every case (see `case`), and if not, how it is wrong."""
        return self._keep(task, judge(task, function, cases))

    def check_value(self, task, value, expected, **close):
        """Say whether a value is the expected one; `close` as for `difference`: rtol, atol, same_dtype."""
        return self._keep(task, judge_value(task, value, expected, **close))

    def predicted(self, task, *guesses):
        """Say whether each guess is a finite number: a prediction that was made, however far off."""
        open_ones = [str(place) for place, guess in enumerate(guesses, 1) if _number(guess) is None]
        say = f"number {', '.join(open_ones)} of {len(guesses)} is still missing." if open_ones else "made."
        return self._keep(task, Verdict(not open_ones, f"{task}: {say}"))

    def compare(self, task, predicted, measured, unit=""):
        """Hold a prediction against the measurement, which is shown only to those who made one.

        predicted: any object; a finite number counts. measured: a number. Return whether there was a prediction.
        """
        guess = _number(predicted)
        if guess is None:
            print(f"{task}: write your prediction first, as a number; then this cell shows the measurement.")
            return False
        unit = unit and f" {unit}"
        print(f"{task}: you said {guess:.4g}{unit}, measured {measured:.4g}{unit}; {_distance(guess, measured)}.")
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
        self._must_be_one(task)
        steps = self.hints.get(task, [])
        if not steps:
            print(f"There are no hints for {task}.")
            return
        self.asked[task] = min(self.asked[task] + 1, len(steps))
        number = self.asked[task]
        print(f"{task}, hint {number} of {len(steps)}: {steps[number - 1]}")

    def progress(self):
        """Print a bar of the tasks whose latest check said "right", and what is still open."""
        latest = dict(self.verdicts)
        done = [task for task in self.tasks if latest.get(task)]
        bar = "".join("#" if latest.get(task) else "." for task in self.tasks)
        print(f"[{bar}] {len(done)} of {len(self.tasks)} tasks")
        still = [task for task in self.tasks if task not in done]
        if still:
            print("still open:", ", ".join(still))

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


def _distance(guess, measured):
    if guess == measured:
        return "exactly"
    if guess * measured <= 0:
        return f"{abs(guess - measured):.4g} apart"
    factor = max(guess / measured, measured / guess)
    if factor < 1.02:
        return "within 2 %"
    if factor < 2:
        return f"{100 * abs(guess / measured - 1):.0f} % too {'high' if abs(guess) > abs(measured) else 'low'}"
    return f"a factor of {factor:.3g} too {'high' if abs(guess) > abs(measured) else 'low'}"
