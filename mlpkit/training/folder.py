"""The folder of a run's checkpoints: one run's at a time, and what an earlier run left there is set aside, not lost.

A run that goes on from `last.npz` is on the path of one that was never stopped: to the bit, if as many threads share
the sums. So the data must be the same, the optimizer, and its schedule: for a falling rate, the number of epochs, too.
Checkpoints of an earlier run get other names, with a warning, before the first is written; and where one can't be
written, on a full disk, there is a warning, and the training goes on.
"""

import warnings
from contextlib import contextmanager

from mlpkit.data import epoch_order
from mlpkit.files import check_writable, only_one, set_aside
from mlpkit.paths import expanded

from .checkpoint import NAMES, fingerprint, load_checkpoint, save_checkpoint


class Folder:
    """Keeps a folder for a run, which goes on from the last checkpoint, or begins anew: within `kept`.

    train, validation: the data, as the engine has them; changed: the function that changes them for each epoch, or
    None. Raises OSError for what can't be written, or is another run's, ValueError for a checkpoint of another run.
    """

    def __init__(self, folder, run, resume, train, validation, changed):
        self.run, self.folder = run, expanded(folder)
        self.last, self.best = self.folder / "last.npz", self.folder / "best.npz"
        if resume and not self.last.exists():
            raise FileNotFoundError(f"there is no checkpoint {self.last} to resume from.")
        check_writable(self.last)
        check_writable(self.best)
        _check_state_names(run.optimizer)
        run.network.model.to_dict()  # raises ValueError where it can't be written
        self.data, self.earlier = (train, validation, changed), () if resume else (self.last, self.best)

    @contextmanager
    def kept(self):
        """Keep the folder from other runs; bring this one to where the last checkpoint was written, if it resumes."""
        with only_one(self.folder):
            self.run.settings |= self.fingerprints(*self.data)
            if not self.earlier:
                self.resume()
            self.run.folder = self
            yield

    def fingerprints(self, train, validation, changed):
        """Return what tells other data, another order of them, and other changes of them, from these."""
        order = epoch_order(len(train[1]), self.run.settings["seed"], 0)
        data = {"training data": train, "validation data": validation, "order of the examples": [order]}
        data["first epoch's images"] = changed and changed(0)
        return {name: of and fingerprint(*map(self.run.engine.to_numpy, of)) for name, of in data.items()}

    def resume(self):
        """Bring the run to where the last checkpoint was written."""
        run = self.run
        run.history, best = load_checkpoint(self.last, run.network, run.optimizer, run.settings)
        run.history.stopped = "finished"
        run.good, run.best = run.buffers = [run.copy(), run.copy()]
        for buffer, vector in zip(run.best, (vector for vector in best if len(vector)), strict=True):
            buffer[:] = run.engine.asarray(vector)
        run.go_back_to(run.best)
        run.network.save(self.best)  # it is written after the other, and a kill may have come between
        run.go_back_to(run.good)

    def keep(self, is_best):
        """Write the checkpoints of an epoch; warn where that can't be done."""
        try:
            self.write(is_best)
        except OSError as error:  # what has been learned is worth more than its copy
            warnings.warn(f"{str(error).rstrip('.')}; the training goes on.", RuntimeWarning, stacklevel=6)

    def write(self, is_best):
        """Write the checkpoints: first the one that has all, and that tells a run from none."""
        for aside in filter(None, map(set_aside, self.earlier)):
            warnings.warn(f"an earlier run's checkpoint is now {aside}.", RuntimeWarning, stacklevel=7)
        self.earlier, run = (), self.run
        best = [run.engine.to_numpy(vector) for vector in run.best]
        best += [best[0][:0]] * (2 - len(best))  # no statistics
        save_checkpoint(self.last, run.network, run.optimizer, run.history, best, run.settings)
        if is_best:
            run.network.save(self.best)


def _check_state_names(optimizer):
    """Raise ValueError where a vector of an optimizer's state has one of the names that are taken in its file."""
    for name in set(optimizer.state) & {*NAMES, "path", "file"}:  # these two are NumPy's and `save_npz`'s
        raise ValueError(
            f"{type(optimizer).__name__}'s state has a vector called {name!r}, a name that is taken: choose another."
        )
