"""The threads of the libraries behind NumPy's products."""

from threadpoolctl import ThreadpoolController


class Blas:
    """How many there are, and how many may be used; one where threadpoolctl knows none."""

    def __init__(self):
        self.libraries = ThreadpoolController().select(user_api="blas").lib_controllers
        self.each = [1]

    def count(self):
        """Return how many threads there may be."""
        self.each = [library.get_num_threads() or 1 for library in self.libraries]
        return max(self.each, default=1)

    def use(self, n):
        """Use `n` threads at most, of those that `count` found."""
        for library, most in zip(self.libraries, self.each, strict=True):
            library.set_num_threads(min(n, most))
