"""Measure a peer in this process: `python -m mlpkit.lab.peers NAME SETTINGS`; settings and answer are JSON."""

import json
import sys

from mlpkit.lab.bench import Timing
from mlpkit.training.recipe import Recipe

from . import measure

settings = json.loads(sys.argv[2])
timing = Timing(**settings["timing"])
print(json.dumps([measure(sys.argv[1], Recipe.from_dict(recipe), timing) for recipe in settings["recipes"]]))
