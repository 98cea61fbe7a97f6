"""Measure a peer's answers in this process, when asked: `python -m experiments.lab.peers.predicting NAME SETTINGS`."""

import json
import sys

import numpy as np

from experiments.lab.processes import wait_to_be_asked

from . import Task, prepared

settings = json.loads(sys.argv[2])
with np.load(settings["data"]) as data:
    task = Task(settings["path"], data["x"], data["wanted"])
measure = prepared(sys.argv[1], task, settings["sizes"], settings["precision"])
wait_to_be_asked()
print(json.dumps(measure()))
