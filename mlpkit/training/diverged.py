"""What is raised when a training has lost its way."""


class Diverged(ArithmeticError):
    """A loss or a parameter is no longer a finite number. `history` holds what was recorded until then."""

    def __init__(self, message, history=None):  # None: pickle gives the message alone, and then what it had
        super().__init__(message)
        self.history = history
