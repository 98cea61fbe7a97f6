"""A model as blocks: whoever computes them, the gradient is that of the layers one by one."""

import sys
import weakref
from contextlib import nullcontext
from functools import partial
from types import SimpleNamespace
from unittest.mock import Mock

import numpy as np
import pytest
from numpy.testing import assert_array_equal

pytest.importorskip("cupy")

from mlpkit.engines import numpy_baseline
from mlpkit.executors.cuda.blocks import MODES, BranchesBlock, LayerBlock, Pipeline, Value, pipeline
from mlpkit.kernels import gpu, overlap
from mlpkit.nn.concat import Concat
from mlpkit.nn.conv import AvgPool, Conv, MaxPool
from mlpkit.nn.layers import Dropout, Flatten, LeakyReLU, Linear, ReLU, Sigmoid, Tanh
from mlpkit.nn.losses import Hinge
from mlpkit.nn.model import Model
from mlpkit.nn.models import MODELS
from mlpkit.nn.network import Network
from mlpkit.nn.norm import BatchNorm
from mlpkit.nn.per_image import GlobalAvgPool, InstanceNorm
from mlpkit.nn.residual import Residual
from mlpkit.nn.resize import ConvTranspose, Padding, PixelShuffle, Upsample
from mlpkit.optim import BY_NAME

ODD = {
    "strides": Model((1, 28, 28), (
        Conv(5, 3, stride=2, padding=1), LeakyReLU(0.1), AvgPool(2), Conv(7, 2), Tanh(), BatchNorm(), MaxPool(3, 2),
        Flatten(), Linear(17), Sigmoid(), Linear(10),
    )),
    "chance": Model((1, 28, 28), (
        Conv(12, 5), MaxPool(2), BatchNorm(), Residual((Conv(12, 3, padding=1), ReLU())), Conv(20, 3), ReLU(),
        MaxPool(3), Flatten(), Dropout(0.3), Linear(33), ReLU(), Dropout(0.2), Linear(10),
    ), Hinge()),
    "wide": Model((1, 28, 28), (
        Conv(24, 3, stride=2), ReLU(), Conv(40, 3, padding=1), ReLU(), Conv(72, 3, bias=False), BatchNorm(), ReLU(),
        MaxPool(2), Flatten(), Linear(40), ReLU(), Linear(30), ReLU(), Linear(10),
    )),
    "pools first": Model((1, 28, 28), (
        MaxPool(2), ReLU(), Conv(6, 3), ReLU(), MaxPool(2), Conv(20, 3), ReLU(), MaxPool(2), Flatten(), Linear(10),
    )),
    "a residual first": Model((1, 28, 28), (
        Residual((Tanh(), Residual((Sigmoid(),)), Conv(1, 3, padding=1), ReLU())), AvgPool(4), Flatten(),
        Linear(20), ReLU(), Linear(10),
    )),
    "branches": Model((1, 28, 28), (
        Conv(8, 3, padding=1), ReLU(), Residual(
            (Conv(16, 3, 2, 1, bias=False), BatchNorm(), ReLU(), Conv(16, 3, padding=1)), (Conv(16, 1, 2), BatchNorm())
        ), ReLU(),
        Concat((Conv(8, 3, padding=1), ReLU()), (), (MaxPool(2), Conv(24, 3, padding=1), ReLU(), Upsample(2))),
        MaxPool(2), Residual((), (Tanh(),)), Conv(16, 3), ReLU(), GlobalAvgPool(), Linear(10),
    )),
    "branches first": Model((1, 28, 28), (
        Concat((Conv(4, 3, 2, 1),), (MaxPool(2), Tanh()), (AvgPool(2),), (Residual((), (MaxPool(1),)), AvgPool(2))),
        Flatten(), Concat((Linear(9), ReLU()), (Linear(5),)), Residual((Linear(6),), (Linear(6),)), Linear(10),
    )),
    "sizes": Model((1, 28, 28), (
        Padding(2), Conv(8, 3, 2), InstanceNorm(affine=True), ReLU(), Upsample(2, "bilinear"), Padding(1, "replicate"),
        Conv(12, 3, 3), PixelShuffle(2), ConvTranspose(6, 3, 2, 1, 1), Padding(1, "zero"), InstanceNorm(), ReLU(),
        ConvTranspose(3, 2, bias=False), GlobalAvgPool(), Linear(10),
    )),
    "ReLU and dense layers": Model((1, 28, 28), (LeakyReLU(0.1), Flatten(), Linear(30), ReLU(), Linear(10))),
}  # fmt: skip
MODE = MODES["float32"]


