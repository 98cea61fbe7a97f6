"""Measure a peer in this process, when asked: `python -m experiments.lab.peers NAME SETTINGS`; all in JSON."""

import json
import sys

from experiments.lab.bench import Timing
from experiments.lab.processes import wait_to_be_asked
from mlpkit.training.recipe import Recipe

from . import prepared

settings = json.loads(sys.argv[2])
measure = prepared(sys.argv[1], Recipe.from_dict(settings["recipe"]), Timing(**settings["timing"]))
wait_to_be_asked()
print(json.dumps(measure()))
