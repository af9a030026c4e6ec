"""The settings of a run, and whether they make sense."""

import dataclasses
import math
from collections.abc import Iterable
from dataclasses import field
from pathlib import Path
from types import UnionType
from typing import TYPE_CHECKING, Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import tyro

from experiments.common.cli import flag
from experiments.tasks.registry import TASKS
from experiments.tasks.task import Task
from gossip_jax import checks
from gossip_jax.protocols import SPECS
from gossip_jax.spec import Spec
from gossip_jax.workers import Backend

GraphName = Literal["complete", "ring", "chain", "star", "torus", "hypercube", "exponential", "base"]
RoutesName = Literal["every", "in_turn", "at_random", "matcha"]
OnNan = Literal["stop", "isolate", "restart", "continue"]
if TYPE_CHECKING:
    ProtocolName = str
    DatasetName = str
    ModelName = str
else:
    ProtocolName = Literal[*SPECS]
    DatasetName = Literal[*TASKS]
    ModelName = Literal[*dict.fromkeys(model for task in TASKS.values() for model in task.models)]


# What a setting is of: it is declared with one of these.
RESULT = {"of": ("result",)}  # runs that differ in it differ in what comes out
COMPILED = {"of": ("result", "program")}  # so do they, and it is compiled in
OPTION = {"of": ("result", "protocol")}  # so do they, and the protocol's Spec says the rest
PLACE = {"of": ("place",)}  # it says where a run takes place, or where its files are
MAY_CHANGE = {"may_change": True}  # a run that goes on may have another one than before


def _later(value: Any) -> dict[str, Any]:
    """Of a setting that came later than the first records: the value that their runs had."""
    return {"absent": value}


def _help_of_protocols() -> str:
    return "; ".join(
        ["How the workers communicate", *(f"{s.name}: {s.summary}" for s in SPECS.values())]
    )


def _defaults_of(name: str) -> str:
    defaults = (
        f"{option.shown or option.default} for {spec.name}"
        for spec in SPECS.values()
        for option in spec.options
        if option.name == name
    )
    return ", ".join(defaults)


_PROTOCOL_HELP = tyro.conf.arg(help=_help_of_protocols())
_ALPHA_HELP = tyro.conf.arg(help=f"The moving rate. Where not given: {_defaults_of('alpha')}.")
_PERIOD_HELP = tyro.conf.arg(
    help=f"The communication period: only every so many updates may workers communicate. Where not "
    f"given: {_defaults_of('period')}, else 1."
)


def _with_options(config: type) -> type:
    """Adds a setting for each option of a protocol that has none yet: None, where it is not given."""
    for spec in SPECS.values():
        for option in spec.options:
            if option.name not in config.__annotations__:
                owners = [s.name for s in SPECS.values() if option.name in {o.name for o in s.options}]
                described = tyro.conf.arg(help=f"Of {', '.join(owners)}: {option.help}")
                # A switch is off where it is not given.
                kind, unset = (bool, False) if option.kind is bool else (option.kind | None, None)
                config.__annotations__[option.name] = Annotated[kind, described]
                setattr(config, option.name, field(default=unset, metadata=OPTION | _later(unset)))
    return config


