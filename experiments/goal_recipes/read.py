"""What the record "goal_recipes" says: which recipe to take for a goal."""

from experiments.lab.trainings import summary

SHARE = 0.8  # of a goal's errors: what a recipe may make on the validation set


def required(goal, share=SHARE):
    """Return the validation accuracy, a fraction, that a recipe for `goal` percent of the test images must have."""
    return 1 - share * (1 - goal / 100)


def cheapest(record, goal):
    """Return, as a dict, the recipe of fewest epochs whose worst seed is `required` for `goal` percent.

    Of two with equally many epochs, that of the better worst seed. Raises ValueError where none is good enough.
    """
    least = required(goal, record["settings"]["share"])
    good = [(recipe["epochs"], -min(found), recipe) for recipe, found in summary(record)]
    good = sorted((entry for entry in good if -entry[1] >= least), key=lambda entry: entry[:2])
    if not good:
        raise ValueError(f"no candidate reaches {least:.2%} from every seed: add one that trains for more epochs.")
    return good[0][2]
