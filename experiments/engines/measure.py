"""How the record "engines" is made: gate, time in turns, train."""

from dataclasses import asdict, dataclass, field

from experiments.lab import quiet, results
from experiments.lab.bench import GateError, Stepper, Timing, gate, whole
from experiments.lab.clock import in_turns
from experiments.lab.results import median_us
from mlpkit import engines
from mlpkit.data import load
from mlpkit.training.recipe import Recipe


@dataclass(frozen=True)
class Plan:
    """What to measure. engines: their names, None for all."""

    timing: Timing = field(default_factory=Timing)
    recipe: Recipe = field(default_factory=Recipe)
    engines: tuple[str, ...] | None = None


USUAL = Plan()
THOROUGH = Plan(Timing(rounds=30, patience=20.0))


def measure(save=results.save_part, progress=print, plan=USUAL, dataset=None):
    """Gate, time and train the engines, and return the record. dataset: see `data.load`."""
    dataset, recipe = dataset or load(scaled=True), plan.recipe
    record = results.new("engines", recipe=recipe.to_dict(), timing=asdict(plan.timing))
    steppers = {}
    for name in plan.engines or engines.names(recipe.model.operations):
        progress(f"checking {name}")
        run: dict = {"engine": name, "why_not": None, "samples_us": []}
        record["runs"].append(run)
        try:
            engines.load(name)
            run["gate_losses"] = gate(name, recipe, dataset.train).tolist()
            steppers[name] = Stepper(name, recipe, dataset.train)
        except (engines.EngineUnavailable, GateError, ValueError) as error:
            run["why_not"] = str(error)
        save(record)
    runs = {run["engine"]: run for run in record["runs"] if run["engine"] in steppers}
    _time(runs, steppers, plan.timing, progress, lambda: save(record))
    for name, run in runs.items():
        progress(f"training with {name}")
        _train(run, dataset, recipe, 2 * plan.timing.patience)
        save(record)
    return record


def _time(runs, steppers, timing, progress, save):
    """Add samples to the runs, by engine, in microseconds a step; a slow engine drops out when its time is up."""
    plans = {name: _plan(stepper, timing) for name, stepper in steppers.items()}
    for name, (steps, _) in plans.items():
        runs[name]["steps_a_sample"] = steps

    def settle(name):
        progress(f"timing {name}")
        if plans[name][0] > 1:
            quiet.settle(steppers[name].take_one)

    def keep(name, us):
        runs[name]["samples_us"].append(us)
        save()

    calls = {name: lambda name=name: steppers[name].take(plans[name][0])[0] * 1e6 for name in steppers}
    in_turns(calls, {name: rounds for name, (_, rounds) in plans.items()}, settle, keep)


def _plan(stepper, timing):
    """Warm up, and return (steps a sample, samples) that fit into the engine's time."""
    once = max(stepper.take(1)[0], 1e-9)
    steps = min(timing.steps_a_sample, int(timing.patience / (timing.rounds * once)))
    if steps < 1:
        return 1, max(1, int(timing.patience / once))
    stepper.take(min(timing.warmup, steps))
    return steps, timing.rounds


def _train(run, dataset, recipe, patience):
    """Add the losses and the test accuracy of a whole training, or, over `patience` seconds, how long it would take."""
    steps = recipe.epochs * recipe.steps_an_epoch(len(dataset.train.y))
    run["test_accuracy"], run["training_seconds"] = None, steps * median_us(run) / 1e6
    if run["training_seconds"] > patience:
        return
    network, history = recipe.train(dataset, run["engine"])
    run["loss"], run["training_seconds"] = whole(history).loss, sum(history.seconds)
    run["test_accuracy"] = network.evaluate(*dataset.test)["accuracy"]
