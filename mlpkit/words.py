"""How a number is said, one thread, but two threads; and what a terminal is given to read."""

from contextlib import contextmanager


def counted(n, what):
    """Return a number with what it counts, a noun in the singular: "1 thread", "2 threads", "2 busy programs"."""
    return f"{n:,} {what}" + ("" if n == 1 else "s")


def printable(text, kept=""):
    """Return a text as a terminal can show it: what it would heed, or has no sign for, is written out: ESC as "\\x1b".

    kept: what stays as it is all the same, such as ends of lines.
    """
    return "".join(sign if sign.isprintable() or sign in kept else ascii(sign)[1:-1] for sign in str(text))


def short(text, most=200):
    """Return a text, as one out of a file, on one line of at most so many characters, as a terminal can show it."""
    line = " ".join(printable(text, "\n\t").split())
    return line if len(line) <= most else f"{line[: most - most // 3]} ... {line[5 - most // 3 :]}"


@contextmanager
def short_sentences():
    """Keep newlines and thousands of letters that are in a file out of what the errors say that are raised here."""
    try:
        yield
    except (TypeError, ValueError) as error:
        error.args = (short(error, 600),)
        raise
