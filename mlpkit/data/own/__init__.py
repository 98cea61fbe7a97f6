"""What is yours becomes a `Dataset` in one call: `data.from_X` is in the file `X.py`, which is imported only then.

What is odd is refused in one sentence that names it, before memory is taken for all the rest.
"""
