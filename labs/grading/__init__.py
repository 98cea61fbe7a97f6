"""Make student versions of the labs, and grade what comes back.

A submission runs in a box of its own (`box`, `inside`). The tests run outside, in another process (`judge`), beside the
reference: what the student's functions return goes over a pipe as plain numbers (`wire`), so nothing that a submission
does to NumPy, to a test or to its own kernel changes a comparison.
"""

import sys

# Each submission is judged and laid out in new processes, which read notebooks. Whoever checks these, jsonschema, would
# first compile a grammar of Internet addresses, four fifths of such a process's start; it does without where it is not
# installed, and no notebook is checked for an address.
sys.modules.setdefault("rfc3987_syntax", None)  # type: ignore[arg-type]
