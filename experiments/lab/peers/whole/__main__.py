"""Train a peer whole, when asked: `python -m experiments.lab.peers.whole NAME SETTINGS`, all in JSON."""

import json
import sys

from experiments.lab.processes import wait_to_be_asked
from mlpkit.training.recipe import Recipe

from . import prepared

settings = json.loads(sys.argv[2])
train = prepared(sys.argv[1], Recipe.from_dict(settings["recipe"]))
wait_to_be_asked()
print(json.dumps(train(settings["seeds"])))
