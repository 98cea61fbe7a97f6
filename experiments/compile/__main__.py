"""What the first steps of an engine take, in JSON: `python -m experiments.compile NAME`."""

import json
import sys

from .measure import first_steps

if __name__ == "__main__":
    print(json.dumps(first_steps(sys.argv[1])))
