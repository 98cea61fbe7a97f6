"""What a lab says while somebody works on it: is this right, and if not, what does it look like?

A check compares what a student wrote with what it should give, in sentences that name the symptom, never the remedy's
code. It trusts nothing that it is given: no method of a student's object is called.
"""

from .lab import Lab
from .verdicts import Case, Verdict, case

__all__ = ["Case", "Lab", "Verdict", "case"]