def a_batch(model, n=3):
    rng = np.random.default_rng(0)
    return rng.normal(size=(n, *model.input)), rng.integers(0, 10, n)


def gradient_by_blocks(network, blocks, x, labels):
    network.mode.training = True
    blocks.prepare()
    z = blocks.forward(Value(x, "nchw", x.shape[1])).array
    _, dz = network.model.loss(network.at_loss, z, labels)
    blocks.backward(Value(dz, "nchw", dz.shape[1]))
    return network.grad.copy()


@pytest.mark.parametrize("model", [*MODELS.values(), *ODD.values()], ids=[*MODELS, *ODD])
def test_blocks_of_one_layer_each_are_the_network(model):
    network = Network(numpy_baseline, model, dtype=np.float64)
    x, labels = a_batch(model)
    network.loss_and_grad(x, labels)
    wanted, statistics = network.grad.copy(), network.statistics.copy()
    network.grad[:] = np.nan
    network = Network(numpy_baseline, model, dtype=np.float64)
    blocks = pipeline(network.layers, model.input, 3, MODE, ())
    for _ in range(2):  # what the first left behind does not matter, but for the statistics
        assert_array_equal(gradient_by_blocks(network, blocks, x, labels), wanted)
        if model.statistics.size:
            break
    assert_array_equal(network.statistics, statistics)


@pytest.mark.parametrize("model", ODD.values(), ids=ODD)
def test_nothing_is_kept_after_the_way_back(model):
    network = Network(numpy_baseline, model)
    before = [set(vars(at)) for at in every(network.layers)]
    x, labels = a_batch(model)
    blocks = pipeline(network.layers, model.input, 3, MODE, ())
    gradient_by_blocks(network, blocks, x.astype("f4"), labels)
    assert [set(vars(at)) for at in every(network.layers)] == before
    passed = sum(not getattr(block, "comes_back", True) for block in blocks.blocks)  # on the way there alone
    assert blocks.layouts == ["nchw"] * (1 + passed)


def every(bound):
    """Yield places, and those inside them."""
    for at in bound:
        yield at
        for branch in at.branches:
            yield from every(branch)


def test_a_run_that_somebody_knows_is_his_and_the_rest_a_layer_each():
    network = Network(numpy_baseline, ODD["chance"])
    asked = []

    class Pair(LayerBlock):
        gives, wants = None, "nc8hw8"

        def __init__(self):
            pass

    def match(bound, i, shape, n, mode):
        asked.append((bound[i].path, shape, n, mode))
        pair = [type(at.layer) for at in bound[i : i + 2]] == [Conv, ReLU]
        return (2, Pair()) if pair else None

    found = pipeline(network.layers, ODD["chance"].input, 5, MODE, (lambda *_: None, match))
    assert [type(block) for block in found.blocks[:6]] == [LayerBlock] * 3 + [BranchesBlock, Pair, LayerBlock]
    assert [type(block) for block in found.blocks[3].pipelines[0].blocks] == [Pair]
    assert found.blocks[3].pipelines[0].blocks[0].gives == "nchw"
    assert found.blocks[4].gives == "nchw"
    assert asked[:2] == [((0,), (1, 28, 28), 5, MODE), ((1,), (12, 24, 24), 5, MODE)]
    assert ((3, 0), (12, 12, 12), 5, MODE) in asked


def test_blocks_are_told_what_the_next_one_wants():
    class Block:
        gives = None

        def __init__(self, wants):
            self.wants = wants

    blocks = [Block(wants) for wants in ("nchw", "stored", None, "nc8hw8")]
    Pipeline(blocks, MODE)
    assert [block.gives for block in blocks] == ["stored", "nc8hw8", "nc8hw8", "nchw"]


