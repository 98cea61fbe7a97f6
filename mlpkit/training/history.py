"""What a training run records about itself."""

import json
from dataclasses import asdict, dataclass, field


@dataclass
class Epoch:
    """One epoch: the rate of its last step, its mean training loss, its seconds, and the validation after it.

    validation: by name the "loss" and the loss's metrics, such as "accuracy"; nothing where nothing was validated.
    """

    lr: float
    train_loss: float
    seconds: float
    validation: dict[str, float] = field(default_factory=dict)


@dataclass
class History:
    """Three lists with an entry a step (loss, seconds, samples), and `epochs` with an entry an epoch.

    Seconds are by the engine's own clock, over a whole epoch where the engine has a `Trainer` of whole epochs, and over
    about 20 ms of steps at a time where not; they are shared out evenly among these steps. `stopped` says how the run
    ended: "finished", "early" (patience ran out), "interrupted", "diverged" or "failed" (an error).
    """

    loss: list[float] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    samples: list[int] = field(default_factory=list)
    epochs: list[Epoch] = field(default_factory=list)
    stopped: str = "finished"

    @property
    def validation(self):
        """By name lists with an entry an epoch: the validation's "loss", and its metrics, such as "accuracy".

        Where a run was resumed with a validation set, or without, an entry is None for an epoch without.
        """
        names = dict.fromkeys(name for epoch in self.epochs for name in epoch.validation)
        return {name: [epoch.validation.get(name) for epoch in self.epochs] for name in names}

    @property
    def best_epoch(self):
        """The index of the epoch with the lowest validation loss; of the last epoch where nothing was validated."""
        losses = {i: epoch.validation["loss"] for i, epoch in enumerate(self.epochs) if epoch.validation}
        return min(losses, key=losses.__getitem__, default=len(self.epochs) - 1)

    def to_json(self):
        """Return the history as text, from which `from_json` makes an equal one."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text):
        """Return the history that `to_json` wrote."""
        fields = json.loads(text)
        fields["epochs"] = [Epoch(**epoch) for epoch in fields["epochs"]]
        return cls(**fields)
