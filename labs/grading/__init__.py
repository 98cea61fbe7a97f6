"""Make student versions of the labs, and grade what comes back.

A submission runs in a box of its own (`box`, `inside`). The tests run outside, in another process (`judge`), beside the
reference: what the student's functions return goes over a pipe as plain numbers (`wire`), so nothing that a submission
does to NumPy, to a test or to its own kernel changes a comparison.
"""