class Step:
    """A block that writes down what its backward is called with. takes: whether it does the one before it's, too."""

    wants = "nchw"

    def __init__(self, asked, comes_back=True, learns_before=True, takes=False):
        self.asked, self.comes_back, self.learns_before, self.takes = asked, comes_back, learns_before, takes
        self.finishes = True

    def follow(self, before):
        return self.takes

    def forward(self, x):
        return x

    def backward(self, dy, *update):
        self.asked.append((self, *update))
        return dy if self.learns_before and not self.takes else None


@pytest.mark.parametrize(("blocks", "last"), [
    ([{"learns_before": False}, {}, {}], 0), ([{"comes_back": False}, {"learns_before": False}, {}], 1),
    ([{}, {"takes": True}, {}], 1), ([{"comes_back": False}, {}, {"takes": True}], 2), ([{"learns_before": False}], 0),
])  # fmt: skip
def test_the_block_whose_way_back_is_the_last_one_gets_the_update(blocks, last):
    asked = []
    chain = Pipeline([Step(asked, **each) for each in blocks], MODE)
    value = Value(np.zeros((1, 1, 1, 1)), "nchw", 1)
    for update in (None, "update"):
        asked.clear()
        chain.forward(value)
        chain.backward(value, update)
        assert asked[-1] == (chain.blocks[last], *([update] if update else []))
        assert all(len(each) == 1 for each in asked[:-1])
    assert chain.finishes
    chain.blocks[-1].asks_beside = True
    assert not chain.finishes
    chain.blocks[-1].asks_beside = chain.blocks[last].finishes = False
    assert not chain.finishes


def test_a_block_of_layers_has_no_update_in_its_kernels():
    network = Network(numpy_baseline, ODD["chance"])
    assert not pipeline(network.layers, ODD["chance"].input, 3, MODE, ()).finishes


def planning(monkeypatch):
    """Return the module `plan`, which asks for a GPU where there is none."""
    if gpu.why_not():
        monkeypatch.setitem(sys.modules, "mlpkit.engines.cupy_fused", SimpleNamespace(cross_entropy=None))
    from mlpkit.executors.cuda import plan

    return plan


def planned(monkeypatch, several, batch_size, gpus=1):
    """Return a trainer that only writes down what it asks for, and where it does."""
    plan = planning(monkeypatch)
    from mlpkit.executors.cuda import graph

    said, streams = [], ["main"]

    class Stream:
        def __init__(self, name):
            self.name = name

        def record(self):
            said.append(("record", self.name))
            return self.name

        def wait_event(self, event):
            said.append(("wait", self.name, event))

        def __enter__(self):
            streams.append(self.name)

        def __exit__(self, *_):
            streams.pop()

    class Trainer(plan.PlannedTrainer):
        def __init__(self):
            self.steps_a_graph, self.batch_size, self.graphs, self.streams = (several, 1), batch_size, {}, streams
            self.beside, self.pool = plan.Branch(Stream("beside")), SimpleNamespace(malloc=None)
            self.sends = partial(self.say, "begin") if gpus > 1 else None
            sizes = range(1, batch_size + 1)
            self.batches = {n: [SimpleNamespace(x=range(n), number=f, rates=f) for f in "ab"] for n in sizes}
            self.step_number = "the first"
            self.arenas = {n: SimpleNamespace(step=nullcontext) for n in self.batches}
            self.optimizer = SimpleNamespace(apply=partial(self.say, "update"), reduce=None)

        def say(self, word, *what):
            said.append((word, *what, streams[-1]))

        def fetch(self, batch, step, further=0):
            said.append(("fetch", batch.rates, step, further, streams[-1]))

        def enqueue_gradient(self, batch, midway=None):
            said.append(("gradient", batch.rates, streams[-1]))
            if midway:
                midway()

    current = SimpleNamespace(get_current_stream=lambda: Stream("main"))
    monkeypatch.setattr(plan, "cp", SimpleNamespace(cuda=current))
    monkeypatch.setattr(graph, "recorded", lambda work, arena: work)
    return Trainer(), said


