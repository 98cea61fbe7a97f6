"""An optimizer holds state, and asks the engine for one update of one long vector.

Every optimizer works on `network.theta` and `network.grad`. Its own state (a velocity, running averages) are vectors
laid out in the same way, so a step is the textbook's line, and saving an optimizer is saving a few arrays.
"""

import math

import numpy as np

from mlpkit.checks import check_fraction, check_not_negative, check_positive
from mlpkit.nn.network import quiet

from .schedules import Constant


class Optimizer:
    """What all optimizers share: the learning rate, weight decay and the count of steps.

    network: whose `theta` is trained. lr: a number, or a schedule (see `schedules`).
    weight_decay: the L2 penalty's factor: `weight_decay * w` is added to the gradient of each weight, not of biases.
    reduce: a function that is called with `network.grad` before each update, and changes it in place: several GPUs sum
    theirs there. A graph records what it asks of the GPU; a kernel that does the update itself refuses it.
    Raises ValueError for a rate or a factor out of range, TypeError for what is no network. A schedule is asked step by
    step: ValueError at the first rate that is not a finite number, 0 or above.
    """

    state_names: tuple[str, ...] = ()
    setting_names: tuple[str, ...] = ()
    decoupled = False  # weight decay shrinks the weights themselves, and does not pass through the gradient

    def __init__(self, network, lr, weight_decay=0.0, reduce=None):
        if not hasattr(network, "theta"):
            raise TypeError(f"an optimizer trains a Network, not {network!r}.")
        self.network = network
        self.engine = network.engine
        self.schedule = lr if callable(lr) else Constant(lr)
        self.weight_decay = check_not_negative("weight_decay", weight_decay)
        if reduce is not None and not callable(reduce):
            raise TypeError(f"reduce must be a function of the gradient, not {reduce!r}.")
        self.reduce = reduce
        self.steps = 0
        zeros = np.zeros(network.theta.shape, network.dtype)
        self.state = {name: self.engine.asarray(zeros.copy()) for name in self.state_names}

    @property
    def kind(self):
        """The optimizer's name, as in `BY_NAME`."""
        return type(self).__name__.lower()

    @property
    def settings(self):
        """The optimizer's own numbers, by name."""
        return {name: getattr(self, name) for name in self.setting_names}

    @property
    def lr(self):
        """The learning rate of the next step."""
        return _checked_rate(self.schedule(self.steps), self.steps)

    @lr.setter
    def lr(self, rate):
        raise AttributeError("the rate is the schedule's: give the optimizer one, such as lr=Exponential(0.1, 1000).")

    def __getstate__(self):
        """Let a copy, and another process, have the optimizer with the values of now, and its network."""
        state = {name: self.engine.to_numpy(vector).copy() for name, vector in self.state.items()}
        return vars(self) | {"engine": None, "state": state}

    def __setstate__(self, kept):
        vars(self).update(kept, engine=kept["network"].engine)
        self.state = {name: self.engine.asarray(vector) for name, vector in self.state.items()}

    def advance(self, steps):
        """Return the learning rates of the next steps (steps,), float64, and count these steps as taken.

        For a trainer that does many steps at once. A schedule that can't take an array is asked for each step.
        """
        t = self.steps + np.arange(steps)
        try:
            rates = np.asarray(self.schedule(t), np.float64)
        except (TypeError, ValueError):
            rates = np.empty(0)
        if rates.shape != t.shape:
            rates = np.array([_checked_rate(self.schedule(step), step) for step in t.tolist()])
        for wrong in np.flatnonzero(~((rates >= 0) & (rates < math.inf))):
            _checked_rate(float(rates[wrong]), t[wrong])
        self.steps += steps
        return rates

    def check_rates(self, steps):
        """Raise ValueError where so many steps would change nothing: a warm-up may begin at 0, and not all may be."""
        planned = range(self.steps, self.steps + min(steps, 10**6))  # more would take long, and be as sure
        least = float(np.finfo(self.network.dtype).smallest_subnormal) / 2  # what is no more is 0 there
        if planned and all(_checked_rate(self.schedule(step), step) <= least for step in planned):
            raise ValueError(f"the rate stays 0 from step {self.steps} on in {self.network.dtype}: raise it.")

    @quiet
    def step(self):
        """Update `network.theta` from `network.grad`."""
        lr = self.lr
        self.steps += 1
        self.apply(lr, self.steps)

    def apply(self, lr, t):
        """Update `network.theta` as step number `t`, the first being 1, at the rate `lr`.

        An engine that records its steps gives both as arrays of one number, whose value is read when the step runs.
        """
        if self.reduce:
            self.reduce(self.network.grad)
        if self.weight_decay:
            self.decay(lr)
        self.update(self.network.theta, self.network.grad, lr, t)

    def decay(self, lr):
        """Add the L2 penalty's gradient, `weight_decay * w`, to that of the loss; or shrink the weights themselves."""
        n = self.network.n_weights
        weights, grad = self.network.theta[:n], self.network.grad[:n]
        if self.decoupled:
            self.engine.axpy(-lr * self.weight_decay, weights, weights)
        else:
            self.engine.axpy(self.weight_decay, weights, grad)

    def update(self, theta, grad, lr, t):
        """Change `theta` and the state in place by step number `t` at the rate `lr`; each optimizer has its own way.

        theta, grad, and each vector of the state: (parameters,), in the network's dtype.
        """
        raise NotImplementedError

    def describe(self):
        """Return the optimizer's name and settings, as text: two that describe alike train alike."""
        settings = {"lr": self.schedule, "weight_decay": self.weight_decay} | self.settings
        listed = ", ".join(f"{name}={value}" for name, value in settings.items())
        return f"{type(self).__name__}({listed})"


