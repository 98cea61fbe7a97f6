"""The loop of a search: ask Optuna what to try, have it trained, tell Optuna how good it was.

The client alone reads and writes the storage, a transaction at a time. A trial that is under way has a heartbeat there.
One whose heartbeat has stopped, as its client was killed, is marked as failed by whoever looks next, and its choices
are tried again: so a second client may even help. A worker that dies is the scheduler's business: another one does
again what it did, and a trial that three workers died of is given up.
"""

import time
import warnings
from contextlib import contextmanager, suppress
from operator import itemgetter

import optuna
from distributed import TimeoutError as NotYet
from distributed import wait
from distributed.scheduler import KilledWorker
from optuna.storages import RDBStorage, RetryHeartbeatStaleTrialCallback, fail_stale_trials
from optuna.trial import TrialState
from sqlalchemy import URL
from sqlalchemy.exc import OperationalError, SQLAlchemyError

from mlpkit.files import check_writable
from mlpkit.words import short

from .cluster import DEATHS, client_of
from .study import FACTOR, GOALS
from .study import read as read
from .task import train_to

WORST = 0.0, float("inf")  # what a training that diverged is worth


def search(path, show=lambda trial, finished, study: None):
    """Run the search in a TOML file, or go on with it, to its end; return Optuna's study.

    show: is called after each trial, with it, the number of those that are finished, and Optuna's study. Raises what
    `study.read` does, ValueError for a study that was begun with other settings, and OSError for a storage or a
    scheduler that is not there, or no more: what was finished is kept, and the same call goes on.
    """
    study = read(path)
    with warnings.catch_warnings(action="ignore"), opened(study) as found:
        if finished(found.trials) < Search(study, found, None, show).wanted:
            with client_of(study) as client:
                Search(study, found, client, show).run()
        return found


@contextmanager
def opened(study):
    """Yield the Optuna study of a `Study`, made where there is none. For what it raises see `search`."""
    url, busy = study.storage, {}
    if "://" not in url:
        file = (study.path.parent / study.storage).absolute()
        check_writable(file)
        url = str(URL.create("sqlite", database=str(file)))  # in which a name with {} or ? stays whole
        busy = {"connect_args": {"timeout": 60}}  # seconds, while others write
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    beats: dict = {"heartbeat_interval": study.heartbeat, "grace_period": 3 * study.heartbeat}
    beats["heartbeat_stale_trial_callback"] = RetryHeartbeatStaleTrialCallback()
    try:
        try:
            storage = RDBStorage(url, busy, **beats)
        except OperationalError:  # another client makes the same tables just now
            time.sleep(3)
            storage = RDBStorage(url, busy, **beats)
        yield prepared(study, storage)
    except (optuna.exceptions.StorageInternalError, SQLAlchemyError) as error:
        reason = short(getattr(error.__cause__ or error, "orig", error))
        raise OSError(f"{study.storage} can't be used ({reason}): mend that, and the same command goes on.") from error


def prepared(study, storage):
    """Return the Optuna study of a `Study` in Optuna's storage, None for one in memory, with its sampler and pruner."""
    found = optuna.create_study(
        study_name=study.name, storage=storage, load_if_exists=True, direction=GOALS[study.goal]
    )
    wanted, known = study.settings(), found.user_attrs.get("settings", {})
    for name in known:
        if known[name] != wanted.get(name):
            differs = short(f"{name} {known[name]}, here it is {wanted.get(name)}")
            raise ValueError(f"{study.storage} has a study {study.name!r} with {differs}: give this one another name.")
    found.set_user_attr("settings", wanted)
    if study.sampler == "grid":
        _queue(found, study.points())
    found.sampler = sampler_of(study, len(found.trials))
    hyperband = optuna.pruners.HyperbandPruner(1, study.rungs()[-1], FACTOR)
    found.pruner = hyperband if study.pruner == "hyperband" else optuna.pruners.NopPruner()
    return found


def _queue(found, points):
    """Let each of the points be tried once. Optuna, asked to skip what it has, looks through all trials for each."""
    trials = found.get_trials(deepcopy=False)
    known = {frozenset(trial.system_attrs.get("fixed_params", trial.params).items()) for trial in trials}
    for choices in points:
        if (point := frozenset(choices.items())) not in known:
            known.add(point)
            found.enqueue_trial(choices)