def test_a_trainer_that_is_closed_waits_drops_its_graphs_and_frees_what_its_pool_keeps(monkeypatch):
    """In this order: a graph may still run, keeps its arrays, and of a pool that is forgotten CuPy frees nothing."""
    trainer, _ = planned(monkeypatch, 1, 4)
    said, graphs = [], [np.zeros(3), np.zeros(3)]  # what a weak reference can be had of
    alive = [weakref.ref(graph) for graph in graphs]

    def count(word):
        said.append((word, sum(graph() is not None for graph in alive)))

    trainer.graphs = dict(enumerate(graphs))
    graphs.clear()
    trainer.feed = SimpleNamespace(close=partial(count, "waited"))
    trainer.pool = SimpleNamespace(free_all_blocks=partial(count, "freed"))
    trainer.close()
    assert said == [("waited", 2), ("freed", 0)]


@pytest.mark.parametrize("error", [KeyboardInterrupt, MemoryError])
@pytest.mark.parametrize("at", [1, 2])
def test_a_step_that_is_tried_in_vain_changes_nothing(error, at, monkeypatch):
    plan = planning(monkeypatch)
    monkeypatch.setattr(plan, "Recorder", lambda: SimpleNamespace(watching=nullcontext))
    vectors, tried = [np.arange(3.0), np.ones(2)], []

    def work():
        for vector in vectors:
            vector += 1
        tried.append(work)
        if len(tried) == at:
            raise error

    with pytest.raises(error):
        plan.watched(work, *vectors)
    assert_array_equal(vectors[0], np.arange(3.0))
    assert_array_equal(vectors[1], np.ones(2))


def test_a_recording_that_fails_ends(monkeypatch):
    planning(monkeypatch)
    from mlpkit.executors.cuda import graph

    said = []

    class Stream:
        def __init__(self, non_blocking):
            self.begin_capture, self.end_capture = (lambda: said.append("begin")), self.end

        def end(self):
            said.append("end")
            raise RuntimeError("CUDA has dropped it")

        def __enter__(self):
            return self

        def __exit__(self, *_):
            pass

    cuda = SimpleNamespace(Stream=Stream, using_allocator=lambda malloc: nullcontext())
    monkeypatch.setattr(graph, "cp", SimpleNamespace(cuda=cuda))
    with pytest.raises(KeyboardInterrupt):
        graph.recorded(Mock(side_effect=KeyboardInterrupt), SimpleNamespace(malloc=None))
    assert said == ["begin", "end"]


def fork(branch):
    return ("record", "main"), ("wait", branch, "main")


def join(branch):
    return ("record", branch), ("wait", "main", branch)


def test_each_step_fetches_the_batch_of_the_next_beside_its_gradient(monkeypatch):
    trainer, said = planned(monkeypatch, 8, 4)
    trainer.enqueue_several(3, 4)
    fork_, join_ = fork("beside"), join("beside")  # the step before has read what the fetched batch replaces
    assert said == [
        *(("fetch", "a", "the first", 0, "main"), ("gradient", "a", "main"), *fork_),
        *(("fetch", "b", "a", 1, "beside"), *join_, ("update", "a", "main"), ("gradient", "b", "main"), *fork_),
        *(("fetch", "a", "b", 1, "beside"), *join_, ("update", "b", "main"), ("gradient", "a", "main"), *join_),
        ("update", "a", "main"),
    ]


def test_what_the_way_back_has_updated_is_not_updated_again(monkeypatch):
    trainer, said = planned(monkeypatch, 8, 4)
    trainer.enqueue_gradient = lambda batch, midway: said.append(("gradient", batch.rates)) or batch.rates == "a"
    trainer.enqueue_several(2, 4)
    met = join("beside")
    assert said == [
        *(("fetch", "a", "the first", 0, "main"), ("gradient", "a"), *met),
        *(("gradient", "b"), *met, ("update", "b", "main")),
    ]