@dataclasses.dataclass(frozen=True)
@_with_options
class Config:
    """Train a model on several workers, with one of the protocols.

    The defaults are the thesis's settings for MNIST (arXiv:1812.02407), on a dataset that needs no
    download.
    """

    dataset: DatasetName = field(default="digits", metadata=COMPILED)
    """What to learn. digits ships inside scikit-learn; the others are read with tensorflow-datasets."""

    data_dir: Path | None = field(default=None, metadata=PLACE | MAY_CHANGE)
    """Where the prepared datasets of tensorflow-datasets are. Where not given: $TFDS_DATA_DIR,
    ~/tensorflow_datasets or, beside the checkout, shared/data/tfds."""

    model: ModelName | None = field(default=None, metadata=COMPILED)
    """What learns it: a perceptron with three hidden layers (mlp), or a pre-activation ResNet-18. Where
    not given: the first that can."""

    augment: bool = field(default=False, metadata=COMPILED)
    """Crop the training images at random, from 4 pixels of padding, and flip them left to right."""

    protocol: Annotated[ProtocolName, _PROTOCOL_HELP] = field(
        default="elastic_gossip", metadata=COMPILED
    )
    variant: Literal["pull", "push"] = field(default="pull", metadata=OPTION)
    """Of gossiping_sgd: fetch the peer's parameters, or send one's own."""

    peers: Literal["uniform", "pairing", "graph"] | None = field(default=None, metadata=RESULT)
    """Who talks to whom: each worker picks its own peer (uniform), all are matched in pairs (pairing),
    or those talk whom a graph makes neighbours. Where not given: pairing for noloco, graph for the
    protocols of graphs (dpsgd and its kind), else uniform."""

    graph: GraphName = field(default="ring", metadata=RESULT | _later("ring"))
    """With --peers graph: who are neighbours. A torus is as square as can be; base is Base-2."""

    routes: RoutesName | None = field(default=None, metadata=RESULT | _later(None))
    """With --peers graph: all neighbours talk at every update (every), one route after the other
    (in_turn), one at random, with probability p (at_random), or each of its matchings at random, p of
    them on average, as often as MATCHA says (matcha). Where not given: in_turn for base, else every."""

    workers: int = field(default=4, metadata=COMPILED)
    """W, the number of workers."""

    p: float | None = field(default=None, metadata=RESULT)
    """Of the gossip protocols: the probability that a worker initiates contact at an update. Where not
    given: 1 for noloco, else 1/32."""

    alpha: Annotated[float | None, _ALPHA_HELP] = field(default=None, metadata=OPTION)
    wire_dtype: Literal["bfloat16", "float16"] | None = field(
        default=None, metadata=OPTION | _later(None)
    )
    """Of the gossip protocols: the type that parameters are sent in; their own where not given."""

    period: Annotated[int | None, _PERIOD_HELP] = field(default=None, metadata=OPTION)

    epochs: int = field(default=20, metadata=RESULT | MAY_CHANGE)
    """Passes over the training set."""

    batch_size: int = field(default=128, metadata=COMPILED)
    """Examples in an update, over all workers: each takes batch-size / W of them."""

    learning_rate: float = field(default=0.001, metadata=COMPILED)
    """Of SGD with Nesterov momentum."""

    momentum: float = field(default=0.99, metadata=COMPILED)
    """Of SGD with Nesterov momentum."""

    halve_after: tuple[int, ...] = field(default=(), metadata=COMPILED)
    """Epochs after each of which the learning rate is halved."""

    width: int = field(default=1024, metadata=COMPILED)
    """Units in each of the MLP's three hidden layers."""

    validation_examples: int | None = field(default=None, metadata=COMPILED)
    """Held out from the training set; where not given, as the dataset's usual split has it."""

    train_examples: int | None = field(default=None, metadata=COMPILED)
    """Train on so many of the examples that remain, drawn at random; on all where not given."""

    validate_every: int = field(default=1, metadata=RESULT)
    """Epochs between two validations; the last epoch always has one."""

    drop_rate: float = field(default=0.0, metadata=RESULT | _later(0.0))
    """The probability that a worker sits out an update, neither training nor talking. Not with a
    protocol in which all wait for all."""

    on_nan: OnNan = field(default="stop", metadata=RESULT | MAY_CHANGE | _later("stop"))
    """When a worker turns NaN or infinite: stop, with the run saved as it was before; isolate it, so
    that it keeps out of all later rounds and of the aggregate; restart it from a healthy worker; or
    continue with it."""

    aggregate_statistics: Literal["rank0", "mean"] = field(
        default="rank0", metadata=RESULT | _later("rank0")
    )
    """The batch-norm statistics that the mean replica is scored with: worker 0's, as in the thesis
    (rank0), or the mean over workers of their running means and variances (mean)."""

    backend: Backend = field(default="auto", metadata={"of": ("place", "program")} | MAY_CHANGE)
    """One replica a device (pmap), equally many on each (shard_map), or all on one (vmap). On CPU, pmap
    and shard_map make as many CPU devices as workers. auto takes pmap where there are enough devices,
    else shard_map on as many as can share the workers, and vmap where that is one."""

    seed: int = field(default=0, metadata=RESULT)
    """The same seed gives the same result, on every backend."""

    profile: Path | None = field(default=None, metadata=PLACE | MAY_CHANGE)
    """A directory for a trace of a few updates by JAX's profiler, made before the run begins."""

    cache: bool = field(default=True, metadata=PLACE | MAY_CHANGE)
    """Keep compiled programs in ~/.cache/gossip_jax ($XDG_CACHE_HOME), for the next run to find."""

    out: Path | None = field(default=None, metadata=PLACE)
    """A new directory for the results; runs/DATASET-PROTOCOL-TIME-PROCESS where not given."""

    checkpoint_every: int = field(default=1, metadata=PLACE | MAY_CHANGE)
    """Epochs between two checkpoints; 0 for none but where the run is interrupted. The last two are
    kept, and the best by validation accuracy."""

    resume: Path | None = field(default=None, metadata=PLACE)  # its help is below

    def checked(self) -> "Config":
        """These settings, with those filled in that depend on others and were not given.

        Raises:
          ValueError: a setting is out of range.
        """
        for name in ("workers", "epochs", "batch_size", "width", "validate_every"):
            checks.at_least_one("train", flag(name), getattr(self, name))
        for name in ("period", "validation_examples", "train_examples"):
            if getattr(self, name) is not None:
                checks.at_least_one("train", flag(name), getattr(self, name))
        for epoch in self.halve_after:
            checks.at_least_one("train", flag("halve_after"), epoch)
        if self.p is not None:
            checks.probability("train", "--p", self.p)
        if self.alpha is not None:
            checks.moving_rate("train", "--alpha", self.alpha)
        _require(self.learning_rate > 0, "learning_rate", "positive", self.learning_rate)
        _require(math.isfinite(self.learning_rate), "learning_rate", "finite", self.learning_rate)
        _require(0 <= self.momentum < 1, "momentum", "in [0, 1)", self.momentum)
        _require(0 <= self.seed < 2**32, "seed", "in [0, 2^32)", self.seed)
        _require(self.checkpoint_every >= 0, "checkpoint_every", "0 or more", self.checkpoint_every)
        _require(0 <= self.drop_rate < 1, "drop_rate", "in [0, 1)", self.drop_rate)
        if not self.spec.may_miss_workers:
            # A worker that sits out would keep everybody waiting, and a sick one reaches all at once.
            _require(not self.drop_rate, "drop_rate", f"0 with {self.protocol}", self.drop_rate)
            _require(
                self.on_nan in ("stop", "continue"),
                "on_nan",
                f"stop or continue with {self.protocol}",
                self.on_nan,
            )
        _require(
            self.spec.rounds != "fixed graph" or self.peers in (None, "graph"),
            "peers",
            f"graph with {self.protocol}",
            self.peers,
        )
        if self.batch_size % self.workers:
            raise ValueError(
                f"train: --batch-size counts the examples of all workers, so it must be a multiple of "
                f"--workers; got {self.batch_size} for {self.workers} workers"
            )
        if self.model not in (None, *self.task.models):
            raise ValueError(
                f"train: --model must be {' or '.join(self.task.models)} with --dataset "
                f"{self.dataset}; got {self.model}"
            )
        # Records have a moving rate, a period and p also where the protocol has none.
        is_of_graphs = self.spec.rounds in ("graph", "fixed graph")
        defaults = {"alpha": 0.5, "period": 1, "p": 1 / 32, "model": self.task.models[0]}
        defaults |= {"peers": "graph" if is_of_graphs else "uniform", **self.spec.defaults}
        defaults |= {option.name: option.default_for(self.workers) for option in self.spec.options}
        not_given = {name for name in defaults if getattr(self, name) is None}
        return dataclasses.replace(self, **{name: defaults[name] for name in not_given})

    @property
    def task(self) -> Task:
        """What is learnt, and how it is scored."""
        return TASKS[self.dataset]

    @property
    def spec(self) -> Spec:
        """What the protocol is."""
        return SPECS[self.protocol]

    def options(self, names: Iterable[str]) -> dict[str, Any]:
        """The settings of these names."""
        return {name: getattr(self, name) for name in names}

    def settings(self) -> dict[str, Any]:
        """What decides the result of a run: everything, but where it runs and where files are."""
        return {
            name: list(value) if isinstance(value, tuple) else value
            for name, value in self.options(names_of("result")).items()
        }

    def compiled(self) -> "Config":
        """What is compiled into the run's program: all other settings are at their defaults.

        A program is made of this and nothing else, so that no run gets another one's: what it reads
        of the settings is what tells it from others.
        """
        return Config(**self.options({*names_of("program"), *self.spec.compiled}))


def names_of(of: str) -> list[str]:
    """The settings that are of the result, of the program or of the place, as they are declared."""
    return [one.name for one in dataclasses.fields(Config) if of in one.metadata["of"]]


def names_that_may_change() -> list[str]:
    """The settings that a run that goes on may have otherwise than before."""
    return [one.name for one in dataclasses.fields(Config) if "may_change" in one.metadata]


def _help_of_resume() -> str:
    beside = ", ".join(map(flag, sorted(names_that_may_change())))
    return (
        f"The directory of a run that is to go on, with its settings. Of these, only {beside} may be "
        f"given beside it, and no fewer epochs than before."
    )


Config.__annotations__["resume"] = Annotated[Path | None, tyro.conf.arg(help=_help_of_resume())]


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
    later = {
        one.name: one.metadata["absent"]
        for one in dataclasses.fields(Config)
        if "absent" in one.metadata and one.name not in settings
    }
    return settings | later


def _require(holds: bool, name: str, allowed: str, value: object) -> None:
    if not holds:
        raise ValueError(f"train: {flag(name)} must be {allowed}; got {value}")