def sampler_of(study, number):
    """Return what proposes a trial of that number: so what goes on draws no point again."""
    kind = optuna.samplers.TPESampler if study.sampler == "tpe" else optuna.samplers.RandomSampler
    return kind(seed=(study.seed + 1_000_003 * number) % 2**32)


class Search:
    """Runs trials on the client's workers, one each; `running` are their values to come, with (trial, rung, part)."""

    def __init__(self, study, found, client, show):
        self.study, self.found, self.client, self.show = study, found, client, show
        self.storage, self.running, self.met = found._storage, {}, set()
        self.wanted = len(study.points()) if study.sampler == "grid" else study.trials

    def run(self):
        """Go on until enough trials are finished."""
        try:
            while self.fill() or self.running:
                self.look()
        except BaseException:
            for trial, *_ in self.running.values():  # nobody need wait for their heartbeats to stop
                self.storage.set_trial_state_values(trial._trial_id, TrialState.FAIL)
                self.storage.get_heartbeat_stale_trial_callback()(self.found, self.storage.get_trial(trial._trial_id))
            raise

    def fill(self):
        """Give each idle worker a trial, as long as there are any to do; return whether there will be more."""
        trials = self.found.get_trials(deepcopy=False)
        under_way = {trial._trial_id for trial in trials if trial.state == TrialState.RUNNING}
        for each in under_way - self.met:  # a client may have been killed before it gave its trial a heartbeat
            self.storage.record_heartbeat(each)
        self.met |= under_way
        fail_stale_trials(self.found)
        missing = self.wanted - finished(trials)
        idle = self.workers() - len(self.running)
        for _ in range(min(idle, missing - len(under_way))):
            number = len(self.found.get_trials(deepcopy=False))  # of the next one, unless one waits to be tried again
            self.found.sampler = sampler_of(self.study, number)
            trial = self.found.ask(self.study.distributions())
            self.storage.record_heartbeat(trial._trial_id)
            self.start(trial, 0)
        return missing > 0

    def workers(self):
        """Return how many there are. Raises OSError where their scheduler is gone."""
        try:
            return len(self.client.nthreads())
        except (OSError, NotYet) as error:
            raise OSError("the scheduler is gone, and its workers: the same command goes on.") from error

    def start(self, trial, rung, before=None):
        """Have a trial trained up to a rung."""
        epochs = self.study.rungs()[rung]
        part = self.client.submit(train_to, self.study, trial.params, epochs, before, pure=False)  # as its own task
        self.running[self.client.submit(itemgetter(0), part)] = trial, rung, part
        self.met.add(trial._trial_id)

    def look(self):
        """Wait until a trial has come further, or it is time for heartbeats; tell Optuna what was found."""
        with suppress(NotYet):
            wait([*self.running], self.study.heartbeat / 2, "FIRST_COMPLETED") if self.running else time.sleep(0.2)
        for value in [value for value in self.running if value.done()]:
            with suppress(optuna.exceptions.UpdateFinishedTrialError):  # another client took this one for dead
                self.came(value, *self.running.pop(value))
        for trial, *_ in self.running.values():
            self.storage.record_heartbeat(trial._trial_id)

    def came(self, value, trial, rung, part):
        """Take a trial's value after a rung: send it on, or end it."""
        if value.status == "error":
            error = value.exception()
            killed = isinstance(error, KilledWorker)
            trial.set_user_attr("why", f"{DEATHS} workers died of it" if killed else short(f"{error}".rstrip(".")))
            state, result = TrialState.FAIL, None
        elif value.status != "finished":
            raise OSError("the scheduler has lost its trials: the same command goes on.")
        else:
            state, result = TrialState.COMPLETE, value.result()
            trial.report(result, self.study.rungs()[rung])
            if rung + 1 < len(self.study.rungs()) and result not in WORST:
                if not trial.should_prune():
                    return self.start(trial, rung + 1, part)
                state, result = TrialState.PRUNED, None
        self.found.tell(trial, result, state, skip_if_finished=True)
        trials = self.found.get_trials(deepcopy=False)
        self.show(trials[trial.number], finished(trials), self.found)


def finished(trials):
    """Return how many of Optuna's trials have come to their end: a value, a rung where they were left, or an error."""
    ended = TrialState.COMPLETE, TrialState.PRUNED
    return sum(each.state in ended or (each.state == TrialState.FAIL and "why" in each.user_attrs) for each in trials)
