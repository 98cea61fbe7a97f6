"""Measure a peer in this process, when asked: `python -m mlpkit.lab.peers NAME SETTINGS`; all in JSON."""

import json
import sys

from mlpkit.lab.bench import Timing
from mlpkit.lab.processes import wait_to_be_asked
from mlpkit.training.recipe import Recipe

from . import prepared

settings = json.loads(sys.argv[2])
measure = prepared(sys.argv[1], Recipe.from_dict(settings["recipe"]), Timing(**settings["timing"]))
wait_to_be_asked()
print(json.dumps(measure()))
