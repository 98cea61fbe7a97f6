"""Measure one peer in this process: `python -m mlpkit.peers NAME SETTINGS`, the settings as JSON; prints JSON."""

import json
import sys

from ..bench import Timing
from ..recipe import Recipe
from . import measure

settings = json.loads(sys.argv[2])
print(json.dumps(measure(sys.argv[1], Recipe(**settings["recipe"]), Timing(**settings["timing"]))))
