"""A search in one process: nothing is lost, done twice or left running, whatever the file and the scheduler do."""

import resource
import signal
import sqlite3
import sys
import warnings
from contextlib import contextmanager, suppress

import numpy as np
import pytest

pytest.importorskip("optuna", reason="the extra `search` adds what these tests need")
pytest.importorskip("distributed", reason="the extra `search` adds what these tests need")
import dask
from distributed import Client

from mlpkit.__main__ import main
from mlpkit.kernels import gpu
from mlpkit.search import cluster, run
from mlpkit.search.study import Study, read
from mlpkit.search.task import train_to

SEARCH = {"lr": {"low": 0.01, "high": 0.5, "log": True}}
FILE = """
trials = {trials}
sampler = "{sampler}"
pruner = "{pruner}"
heartbeat = 1
{head}
[recipe]
epochs = 9
[search]
lr = {{ low = 0.01, high = 0.5, log = true, points = 5 }}
"""


def cheap(study, choices, epochs, before=None):
    """Stand for a training: the closer its rate to 0.1, the better, and better with each epoch."""
    return 1 / (1 + abs(np.log10(choices["lr"]) + 1)) - 1 / (9 + epochs), [b""]


@pytest.fixture(scope="module")
def client():
    with warnings.catch_warnings(action="ignore"), Client(processes=False, n_workers=1, threads_per_worker=1,
                                                          dashboard_address=None) as found:  # fmt: skip
        yield found


@pytest.fixture
def quick(client, monkeypatch):
    """Let searches train nothing, in this process."""

    @contextmanager
    def ours(study):
        yield client

    monkeypatch.setattr(run, "client_of", ours)
    monkeypatch.setattr(run, "train_to", cheap)


def written(folder, trials=6, sampler="random", pruner="none", head="", name="study"):
    path = folder / f"{name}.toml"
    path.write_text(FILE.format(trials=trials, sampler=sampler, pruner=pruner, head=head), encoding="utf-8")
    return path


def states(found):
    return [trial.state.name for trial in found.trials]


def few(monkeypatch):
    """Let a task find 300 images."""
    from mlpkit import data

    train, validation = (data.Split(*(array[:300] for array in part)) for part in data.load()[1:3])
    monkeypatch.setattr("mlpkit.search.task._parts", lambda name, images: (train, validation))
    return data.Dataset("few", train, validation, None, ())


def test_a_trial_in_rungs_is_to_the_bit_what_its_recipe_gives(tmp_path, monkeypatch):
    dataset = few(monkeypatch)
    recipe = {"epochs": 4, "schedule": "cosine", "optimizer": "adam"}
    study = Study(tmp_path, "s", SEARCH, recipe, seeds=2)
    part = None
    for epochs in study.rungs():
        part = train_to(study, {"lr": 0.01}, epochs, part)
    alone = [study.recipe_of({"lr": 0.01}, seed).train(dataset)[1].validation["accuracy"][-1] for seed in (0, 1)]
    assert study.rungs() == (1, 3, 4)
    assert part[0] == np.mean(alone)


def test_a_training_that_diverges_is_worth_the_worst(tmp_path, monkeypatch):
    few(monkeypatch)
    for goal, worst in (("accuracy", 0.0), ("loss", np.inf)):
        with np.errstate(all="ignore"):
            assert train_to(Study(tmp_path, "s", SEARCH, {"epochs": 3}, goal=goal), {"lr": 1e6}, 1)[0] == worst


def test_a_search_ends_with_its_trials_and_goes_on_when_there_are_more(tmp_path, quick):
    seen = []
    found = run.search(written(tmp_path), lambda trial, finished, study: seen.append((trial.number, finished)))
    assert states(found) == ["COMPLETE"] * 6
    assert seen == [(n, n + 1) for n in range(6)]
    assert len(run.search(written(tmp_path), None).trials) == 6
    more = run.search(written(tmp_path, trials=10))
    assert len({trial.params["lr"] for trial in more.trials}) == 10  # drew no point again
    assert more.best_value == max(trial.value for trial in more.trials)


def test_dask_does_not_look_after_itself_on_the_cores_that_train(tmp_path):
    study = Study(tmp_path, "s", SEARCH, {}, workers=1)
    with warnings.catch_warnings(action="ignore"), cluster.client_of(study) as client:
        (found,) = client.run(lambda: {name: dask.config.get(name) for name in cluster.QUIET}).values()
    assert found == cluster.QUIET
    assert dask.config.get("distributed.worker.profile.enabled")  # whoever else uses Dask in this process has it back


@pytest.mark.skipif(not hasattr(signal, "pthread_sigmask"), reason="Windows has no masks of signals")
def test_ctrl_c_in_a_terminal_is_heard_by_the_one_that_waits_and_by_no_worker(tmp_path):
    study = Study(tmp_path, "s", SEARCH, {}, workers=2)

    def blocked():
        return signal.SIGINT in signal.pthread_sigmask(signal.SIG_BLOCK, ())

    with warnings.catch_warnings(action="ignore"), cluster.client_of(study) as client:
        assert set(client.run(blocked).values()) == {True}
        assert not blocked()