@pytest.mark.parametrize(("kind", "options", "can"), [
    ("sgd", {}, True), ("adam", {"beta2": 0.99}, True), ("adamw", {}, True), ("momentum", {}, False),
    ("sgd", {"weight_decay": 0.1}, False), ("adamw", {"weight_decay": 0.1}, False),
])  # fmt: skip
def test_which_updates_a_kernel_of_the_way_back_can_do(kind, options, can, monkeypatch):
    plan = planning(monkeypatch)
    asked = []
    monkeypatch.setattr(plan.updates, "fits", lambda *of: asked.append(of) or True)
    optimizer = BY_NAME[kind](Network(numpy_baseline), 0.1, **options)
    found = plan.update_of(optimizer, ("lr", "t"))
    assert (found is not None) == can
    if not can:
        return
    network, state = optimizer.network, optimizer.state.values()
    assert (found.theta is network.theta, found.grad is network.grad, found.lr) == (True, True, "lr")
    if state:
        assert (found.m is optimizer.state["m"], found.v is optimizer.state["v"], found.t) == (True, True, "t")
        assert (found.beta1, found.beta2, found.eps) == tuple(optimizer.settings.values())
    assert found.kind == 1 + bool(state)
    assert [id(each) for each in asked[0]] == [id(each) for each in ("lr", network.theta, network.grad, *state)]
    monkeypatch.setattr(plan.updates, "fits", lambda *of: False)
    assert plan.update_of(optimizer, ("lr", "t")) is None


def test_a_branch_keeps_what_it_was_asked_for_until_it_is_joined(monkeypatch):
    trainer, said = planned(monkeypatch, 8, 4)
    array, seen = np.zeros(3), []

    def work(array):
        said.append(("work", trainer.streams[-1]))
        seen.append(getattr(overlap._here, "recording", False))

    count = sys.getrefcount(array)
    with overlap.recording():
        trainer.beside.ask(partial(work, array), early=False)
        assert overlap._here.recording
    assert seen == [False]  # its kernels take no place early
    assert sys.getrefcount(array) == count + 1
    trainer.beside.join()
    assert sys.getrefcount(array) == count
    assert said == [*fork("beside"), ("work", "beside"), *join("beside")]


def test_what_several_gpus_send_is_waited_for_at_the_end_of_a_graph(monkeypatch):
    trainer, said = planned(monkeypatch, 8, 4, gpus=2)
    monkeypatch.setattr(planning(monkeypatch), "update_of", lambda *_: None)
    trainer.optimizer.reduce = SimpleNamespace(join=partial(trainer.say, "join"))
    trainer.enqueue_several(3, 4)
    assert [what for what in said if what[0] in ("update", "join")] == [
        *(("update", name, "main") for name in "aba"),
        ("join", "main"),
    ]


@pytest.mark.parametrize(("update", "taken"), [("an update", True), ("an update", False), (None, False)])
def test_several_gpus_send_the_dense_layers_and_may_update_as_they_add_up(update, taken, monkeypatch):
    trainer, said = planned(monkeypatch, 8, 4, gpus=2)
    monkeypatch.setattr(planning(monkeypatch), "update_of", lambda *_: update)

    def step(update):
        trainer.say("reduce", update)
        return taken

    trainer.optimizer.reduce = SimpleNamespace(step=step)
    trainer.network = SimpleNamespace(mode=SimpleNamespace())
    trainer.gradients = {4: lambda *of: of[4]("dW") or of[-1]}  # it is `ready`
    for batch in trainer.batches[4]:
        batch.targets, batch.taken = None, None
    trainer.losses = trainer.largest = None
    del type(trainer).enqueue_gradient
    assert trainer.enqueue_gradient(trainer.batches[4][0]) is None  # no other kernel may update
    trainer.update(trainer.batches[4][0])
    assert said[0] == ("begin", "dW", "main")
    assert said[1:] == [("reduce", update, "main")] * bool(update) + [("update", "a", "main")] * (not taken)


def test_an_epoch_is_cut_into_graphs_of_several_steps(monkeypatch):
    trainer, _ = planned(monkeypatch, 8, 4)
    for examples in (4 * 8 * 3, 4 * 21 + 1, 4 * 7, 3, 4 * 8):
        steps = examples // 4 + (examples % 4 > 0)
        assert sum(times * count for (count, _), times in counted(trainer, examples)) == steps
    assert trainer.graphs.keys() == {(8, 4), (1, 4), (1, 1), (1, 3)}


def counted(trainer, examples):
    found = trainer.graphs_for(examples)
    by_graph = {id(each): key for key, each in trainer.graphs.items()}
    return [(by_graph[id(each)], times) for each, times in found]
