"""The workbook's own NumPy engine, measured as the others are."""

from ..bench import Stepper


def prepare(problem):
    stepper = Stepper("numpy_baseline", problem.recipe, (problem.X, problem.y))
    return lambda n: stepper.take(n)[1]