@pytest.mark.slow
def test_hyperband_leaves_most_trials_early_and_the_best_one_goes_to_the_end(tmp_path, quick):
    found = run.search(written(tmp_path, trials=18, sampler="tpe", pruner="hyperband"))
    ends = [trial.last_step for trial in found.trials]
    assert {1, 9} <= set(ends)
    assert sum(ends) < 0.8 * 9 * 18
    assert found.best_trial.last_step == 9
    assert found.best_value > 0.9 - 1 / 18


def test_a_grid_is_done_whole_and_no_point_twice(tmp_path, quick):
    found = run.search(written(tmp_path, trials=2, sampler="grid"))
    assert sorted(trial.params["lr"] for trial in found.trials) == pytest.approx(np.geomspace(0.01, 0.5, 5))


def test_what_was_interrupted_is_tried_again_at_once(tmp_path, quick):
    def stop(trial, finished, study):
        if finished == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run.search(written(tmp_path), stop)
    found = run.search(written(tmp_path))
    assert states(found).count("COMPLETE") == 6
    assert "RUNNING" not in states(found)


@pytest.mark.slow
def test_a_trial_whose_client_was_killed_before_its_first_heartbeat_is_tried_again(tmp_path, quick):
    """Optuna alone would leave it running for ever."""
    path = written(tmp_path, trials=2)
    with warnings.catch_warnings(action="ignore"), run.opened(read(path)) as found:
        lost = found.ask(read(path).distributions()).params["lr"]
    found = run.search(path)
    assert sorted(states(found)) == ["COMPLETE", "COMPLETE", "FAIL"]
    assert [trial.params["lr"] for trial in found.trials].count(lost) == 2


def test_no_point_is_drawn_again_where_one_waits_to_be_tried_again(tmp_path):
    study = read(written(tmp_path, trials=5))
    with warnings.catch_warnings(action="ignore"), run.opened(study) as found:
        found.enqueue_trial({"lr": 0.1})
        search = run.Search(study, found, None, None)
        search.workers = lambda: len(search.running) + 2  # two are idle each time
        search.start = lambda trial, rung: search.running.update({trial.number: (trial, rung, None)})
        search.fill()
        search.fill()
        rates = [trial.params["lr"] for trial in found.trials]
    assert len(rates) == 4
    assert len(set(rates)) == 4


def test_two_studies_at_once_in_one_file(tmp_path, quick, client):
    studies = [read(written(tmp_path, name=name)) for name in ("one", "two")]
    with warnings.catch_warnings(action="ignore"), run.opened(studies[0]) as one, run.opened(studies[1]) as two:
        searches = [run.Search(s, f, client, lambda *_: None) for s, f in zip(studies, (one, two), strict=True)]
        for _ in range(40):
            for search in searches:
                search.fill()
                if search.running:
                    search.look()
        assert states(one) == states(two) == ["COMPLETE"] * 6


def test_a_trial_that_another_client_took_for_dead_has_one_result(tmp_path, quick, client):
    """As of a laptop that slept: what it then tells is too late, and nobody counts it twice."""
    study = read(written(tmp_path, trials=2))
    with warnings.catch_warnings(action="ignore"), run.opened(study) as found:
        late = run.Search(study, found, client, lambda *_: None)
        late.fill()
        found.tell(0, state=run.TrialState.FAIL)
        late.look()
        while late.fill() or late.running:
            late.look()
        assert states(found) == ["FAIL", "COMPLETE", "COMPLETE"]


def test_another_study_of_the_same_name_is_refused(tmp_path, quick):
    run.search(written(tmp_path))
    with pytest.raises(ValueError, match=r"has a study 'study' with sampler random, here it is tpe: give this one"):
        run.search(written(tmp_path, sampler="tpe"))


def test_a_trial_that_fails_is_named_and_not_tried_again(tmp_path, quick, monkeypatch):
    def fails(study, choices, epochs, before=None):
        raise ValueError("there is no such thing.")

    monkeypatch.setattr(run, "train_to", fails)
    found = run.search(written(tmp_path, trials=3))
    assert states(found) == ["FAIL"] * 3
    assert {trial.user_attrs["why"] for trial in found.trials} == {"there is no such thing"}