def _checked_rate(rate, step):
    """Return what a schedule gives for a step, as a float. Raises ValueError unless it is finite and at least zero."""
    try:
        found = float(rate)
    except (TypeError, ValueError):
        found = math.nan
    if not 0 <= found < math.inf:
        raise ValueError(f"the schedule's rate must be a finite number, 0 or above, not {rate!r}, as at step {step}.")
    return found


class SGD(Optimizer):
    """`theta -= lr * grad`."""

    def update(self, theta, grad, lr, t):
        self.engine.sgd_update(theta, grad, lr)


class Momentum(Optimizer):
    """`velocity = momentum * velocity + grad; theta -= lr * velocity`. Polyak (1964)."""

    state_names = ("velocity",)
    setting_names = ("momentum",)

    def __init__(self, network, lr, momentum=0.9, weight_decay=0.0, reduce=None):
        super().__init__(network, lr, weight_decay, reduce)
        self.momentum = check_fraction("momentum", momentum)

    def update(self, theta, grad, lr, t):
        self.engine.momentum_update(theta, grad, **self.state, lr=lr, **self.settings)


class Nesterov(Momentum):
    """`velocity = momentum * velocity + grad; theta -= lr * (grad + momentum * velocity)`. Sutskever et al. (2013)."""

    def update(self, theta, grad, lr, t):
        self.engine.nesterov_update(theta, grad, **self.state, lr=lr, **self.settings)


class RMSprop(Optimizer):
    """`s = rho * s + (1 - rho) * grad^2; theta -= lr * grad / (sqrt(s) + eps)`. Tieleman and Hinton (2012)."""

    state_names = ("s",)
    setting_names = ("rho", "eps")

    def __init__(self, network, lr=1e-3, rho=0.9, eps=1e-8, weight_decay=0.0, reduce=None):
        super().__init__(network, lr, weight_decay, reduce)
        self.rho = check_fraction("rho", rho)
        self.eps = check_positive("eps", eps, network.dtype)

    def update(self, theta, grad, lr, t):
        self.engine.rmsprop_update(theta, grad, **self.state, lr=lr, **self.settings)


class Adam(Optimizer):
    """`theta -= lr * m_hat / (sqrt(v_hat) + eps)`, m and v running means of grad and grad^2. Kingma and Ba (2015)."""

    state_names = ("m", "v")
    setting_names = ("beta1", "beta2", "eps")

    def __init__(self, network, lr=1e-3, beta1=0.9, beta2=0.999, eps=1e-8, weight_decay=0.0, reduce=None):
        super().__init__(network, lr, weight_decay, reduce)
        self.beta1 = check_fraction("beta1", beta1)
        self.beta2 = check_fraction("beta2", beta2)
        self.eps = check_positive("eps", eps, network.dtype)

    def update(self, theta, grad, lr, t):
        self.engine.adam_update(theta, grad, **self.state, t=t, lr=lr, **self.settings)


class AdamW(Adam):
    """Adam whose decay shrinks the weights themselves, `w -= lr * weight_decay * w`. Loshchilov and Hutter (2019)."""

    decoupled = True


BY_NAME = {optimizer.__name__.lower(): optimizer for optimizer in (SGD, Momentum, Nesterov, RMSprop, Adam, AdamW)}

# Of each a good one, of those in the record "optimizers": one for all would be wrong by a factor of a hundred for most.
GOOD_RATES = {"sgd": 0.2, "momentum": 0.05, "nesterov": 0.05, "rmsprop": 5e-4, "adam": 1e-3, "adamw": 1e-3}
