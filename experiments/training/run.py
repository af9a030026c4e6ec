"""A run: its parts, how far it has come, and its figures. Nothing here prints or writes a file."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

import gossip_jax as gj
from experiments.tasks import data
from experiments.tasks.data import Dataset
from experiments.training.config import Config
from experiments.training.program import Program, Programs
from experiments.training.protocols import make_draw
from experiments.training.results import EpochMetrics, Result
from gossip_jax import keys, metrics, traffic
from gossip_jax.keys import Purpose
from gossip_jax.training import WorkerState


class Setup(NamedTuple):
    """What stays the same during a run."""

    config: Config
    key: Array
    draw: gj.Draw
    program: Program
    shards: Any  # the training set, divided among workers: [W, n, ...], on their devices
    validation: Any
    test: Any
    updates_per_epoch: int

    @property
    def traced(self) -> dict[str, Array]:
        """The protocol's options that are values of the program."""
        values = self.config.options(self.config.spec.traced)
        return {name: jnp.float32(value) for name, value in values.items()}


class Progress(NamedTuple):
    """How far a run has come."""

    state: WorkerState  # stacked: [W, ...]
    epoch: int
    traffic: traffic.Traffic
    seconds: float  # spent in training, without compiling and scoring
    isolated: Mapping[int, int]  # workers that are out, and the update from which on

    @property
    def workers(self) -> list[int]:
        """Lists those that are not out."""
        return [worker for worker in range(len(self.traffic.bytes_sent)) if worker not in self.isolated]


def set_up(config: Config, dataset: Dataset, programs: Programs | None = None) -> Setup:
    """Divides the data, places the workers, and makes the functions of the run.

    Args:
      config: the settings.
      dataset: the one that they name.
      programs: the programs of that dataset made so far; runs that share them compile less.

    Raises:
      ValueError: the settings do not fit each other, the dataset or the devices.
    """
    config = config.checked()
    key = keys.run_key(config.seed)
    num_validation = config.validation_examples or dataset.num_validation
    train, validation = data.hold_out(dataset.train, num_validation, key)
    shards = data.shard(data.first(train, config.train_examples), config.workers)
    shard_size, batch_size = jax.tree.leaves(shards)[0].shape[1], config.batch_size // config.workers
    if batch_size > shard_size:
        raise ValueError(
            f"--batch-size {config.batch_size} takes {batch_size} examples from each worker, whose "
            f"shard has {shard_size}: at most {shard_size * config.workers} can be taken in all"
        )
    updates_per_epoch = shard_size // batch_size
    program = (programs or Programs(dataset))(config, updates_per_epoch)
    return Setup(
        config,
        key,
        make_draw(config),
        program,
        program.placement.scatter(shards),
        validation,
        dataset.test,
        updates_per_epoch,
    )


def sent(config: Config, rounds: gj.Round, params: Any) -> traffic.Traffic:
    """What the run's protocol sends over stacked rounds, of one worker's parameters."""
    return config.spec.count(rounds, params, **config.options(config.spec.compiled))


def warning(setup: Setup) -> str | None:
    """What to say before the run of workers that will never talk, for all that is asked for."""
    config, updates = setup.config, setup.config.epochs * setup.updates_per_epoch
    has_period = config.spec.draws_rounds or "period" in config.spec.compiled
    if not has_period or config.period <= updates:
        return None
    return (
        f"--period {config.period} is beyond the run's {updates} updates: no worker will ever talk to "
        f"another"
    )


def start(setup: Setup) -> Progress:
    """A run before its first update: every worker holds the same replica."""
    placement = setup.program.placement
    state = setup.program.init(placement.share(keys.derive(setup.key, Purpose.INITIALISE)))
    return Progress(state, 0, traffic.silence(setup.config.workers), 0.0, {})


def result(setup: Setup, progress: Progress) -> Result:
    """The figures of a run that has come to its end."""
    state, test = progress.state, setup.test
    of_workers = scores(setup, state, test)
    taking_part = _taking_part(progress)
    # The mean replica, on a device of this process.
    mean = metrics.mean_replica(taking_part.params), _aggregate_statistics(setup.config, taking_part)
    params, model_state = jax.tree.map(
        lambda leaf: leaf.addressable_data(0), setup.program.placement.share(mean)
    )
    of_mean = setup.program.score_one(params, model_state, test)
    found: dict[str, Any] = {}
    for metric in setup.config.task.metrics:
        workers, aggregate = of_workers[metric.name], of_mean[metric.name]
        found[f"rank0_{metric.name}"] = float(workers[0])
        found[f"aggregate_{metric.name}"] = float(metric.of(aggregate, data.number_of(test)))
        found[f"worker_{metric.name}"] = workers.tolist()
    updates = progress.epoch * setup.updates_per_epoch
    bytes_sent = float(progress.traffic.bytes_sent.mean())
    all_reduce = traffic.expected_collective(setup.config.workers, params, updates)
    return Result(
        scores=found,
        consensus_distance=float(metrics.consensus_distance(taking_part.params)),
        exchanges=int(progress.traffic.exchanges),
        bytes_sent_per_worker=bytes_sent,
        share_of_all_reduce_bytes=bytes_sent / max(float(all_reduce.bytes_sent.mean()), 1.0),
        updates=updates,
        updates_per_second=updates / progress.seconds,
    )


def scores(setup: Setup, state: WorkerState, examples: Any) -> dict[str, np.ndarray]:
    """Each metric of each worker on some examples: float64 [W], by name."""
    found = setup.program.placement.gather(
        setup.program.score(state.params, state.model_state, examples)
    )
    return {
        metric.name: metric.of(found[metric.name], data.number_of(examples))
        for metric in setup.config.task.metrics
    }


def measure(setup: Setup, progress: Progress, losses: Array) -> EpochMetrics | None:
    """After an epoch that is validated; workers that are out do not count."""
    config = setup.config
    if progress.epoch % config.validate_every and progress.epoch != config.epochs:
        return None
    found = scores(setup, progress.state, setup.validation)
    taking_part = {name: of_workers[progress.workers] for name, of_workers in found.items()}
    return EpochMetrics(
        epoch=progress.epoch,
        updates=progress.epoch * setup.updates_per_epoch,
        training_loss=float(np.mean(setup.program.placement.gather(losses))),
        scores={
            f"validation_{name}_{of}": float(getattr(values, of)())
            for name, values in taking_part.items()
            for of in ("mean", "min", "max")
        },
        consensus_distance=float(metrics.consensus_distance(_taking_part(progress).params)),
        exchanges=int(progress.traffic.exchanges),
        bytes_sent_per_worker=float(progress.traffic.bytes_sent.mean()),
        seconds=progress.seconds,
    )


def _aggregate_statistics(config: Config, taking_part: WorkerState) -> Any:
    """What the mean replica has that is not a parameter: of the first worker, or the mean over all."""
    if config.aggregate_statistics == "mean":
        return metrics.mean_replica(taking_part.model_state)
    return jax.tree.map(lambda leaf: leaf[0], taking_part.model_state)


def _taking_part(progress: Progress) -> WorkerState:
    """The state of the workers that are not out, stacked."""
    if not progress.isolated:
        return progress.state
    return jax.tree.map(lambda leaf: leaf[np.array(progress.workers)], progress.state)
