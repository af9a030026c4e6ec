"""The settings of a run, and whether they make sense."""

import dataclasses
import math
from pathlib import Path
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from gossip_jax import checks
from gossip_jax.workers import Backend

DatasetName = Literal["digits", "mnist", "fashion_mnist", "cifar10"]
ModelName = Literal["mlp", "resnet18"]
ProtocolName = Literal[
    "no_communication", "all_reduce", "elastic_gossip", "gossiping_sgd", "elastic_averaging"
]

OnNan = Literal["stop", "isolate", "restart", "continue"]

NOT_OF_THE_RESULT = frozenset(
    {"backend", "data_dir", "profile", "out", "checkpoint_every", "resume", "on_nan"}
)
"""Settings that say where a run takes place, where its files are, and what to do if it goes wrong."""

ADDED = {"drop_rate": 0.0, "wire_dtype": None}
"""Settings that older records do not have, and the values that their runs had."""


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

    drop_rate: float = 0.0
    """The probability that a worker sits out an update, neither training nor talking. Not with
    all_reduce and elastic_averaging, where all wait for all."""

    on_nan: OnNan = "stop"
    """When a worker turns NaN or infinite: stop, with the run saved as it was before; isolate it, so
    that it keeps out of all later rounds and of the aggregate; restart it from a healthy worker; or
    continue with it."""

    backend: Backend = "auto"
    """One replica a device (pmap, shard_map), or all on one (vmap). On CPU, pmap and shard_map make
    as many CPU devices as workers. auto takes pmap where there are enough devices, else vmap."""

    seed: int = 0
    """The same seed gives the same result, on every backend."""

    profile: Path | None = None
    """A directory for a trace of a few updates by JAX's profiler, made before the run begins."""

    out: Path | None = None
    """A new directory for the results; runs/DATASET-PROTOCOL-TIME-PROCESS where not given."""

    checkpoint_every: int = 1
    """Epochs between two checkpoints; 0 for none but where the run is interrupted. The last two are
    kept, and the best by validation accuracy."""

    resume: Path | None = None
    """The directory of a run that is to go on, with its settings: only --backend, --data-dir,
    --checkpoint-every and more --epochs may be given beside it."""

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
        _require(self.checkpoint_every >= 0, "checkpoint_every", "0 or more", self.checkpoint_every)
        _require(0 <= self.drop_rate < 1, "drop_rate", "in [0, 1)", self.drop_rate)
        if self.protocol in ("all_reduce", "elastic_averaging"):
            # A worker that sits out would keep everybody waiting, and a sick one reaches all at once.
            _require(not self.drop_rate, "drop_rate", f"0 with {self.protocol}", self.drop_rate)
            _require(
                self.on_nan in ("stop", "continue"),
                "on_nan",
                f"stop or continue with {self.protocol}",
                self.on_nan,
            )
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
            if field.name not in NOT_OF_THE_RESULT
            for value in [getattr(self, field.name)]
        }

    def _default_alpha(self) -> float:
        # EASGD's authors take 0.9 / W: W workers pull at the centre at once.
        return 0.9 / self.workers if self.protocol == "elastic_averaging" else 0.5


def typed(key: str, value: Any) -> Any:
    """A setting, from a file of TOML or JSON, as `Config` declares it; ValueError where it is none."""
    kind = get_type_hints(Config)[key]
    if get_origin(kind) in (Union, UnionType):  # of a Literal, typing makes one of its own
        if value is None:  # which TOML cannot say
            return None
        kind = get_args(kind)[0]
    if get_origin(kind) is Literal:
        if value not in get_args(kind):
            raise ValueError(f"{key} must be one of {', '.join(get_args(kind))}; got {value!r}")
        return value
    if get_origin(kind) is tuple:
        if not (isinstance(value, list) and all(type(item) is int for item in value)):
            raise ValueError(f"{key} must be a list of whole numbers; got {value!r}")
        return tuple(value)
    if kind is float and type(value) is int:
        return float(value)
    if kind is Path and type(value) is str:
        return Path(value)
    if type(value) is not kind:
        raise ValueError(f"{key} must be {KINDS.get(kind, 'a string')}; got {value!r}")
    return value


KINDS = {
    str: "a string",
    dict: "a table",
    bool: "true or false",
    int: "a whole number",
    float: "a number",
}
"""What the types of a file's values are called."""


def completed(settings: dict[str, Any]) -> dict[str, Any]:
    """The settings of a record, with those that came later where it does not have them."""
    return settings | {name: value for name, value in ADDED.items() if name not in settings}


def flag(name: str) -> str:
    """A setting as the command line has it."""
    return "--" + name.replace("_", "-")


def _require(holds: bool, name: str, allowed: str, value: object) -> None:
    if not holds:
        raise ValueError(f"train: {flag(name)} must be {allowed}; got {value}")
