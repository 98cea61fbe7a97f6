"""How a number is said: one thread, but two threads."""


def counted(n, what):
    """Return a number with what it counts, a noun in the singular: "1 thread", "2 threads", "2 busy programs"."""
    return f"{n:,} {what}" + ("" if n == 1 else "s")
