"""The settings of a run, and whether they make sense."""

import dataclasses
import math
from pathlib import Path
from typing import Any, Literal

from gossip_jax import checks
from gossip_jax.workers import Backend

DatasetName = Literal["digits", "mnist", "fashion_mnist", "cifar10"]
ModelName = Literal["mlp", "resnet18"]
ProtocolName = Literal[
    "no_communication", "all_reduce", "elastic_gossip", "gossiping_sgd", "elastic_averaging"
]

_LATER = ("wire_dtype",)  # settings that the first records did not know


@dataclasses.dataclass(frozen=True)
class Config:
    """Train a model on several workers, with one of the protocols.

    The defaults are the thesis's settings for MNIST (arXiv:1812.02407), on a dataset that needs no
    download.
    """

    dataset: DatasetName = "digits"
    """What to learn. digits ships inside scikit-learn; the others are read with tensorflow-datasets."""

    data_dir: Path | None = None
    """Where the prepared datasets of tensorflow-datasets are. Where not given: $TFDS_DATA_DIR,
    ~/tensorflow_datasets or, beside the checkout, shared/data/tfds."""

    model: ModelName = "mlp"
    """What learns it: a perceptron with three hidden layers, or a pre-activation ResNet-18."""

    augment: bool = False
    """Crop the training images at random, from 4 pixels of padding, and flip them left to right."""

    protocol: ProtocolName = "elastic_gossip"
    """How the workers communicate."""

    variant: Literal["pull", "push"] = "pull"
    """Of gossiping_sgd: fetch the peer's parameters, or send one's own."""

    peers: Literal["uniform", "pairing"] = "uniform"
    """Of the gossip protocols: each worker picks its own peer, or all are matched in pairs."""

    workers: int = 4
    """W, the number of workers."""

    p: float = 1 / 32
    """Of the gossip protocols: the probability that a worker initiates contact at an update."""

    alpha: float | None = None
    """The moving rate. Where not given: 0.5 for elastic_gossip, 0.9 / W for elastic_averaging."""

    wire_dtype: Literal["bfloat16", "float16"] | None = None
    """Of the gossip protocols: the type that parameters are sent in; their own where not given."""

    period: int = 1
    """The communication period: only every so many updates may workers communicate."""

    epochs: int = 20
    """Passes over the training set."""

    batch_size: int = 128
    """Examples in an update, over all workers: each takes batch-size / W of them."""

    learning_rate: float = 0.001
    """Of SGD with Nesterov momentum."""

    momentum: float = 0.99
    """Of SGD with Nesterov momentum."""

    halve_after: tuple[int, ...] = ()
    """Epochs after each of which the learning rate is halved."""

    width: int = 1024
    """Units in each of the MLP's three hidden layers."""

    validation_examples: int | None = None
    """Held out from the training set; where not given, as the dataset's usual split has it."""

    train_examples: int | None = None
    """Train on so many of the examples that remain, drawn at random; on all where not given."""

    validate_every: int = 1
    """Epochs between two validations; the last epoch always has one."""

    backend: Backend = "auto"
    """One replica a device (pmap, shard_map), or all on one (vmap). On CPU, pmap and shard_map make
    as many CPU devices as workers. auto takes pmap where there are enough devices, else vmap."""

    seed: int = 0
    """The same seed gives the same result, on every backend."""

    profile: Path | None = None
    """A directory for a trace of a few updates by JAX's profiler, made before the run begins."""

    out: Path | None = None
    """A new directory for the results; runs/DATASET-PROTOCOL-TIME-PROCESS where not given."""

    def checked(self) -> "Config":
        """These settings, with the moving rate filled in.

        Raises:
          ValueError: a setting is out of range.
        """
        for name in ("workers", "period", "epochs", "batch_size", "width", "validate_every"):
            checks.at_least_one("train", flag(name), getattr(self, name))
        for name in ("validation_examples", "train_examples"):
            if getattr(self, name) is not None:
                checks.at_least_one("train", flag(name), getattr(self, name))
        for epoch in self.halve_after:
            checks.at_least_one("train", flag("halve_after"), epoch)
        checks.probability("train", "--p", self.p)
        if self.alpha is not None:
            checks.moving_rate("train", "--alpha", self.alpha)
        _require(self.learning_rate > 0, "learning_rate", "positive", self.learning_rate)
        _require(math.isfinite(self.learning_rate), "learning_rate", "finite", self.learning_rate)
        _require(0 <= self.momentum < 1, "momentum", "in [0, 1)", self.momentum)
        _require(0 <= self.seed < 2**32, "seed", "in [0, 2^32)", self.seed)
        if self.batch_size % self.workers:
            raise ValueError(
                f"train: --batch-size counts the examples of all workers, so it must be a multiple of "
                f"--workers; got {self.batch_size} for {self.workers} workers"
            )
        return dataclasses.replace(self, alpha=self.alpha or self._default_alpha())

    def settings(self) -> dict[str, Any]:
        """What decides the result of a run: everything, but where it runs and where files are.

        A setting that came later than the first records is left out at its default: they still hold.
        """
        return {
            field.name: list(value) if isinstance(value, tuple) else value
            for field in dataclasses.fields(self)
            if field.name not in ("backend", "data_dir", "profile", "out")
            for value in [getattr(self, field.name)]
            if not (field.name in _LATER and value == field.default)
        }

    def _default_alpha(self) -> float:
        # EASGD's authors take 0.9 / W: W workers pull at the centre at once.
        return 0.9 / self.workers if self.protocol == "elastic_averaging" else 0.5


def flag(name: str) -> str:
    """A setting as the command line has it."""
    return "--" + name.replace("_", "-")


def _require(holds: bool, name: str, allowed: str, value: object) -> None:
    if not holds:
        raise ValueError(f"train: {flag(name)} must be {allowed}; got {value}")
