"""A run, from settings to figures. Nothing here prints or writes a file."""

import time
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

import gossip_jax as gj
from experiments import data
from experiments.config import Config
from experiments.data import Dataset, Examples
from experiments.program import Program, Programs
from experiments.protocols import PROTOCOLS, make_draw
from gossip_jax import keys, metrics, traffic, training
from gossip_jax.keys import Purpose
from gossip_jax.training import WorkerState


class Setup(NamedTuple):
    """What stays the same during a run."""

    config: Config
    key: Array
    draw: gj.Draw
    program: Program
    shards: Examples  # the training set, divided among workers: [W, n, ...], on their devices
    validation: Examples
    test: Examples
    updates_per_epoch: int


class Progress(NamedTuple):
    """How far a run has come."""

    state: WorkerState  # stacked: [W, ...]
    epoch: int
    traffic: traffic.Traffic
    seconds: float  # spent in training, without compiling and scoring


class EpochMetrics(NamedTuple):
    """A line of metrics.jsonl; accuracies are on the validation set."""

    epoch: int
    updates: int  # since the start, as are all counts
    training_loss: float  # mean over workers and over the epoch's updates
    validation_accuracy_mean: float  # over workers
    validation_accuracy_min: float
    validation_accuracy_max: float
    consensus_distance: float
    exchanges: int
    bytes_sent_per_worker: float  # mean over workers
    seconds: float


class Result(NamedTuple):
    """What result.json holds; accuracies are on the test set, after the last update."""

    rank0_accuracy: float
    aggregate_accuracy: float  # of the mean replica
    worker_accuracy: list[float]
    consensus_distance: float
    exchanges: int
    bytes_sent_per_worker: float  # mean over workers
    share_of_all_reduce_bytes: float  # of what All-reduce SGD sends in as many updates
    updates: int
    updates_per_second: float


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
    shard_size, batch_size = shards.label.shape[1], config.batch_size // config.workers
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


def start(setup: Setup) -> Progress:
    """A run before its first update: every worker holds the same replica."""
    placement = setup.program.placement
    state = setup.program.init(placement.share(keys.derive(setup.key, Purpose.INITIALISE)))
    return Progress(state, 0, traffic.silence(setup.config.workers), 0.0)


def train(setup: Setup, progress: Progress) -> Iterator[tuple[Progress, EpochMetrics | None]]:
    """Trains to the last epoch, and yields after each. The progress it is given is used up.

    Metrics are None after an epoch that is not validated.
    """
    for (after_epoch,) in train_together([setup], [progress]):
        yield after_epoch


def train_together(
    setups: Sequence[Setup], runs: Sequence[Progress]
) -> Iterator[list[tuple[Progress, EpochMetrics | None]]]:
    """Trains several runs in one program, a step of all at a time: as `train` does one.

    Args:
      setups: of runs that differ in their seed only.
      runs: how far each has come, all to the same epoch. They are used up.
    """
    config, program = setups[0].config, setups[0].program
    rounds_traffic = PROTOCOLS[config.protocol].traffic
    params = jax.eval_shape(metrics.mean_replica, runs[0].state.params)  # the shapes of a replica
    scatter, share = program.placement.scatter, program.placement.share
    shards = scatter(_stack([setup.shards for setup in setups], axis=1))
    key, alpha = share((_stack([setup.key for setup in setups]), jnp.float32(config.alpha)))

    while runs[0].epoch < config.epochs:
        states = scatter(_stack([progress.state for progress in runs], axis=1))
        drawn = [_rounds(setup, runs[0].epoch) for setup in setups]
        inputs = jax.block_until_ready((states, shards, share(_stack(drawn)), key, alpha))
        program.compile_epoch(*inputs)  # ahead, so that no epoch's time holds it
        before = time.perf_counter()
        states, losses = jax.block_until_ready(program.epoch(*inputs))
        seconds = (time.perf_counter() - before) / len(setups)
        runs = [
            Progress(
                state,
                progress.epoch + 1,
                progress.traffic + rounds_traffic(config, rounds, params),
                progress.seconds + seconds,
            )
            for progress, state, rounds in zip(runs, _unstack(states, len(setups)), drawn, strict=True)
        ]
        is_due = runs[0].epoch % config.validate_every == 0 or runs[0].epoch == config.epochs
        yield [
            (progress, _measure(setup, progress, loss) if is_due else None)
            for setup, progress, loss in zip(setups, runs, _unstack(losses, len(setups)), strict=True)
        ]


def result(setup: Setup, progress: Progress) -> Result:
    """The figures of a run that has come to its end."""
    state, test = progress.state, setup.test
    worker_accuracy = accuracy(setup, state, test)
    # The mean replica, with what is not a parameter from worker 0, on a device of this process.
    mean = metrics.mean_replica(state.params), jax.tree.map(lambda leaf: leaf[0], state.model_state)
    params, model_state = jax.tree.map(
        lambda leaf: leaf.addressable_data(0), setup.program.placement.share(mean)
    )
    right = setup.program.score_one(params, model_state, test)
    updates = progress.epoch * setup.updates_per_epoch
    sent = float(progress.traffic.bytes_sent.mean())
    all_reduce = traffic.expected_collective(setup.config.workers, params, updates)
    return Result(
        rank0_accuracy=float(worker_accuracy[0]),
        aggregate_accuracy=int(right) / len(test.label),
        worker_accuracy=worker_accuracy.tolist(),
        consensus_distance=float(metrics.consensus_distance(state.params)),
        exchanges=int(progress.traffic.exchanges),
        bytes_sent_per_worker=sent,
        share_of_all_reduce_bytes=sent / max(float(all_reduce.bytes_sent.mean()), 1.0),
        updates=updates,
        updates_per_second=updates / progress.seconds,
    )


def accuracy(setup: Setup, state: WorkerState, examples: Examples) -> np.ndarray:
    """The accuracy of each worker on some examples: float64 [W]."""
    right = setup.program.score(state.params, state.model_state, examples)
    return np.asarray(setup.program.placement.gather(right)) / len(examples.label)


def _measure(setup: Setup, progress: Progress, losses: Array) -> EpochMetrics:
    of_workers = accuracy(setup, progress.state, setup.validation)
    return EpochMetrics(
        epoch=progress.epoch,
        updates=progress.epoch * setup.updates_per_epoch,
        training_loss=float(np.mean(setup.program.placement.gather(losses))),
        validation_accuracy_mean=float(of_workers.mean()),
        validation_accuracy_min=float(of_workers.min()),
        validation_accuracy_max=float(of_workers.max()),
        consensus_distance=float(metrics.consensus_distance(progress.state.params)),
        exchanges=int(progress.traffic.exchanges),
        bytes_sent_per_worker=float(progress.traffic.bytes_sent.mean()),
        seconds=progress.seconds,
    )


def _rounds(setup: Setup, epoch: int) -> gj.Round:
    """The rounds of an epoch, counted from 0."""
    updates = setup.updates_per_epoch
    return training.draw_rounds(setup.draw, setup.key, epoch * updates + 1, updates)


def _stack(trees: Sequence[Any], axis: int = 0) -> Any:
    """The values of several runs along a new axis; those of a single run as they are."""
    return trees[0] if len(trees) == 1 else jax.tree.map(lambda *x: jnp.stack(x, axis), *trees)


def _unstack(tree: Any, num_runs: int) -> list[Any]:
    """The values of each run, from stacked ones [W, S, ...]."""
    if num_runs == 1:
        return [tree]
    return [jax.tree.map(lambda leaf, i=i: leaf[:, i], tree) for i in range(num_runs)]
