"""A run, from settings to figures. Nothing here prints or writes a file."""

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

import gossip_jax as gj
from experiments import data
from experiments.config import Config
from experiments.data import Dataset, Examples
from experiments.processes import together
from experiments.program import Program, Programs
from experiments.protocols import PROTOCOLS, make_draw
from gossip_jax import keys, metrics, traffic, training
from gossip_jax.absence import draw_absences, without
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
    isolated: Mapping[int, int]  # workers that are out, and the update from which on

    @property
    def workers(self) -> list[int]:
        """Those that are not out."""
        return [worker for worker in range(len(self.traffic.bytes_sent)) if worker not in self.isolated]


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
    return Progress(state, 0, traffic.silence(setup.config.workers), 0.0, {})


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
    shared = _share(setups)
    while runs[0].epoch < setups[0].config.epochs:
        runs, losses, _ = _train_epoch(setups, runs, shared)
        yield [
            (progress, _measure(setup, progress, loss))
            for setup, progress, loss in zip(setups, runs, losses, strict=True)
        ]


def train_watched_epoch(
    setup: Setup, progress: Progress
) -> tuple[Progress, EpochMetrics | None, np.ndarray]:
    """Trains for an epoch, as `train` does, and says when workers turned NaN or infinite.

    Returns:
      How far the run has come, its metrics, and int32 [W]: the update at which a worker did so, or 0.
    """
    (progress,), (loss,), sick_from = _train_epoch([setup], [progress], _share([setup]), True)
    sick_from = setup.program.placement.gather(sick_from)
    return progress, _measure(setup, progress, loss), np.asarray(sick_from)


class _Shared(NamedTuple):
    """What stays the same for all epochs of runs that train together."""

    shards: Any
    key: Array
    alpha: Array


def _share(setups: Sequence[Setup]) -> _Shared:
    placement, alpha = setups[0].program.placement, jnp.float32(setups[0].config.alpha)
    shards = placement.scatter(_stack([setup.shards for setup in setups], axis=1))
    return _Shared(shards, *placement.share((_stack([setup.key for setup in setups]), alpha)))


def _train_epoch(
    setups: Sequence[Setup], runs: Sequence[Progress], shared: _Shared, is_watched: bool = False
) -> tuple[list[Progress], list[Array], Any]:
    """One more epoch: the runs after it, the mean losses of each [W], and who turned sick when."""
    config, program = setups[0].config, setups[0].program
    rounds_traffic = PROTOCOLS[config.protocol].traffic
    params = jax.eval_shape(metrics.mean_replica, runs[0].state.params)  # the shapes of a replica
    states = program.placement.scatter(_stack([progress.state for progress in runs], axis=1))
    drawn = [_rounds(setup, runs[0].epoch) for setup in setups]
    absent, share_present = None, [1.0] * len(runs)
    if is_watched or config.drop_rate or any(progress.isolated for progress in runs):
        absences = [_absent(*of_run) for of_run in zip(setups, runs, drawn, strict=True)]
        drawn = [without(*of_run) for of_run in zip(drawn, absences, strict=True)]
        absent, share_present = _stack(absences), [1 - of_run.mean() for of_run in absences]
    decides = _stack(drawn), absent
    rounds, absent = program.placement.share(decides)
    inputs = jax.block_until_ready((states, shared.shards, rounds, shared.key, shared.alpha, absent))
    compiled = program.compile_epoch(*inputs)  # ahead, so that no epoch's time holds it
    with together(compiled, program.placement.devices, decides, f"epoch {runs[0].epoch + 1}"):
        before = time.perf_counter()
        states, losses, sick_from = jax.block_until_ready(program.epoch(*inputs))
        seconds = (time.perf_counter() - before) / len(setups)
    after = [
        progress._replace(
            state=state,
            epoch=progress.epoch + 1,
            traffic=progress.traffic + rounds_traffic(config, rounds, params),
            seconds=progress.seconds + seconds,
        )
        for progress, state, rounds in zip(runs, _unstack(states, len(setups)), drawn, strict=True)
    ]
    # Of an update that a worker sat out there is no loss.
    losses = [
        loss / share for loss, share in zip(_unstack(losses, len(setups)), share_present, strict=True)
    ]
    return after, losses, sick_from


def result(setup: Setup, progress: Progress) -> Result:
    """The figures of a run that has come to its end."""
    state, test = progress.state, setup.test
    worker_accuracy = accuracy(setup, state, test)
    taking_part = _taking_part(progress)
    # The mean replica, with what is not a parameter from one worker, on a device of this process.
    mean = (
        metrics.mean_replica(taking_part.params),
        jax.tree.map(lambda leaf: leaf[0], taking_part.model_state),
    )
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
        consensus_distance=float(metrics.consensus_distance(taking_part.params)),
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


def _measure(setup: Setup, progress: Progress, losses: Array) -> EpochMetrics | None:
    """After an epoch that is validated; workers that are out do not count."""
    config = setup.config
    if progress.epoch % config.validate_every and progress.epoch != config.epochs:
        return None
    of_workers = accuracy(setup, progress.state, setup.validation)[progress.workers]
    return EpochMetrics(
        epoch=progress.epoch,
        updates=progress.epoch * setup.updates_per_epoch,
        training_loss=float(np.mean(setup.program.placement.gather(losses))),
        validation_accuracy_mean=float(of_workers.mean()),
        validation_accuracy_min=float(of_workers.min()),
        validation_accuracy_max=float(of_workers.max()),
        consensus_distance=float(metrics.consensus_distance(_taking_part(progress).params)),
        exchanges=int(progress.traffic.exchanges),
        bytes_sent_per_worker=float(progress.traffic.bytes_sent.mean()),
        seconds=progress.seconds,
    )


def _rounds(setup: Setup, epoch: int) -> gj.Round:
    """The rounds of an epoch, counted from 0."""
    updates = setup.updates_per_epoch
    return training.draw_rounds(setup.draw, setup.key, epoch * updates + 1, updates)


def _absent(setup: Setup, progress: Progress, rounds: gj.Round) -> Array:
    """Who sits out which update of an epoch: bool [T, W]."""
    num_updates, num_workers = rounds.peer.shape
    rate = setup.config.drop_rate
    dropped = draw_absences(setup.key, rounds.step[0], num_updates, num_workers, rate)
    since = [progress.isolated.get(worker, 2**31 - 1) for worker in range(num_workers)]
    return dropped | (rounds.step[:, None] >= np.array(since, np.int32))


def _taking_part(progress: Progress) -> WorkerState:
    """The state of the workers that are not out, stacked."""
    if not progress.isolated:
        return progress.state
    return jax.tree.map(lambda leaf: leaf[np.array(progress.workers)], progress.state)


def _stack(trees: Sequence[Any], axis: int = 0) -> Any:
    """The values of several runs along a new axis; those of a single run as they are."""
    return trees[0] if len(trees) == 1 else jax.tree.map(lambda *x: jnp.stack(x, axis), *trees)


def _unstack(tree: Any, num_runs: int) -> list[Any]:
    """The values of each run, from stacked ones [W, S, ...]."""
    if num_runs == 1:
        return [tree]
    return [jax.tree.map(lambda leaf, i=i: leaf[:, i], tree) for i in range(num_runs)]
