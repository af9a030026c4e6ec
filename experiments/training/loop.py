"""The loop over epochs: the only one. What shows, keeps or measures a run is an observer of it."""

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

import gossip_jax as gj
from experiments.cluster.processes import together
from experiments.training import run
from experiments.training.results import EpochMetrics
from experiments.training.run import Progress, Setup
from gossip_jax import metrics, training
from gossip_jax.absence import draw_absences, without


class Epoch(NamedTuple):
    """How far a run has come after an epoch, and what was measured there."""

    progress: Progress
    metrics: EpochMetrics | None  # None: it is not validated


Observer = Callable[[Sequence[Epoch]], object]
"""Is told of the runs after each epoch. It ends the training by raising, or by returning True."""


def train(
    setups: Sequence[Setup],
    runs: Sequence[Progress],
    observers: Sequence[Observer],
    treat: Callable[[list[Epoch]], list[Epoch]] = lambda after: after,
    enter: Callable[[str], object] = lambda phase: None,
) -> list[Progress]:
    """Trains runs to their last epoch, or until an observer has seen enough.

    Args:
      setups: of runs that differ in their seed only; several train in one program.
      runs: how far each has come, all to the same epoch. They are used up.
      observers: are told of every epoch, in turn.
      treat: what is done first with runs whose workers turned NaN, as `runs.faults` does.
      enter: is told of each phase: "compiling", "training", "scoring".
    """
    for after in epochs(setups, runs, treat, enter):
        runs = [epoch.progress for epoch in after]
        answers = [observe(after) for observe in observers]  # all are told before it ends
        if True in answers:
            break
    return list(runs)


def epochs(
    setups: Sequence[Setup],
    runs: Sequence[Progress],
    treat: Callable[[list[Epoch]], list[Epoch]] = lambda after: after,
    enter: Callable[[str], object] = lambda phase: None,
) -> Iterator[list[Epoch]]:
    """Trains epoch by epoch; takes what `train` does."""
    shared = _share(setups)
    while runs[0].epoch < setups[0].config.epochs:
        runs, losses, _ = _train_epoch(setups, runs, shared, enter=enter)
        enter("scoring")
        after = [
            Epoch(progress, run.measure(setup, progress, loss))
            for setup, progress, loss in zip(setups, runs, losses, strict=True)
        ]
        after = treat(after)
        runs = [epoch.progress for epoch in after]
        yield after


def epochs_of_one(setup: Setup, progress: Progress) -> Iterator[Epoch]:
    """Trains a single run epoch by epoch, as `epochs` does several."""
    for (after,) in epochs([setup], [progress]):
        yield after


def watched_epoch(setup: Setup, progress: Progress) -> tuple[Epoch, np.ndarray]:
    """Trains for an epoch, and finds out when workers turned NaN or infinite.

    Returns:
      The epoch, and int32 [W]: the update at which a worker did so, or 0.
    """
    (progress,), (loss,), sick_from = _train_epoch([setup], [progress], _share([setup]), True)
    sick_from = setup.program.placement.gather(sick_from)
    return Epoch(progress, run.measure(setup, progress, loss)), np.asarray(sick_from)


class _Shared(NamedTuple):
    """What stays the same for all epochs of runs that train together."""

    shards: Any
    key: Array
    traced: dict[str, Array]


def _share(setups: Sequence[Setup]) -> _Shared:
    placement, traced = setups[0].program.placement, setups[0].traced
    shards = placement.scatter(_stack([setup.shards for setup in setups], axis=1))
    return _Shared(shards, *placement.share((_stack([setup.key for setup in setups]), traced)))


def _train_epoch(
    setups: Sequence[Setup],
    runs: Sequence[Progress],
    shared: _Shared,
    is_watched: bool = False,
    enter: Callable[[str], object] = lambda phase: None,
) -> tuple[list[Progress], list[Array], Any]:
    """One more epoch: the runs after it, the mean losses of each [W], and who turned sick when."""
    config, program = setups[0].config, setups[0].program
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
    inputs = jax.block_until_ready((states, shared.shards, rounds, shared.key, shared.traced, absent))
    enter("compiling")
    compiled = program.compile_epoch(*inputs)  # ahead, so that no epoch's time holds it
    enter("training")
    with together(compiled, program.placement.devices, decides, f"epoch {runs[0].epoch + 1}"):
        before = time.perf_counter()
        states, losses, sick_from = jax.block_until_ready(program.epoch(*inputs))
        seconds = (time.perf_counter() - before) / len(setups)
    after = [
        progress._replace(
            state=state,
            epoch=progress.epoch + 1,
            traffic=progress.traffic + run.sent(config, rounds, params),
            seconds=progress.seconds + seconds,
        )
        for progress, state, rounds in zip(runs, _unstack(states, len(setups)), drawn, strict=True)
    ]
    # Of an update that a worker sat out there is no loss.
    losses = [
        loss / share for loss, share in zip(_unstack(losses, len(setups)), share_present, strict=True)
    ]
    return after, losses, sick_from


def _rounds(setup: Setup, epoch: int) -> gj.Round:
    """The rounds of an epoch, counted from 0."""
    updates = setup.updates_per_epoch
    return training.draw_rounds(setup.draw, setup.key, epoch * updates + 1, updates)


def _absent(setup: Setup, progress: Progress, rounds: gj.Round) -> Array:
    """Who sits out which update of an epoch: bool [T, W]."""
    num_updates, num_workers = len(rounds.step), rounds.num_workers
    rate = setup.config.drop_rate
    dropped = draw_absences(setup.key, rounds.step[0], num_updates, num_workers, rate)
    since = [progress.isolated.get(worker, 2**31 - 1) for worker in range(num_workers)]
    return dropped | (rounds.step[:, None] >= np.array(since, np.int32))


def _stack(trees: Sequence[Any], axis: int = 0) -> Any:
    """The values of several runs along a new axis; those of a single run as they are."""
    return trees[0] if len(trees) == 1 else jax.tree.map(lambda *x: jnp.stack(x, axis), *trees)


def _unstack(tree: Any, num_runs: int) -> list[Any]:
    """The values of each run, from stacked ones [W, S, ...]."""
    if num_runs == 1:
        return [tree]
    return [jax.tree.map(lambda leaf, i=i: leaf[:, i], tree) for i in range(num_runs)]
