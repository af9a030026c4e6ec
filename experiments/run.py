"""A run, from settings to figures. Nothing here prints or writes a file."""

import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import numpy as np
from jax import Array

import gossip_jax as gj
from experiments import data, memory
from experiments.config import Config
from experiments.data import Dataset, Examples
from experiments.models import MLP
from experiments.protocols import PROTOCOLS, make_draw, make_optimizer
from experiments.task import classification
from gossip_jax import keys, metrics, traffic, training
from gossip_jax.keys import Purpose
from gossip_jax.training import WorkerState


class Setup(NamedTuple):
    """What stays the same during a run."""

    config: Config
    key: Array
    draw: gj.Draw
    placement: gj.Placement
    shards: Examples  # the training set, divided among workers: [W, n, ...], on their devices
    validation: Examples
    test: Examples
    updates_per_epoch: int
    init: Callable[[Array], WorkerState]  # of all workers, stacked
    epoch: Any  # compiled with .lower(): (state, shards, rounds, key) -> (state, losses [W])
    score: Callable[[Any, Any, Examples], Array]  # (params, model_state, examples) -> hits [W]
    score_one: Callable[[Any, Any, Examples], Array]  # the same for one replica


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


def set_up(config: Config, dataset: Dataset) -> Setup:
    """Divides the data, places the workers, and makes the functions of the run.

    Raises:
      ValueError: the settings do not fit each other, the dataset or the devices.
    """
    config = config.checked()
    placement = gj.place(config.workers, config.backend)
    optimizer = make_optimizer(config)
    task = classification(MLP(dataset.num_classes, config.width), dataset)
    key = keys.run_key(config.seed)

    num_validation = config.validation_examples or dataset.num_validation
    train, validation = data.hold_out(dataset.train, num_validation, key)
    shards = data.shard(train, config.workers)
    shard_size, batch_size = shards.label.shape[1], config.batch_size // config.workers
    if batch_size > shard_size:
        raise ValueError(
            f"--batch-size {config.batch_size} takes {batch_size} examples from each worker, whose "
            f"shard has {shard_size}: at most {shard_size * config.workers} can be taken in all"
        )

    def init_worker(key: Array) -> WorkerState:
        return training.init_worker(*task.init(key), optimizer)

    return Setup(
        config,
        key,
        make_draw(config),
        placement,
        placement.scatter(shards),
        validation,
        dataset.test,
        updates_per_epoch=shard_size // batch_size,
        init=placement.map(init_worker, in_axes=(None,)),
        epoch=placement.map(
            training.train_epoch(task.loss, optimizer, batch_size),
            in_axes=(0, 0, None, None),
            donate_argnums=(0,),
        ),
        score=placement.map(task.num_correct, in_axes=(0, 0, None)),
        score_one=jax.jit(task.num_correct),
    )


def start(setup: Setup) -> Progress:
    """A run before its first update: every worker holds the same replica."""
    state = setup.init(keys.derive(setup.key, Purpose.INITIALISE))
    return Progress(state, 0, traffic.silence(setup.config.workers), 0.0)


def train(setup: Setup, progress: Progress) -> Iterator[tuple[Progress, EpochMetrics]]:
    """Trains to the last epoch, and yields after each. The progress it is given is used up."""
    rounds_traffic = PROTOCOLS[setup.config.protocol].traffic
    params = jax.eval_shape(metrics.mean_replica, progress.state.params)  # the shapes of a replica
    # Compiled ahead, so that no epoch's time holds it.
    epoch_of_all = setup.epoch.lower(
        progress.state, setup.shards, _rounds(setup, 0), setup.key
    ).compile()
    memory.trim()

    while progress.epoch < setup.config.epochs:
        rounds = _rounds(setup, progress.epoch)
        before = time.perf_counter()
        state, losses = jax.block_until_ready(
            epoch_of_all(progress.state, setup.shards, rounds, setup.key)
        )
        seconds = time.perf_counter() - before
        progress = Progress(
            state,
            progress.epoch + 1,
            progress.traffic + rounds_traffic(setup.config, rounds, params),
            progress.seconds + seconds,
        )
        yield progress, _measure(setup, progress, losses)


def result(setup: Setup, progress: Progress) -> Result:
    """The figures of a run that has come to its end."""
    state, test = progress.state, setup.test
    accuracy = _accuracy(setup, state, test)
    # The mean replica, with what is not a parameter from worker 0, on one device.
    params, model_state = jax.device_put(
        (metrics.mean_replica(state.params), jax.tree.map(lambda leaf: leaf[0], state.model_state)),
        setup.placement.devices[0],
    )
    right = setup.score_one(params, model_state, test)
    updates = progress.epoch * setup.updates_per_epoch
    sent = float(progress.traffic.bytes_sent.mean())
    all_reduce = traffic.expected_collective(setup.config.workers, params, updates)
    return Result(
        rank0_accuracy=float(accuracy[0]),
        aggregate_accuracy=int(right) / len(test.label),
        worker_accuracy=accuracy.tolist(),
        consensus_distance=float(metrics.consensus_distance(state.params)),
        exchanges=int(progress.traffic.exchanges),
        bytes_sent_per_worker=sent,
        share_of_all_reduce_bytes=sent / max(float(all_reduce.bytes_sent.mean()), 1.0),
        updates=updates,
        updates_per_second=updates / progress.seconds,
    )


def _measure(setup: Setup, progress: Progress, losses: Array) -> EpochMetrics:
    accuracy = _accuracy(setup, progress.state, setup.validation)
    return EpochMetrics(
        epoch=progress.epoch,
        updates=progress.epoch * setup.updates_per_epoch,
        training_loss=float(np.mean(losses)),
        validation_accuracy_mean=float(accuracy.mean()),
        validation_accuracy_min=float(accuracy.min()),
        validation_accuracy_max=float(accuracy.max()),
        consensus_distance=float(metrics.consensus_distance(progress.state.params)),
        exchanges=int(progress.traffic.exchanges),
        bytes_sent_per_worker=float(progress.traffic.bytes_sent.mean()),
        seconds=progress.seconds,
    )


def _accuracy(setup: Setup, state: WorkerState, examples: Examples) -> np.ndarray:
    """Of each worker: float64 [W]."""
    return np.asarray(setup.score(state.params, state.model_state, examples)) / len(examples.label)


def _rounds(setup: Setup, epoch: int) -> gj.Round:
    """The rounds of an epoch, counted from 0."""
    updates = setup.updates_per_epoch
    return training.draw_rounds(setup.draw, setup.key, epoch * updates + 1, updates)