@pytest.mark.slow
def test_a_full_disk_is_a_sentence_and_the_same_command_goes_on(tmp_path, quick):
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)

    def full(trial, finished, study):
        if finished == 3:
            size = (tmp_path / "studies.db").stat().st_size
            resource.setrlimit(resource.RLIMIT_FSIZE, (size // 2, limits[1]))

    try:
        with pytest.raises(OSError, match=r"studies\.db can't be used \(.*\): mend that, and the same command goes on"):
            run.search(written(tmp_path), full)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    with sqlite3.connect(tmp_path / "studies.db") as file:
        assert file.execute("pragma integrity_check").fetchone() == ("ok",)
    found = run.search(written(tmp_path))
    assert states(found).count("COMPLETE") == 6
    assert "RUNNING" not in states(found)


@pytest.mark.parametrize("odd", [b"no database", b"SQLite format 3\0" + b"\xff" * 100])
def test_a_file_that_is_no_database_is_refused_and_stays_as_it_is(tmp_path, quick, odd):
    (tmp_path / "studies.db").write_bytes(odd)
    with pytest.raises(OSError, match=r"studies\.db can't be used"):
        run.search(written(tmp_path))
    assert (tmp_path / "studies.db").read_bytes() == odd


def test_a_scheduler_that_is_not_there_and_a_package_that_is_missing(tmp_path, monkeypatch):
    monkeypatch.setattr(cluster, "PATIENCE", 0.3)
    with pytest.raises(OSError, match=r"cluster tcp://127\.0\.0\.1:9 does not answer \(.*\): start it"):
        run.search(written(tmp_path, head='cluster = "tcp://127.0.0.1:9"'))
    monkeypatch.setitem(sys.modules, "dask_jobqueue", None)
    with pytest.raises(OSError, match=r"cluster slurm does not answer \(.*dask_jobqueue.*\)"):
        run.search(written(tmp_path, head='cluster = "slurm"'))
    monkeypatch.setitem(sys.modules, "asyncssh", None)
    with pytest.raises(OSError, match=r"cluster ssh does not answer \(.*asyncssh"):
        run.search(written(tmp_path, head='cluster = "ssh"\nhosts = ["one", "two"]'))


def test_more_workers_than_cores_can_feed_are_refused_before_one_is_started(tmp_path, monkeypatch):
    monkeypatch.setattr(cluster, "LocalCluster", lambda *arguments, **options: pytest.fail("they were started"))
    with pytest.raises(ValueError, match=r"100000 workers are too many for \d+ cores: take \d+ at most"):
        run.search(written(tmp_path, head="workers = 100_000"))


def test_the_command_shows_trials_and_the_best(tmp_path, quick, capsys):
    assert main(["search", str(written(tmp_path, trials=3))]) == 0
    said = capsys.readouterr().out
    assert said.count("complete") == 3
    assert "the best of 3 trials is number" in said
    assert main(["search", str(tmp_path / "none.toml")]) == 1


def test_without_the_extra_the_command_says_how_to_get_it(tmp_path, monkeypatch, capsys):
    with suppress(KeyError):
        monkeypatch.delitem(sys.modules, "mlpkit.search.run")
    monkeypatch.delattr("mlpkit.search.run", raising=False)
    monkeypatch.setitem(sys.modules, "optuna", None)
    assert main(["search", str(written(tmp_path))]) == 1
    assert "-m pip install -e '.[search]'" in capsys.readouterr().err


def test_where_no_trial_came_to_its_end_the_command_says_so(tmp_path, quick, monkeypatch, capsys):
    def fails(study, choices, epochs, before=None):
        raise ValueError("there is no such thing.")

    monkeypatch.setattr(run, "train_to", fails)
    assert main(["search", str(written(tmp_path, trials=2))]) == 1
    said = capsys.readouterr()
    assert said.out.count("there is no such thing") == 2
    assert "no trial came to its end, for the reasons above" in said.err


def test_each_worker_of_this_machine_sees_a_gpu_of_its_own(monkeypatch):
    from types import SimpleNamespace

    monkeypatch.setattr(gpu, "count", lambda: 2)
    for before, seen in ((None, ["0", "1", "0"]), ("3,7", ["3", "7", "3"]), ("3,7,-1,2", ["3", "7", "3"])):
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        if before:
            monkeypatch.setenv("CUDA_VISIBLE_DEVICES", before)
        plugin, found = cluster.OwnGpu(gpu.names()), []
        for name in (0, 1, 2):
            plugin.setup(SimpleNamespace(name=name))
            found.append(cluster.os.environ["CUDA_VISIBLE_DEVICES"])
        assert found == seen


@pytest.mark.parametrize("folder", ["{x}", "100%25", "b#c", "what?x"])
def test_a_storage_is_where_its_study_says_whatever_a_url_makes_of_it(folder, tmp_path):
    (tmp_path / folder).mkdir()
    with run.opened(read(written(tmp_path / folder))):
        pass
    assert [path.name for path in tmp_path.iterdir()] == [folder]
    assert (tmp_path / folder / "studies.db").stat().st_size


def test_a_large_grid_is_queued_once_and_its_trials_are_read_as_often(tmp_path, monkeypatch):
    study, calls = read(written(tmp_path, sampler="grid")), []
    looked = run.optuna.Study.get_trials
    monkeypatch.setattr(run.optuna.Study, "get_trials", lambda *a, **b: calls.append(1) or looked(*a, **b))
    for _ in range(2):
        calls.clear()
        with run.opened(study) as found:
            assert len(calls) < len(study.points())
            assert len(found.trials) == len(study.points())
