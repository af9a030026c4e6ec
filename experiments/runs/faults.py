"""Workers whose state turns NaN or infinite in training: `--on-nan`.

Nothing is done for it inside the compiled epochs. After each, all states are looked at once. A sick one
has the run go back to its last checkpoint and train the epoch once more, watched update by update:
rounds are values, so it takes the same course. A worker is out from the first update that made it sick,
and keeps the state that it had before, so that it infects nobody.
"""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import numpy as np

from experiments.common.interrupts import Stopped
from experiments.runs.journal import Journal
from experiments.training import run
from experiments.training.run import EpochMetrics, Progress
from gossip_jax.health import finite_workers


class Diverged(Stopped):
    """A run was stopped because a worker turned NaN or infinite; it is saved as it was before."""

    exit_code = 1


class Fault(NamedTuple):
    """A worker that turned NaN or infinite, and what was done."""

    worker: int
    update: int
    epoch: int
    action: str

    def __str__(self) -> str:
        return (
            f"worker {self.worker} turned NaN or infinite at update {self.update}, in epoch "
            f"{self.epoch}: {self.action}"
        )


def train(
    course: Journal, progress: Progress, say: Callable[[str], object]
) -> Iterator[tuple[Progress, EpochMetrics | None]]:
    """Trains to the last epoch, as `run.train` does, and does with sick workers what --on-nan says.

    Args:
      course: the run's journal, which the faults are noted in, and its checkpoints.
      progress: how far the run has come. It is used up.
      say: is told of sick workers.

    Raises:
      Diverged: --on-nan is stop, or no worker is well.
      OSError: a checkpoint cannot be written.
    """
    setup, known = course.setup, set[int]()
    while progress.epoch < setup.config.epochs:
        for progress, metrics in run.train(setup, progress):  # noqa: B020
            finite = setup.program.placement.gather(finite_workers(progress.state))
            sick = set(np.flatnonzero(~np.asarray(finite)).tolist())
            if sick and setup.config.on_nan != "continue":
                progress, metrics = _treat(course, progress.epoch, say)
                yield progress, metrics
                break  # from here on, the run is another one than `run.train`'s
            for worker in sorted(sick - known):
                say(f"worker {worker} is NaN or infinite since epoch {progress.epoch}")
            known |= sick
            yield progress, metrics


def _treat(
    course: Journal, epoch: int, say: Callable[[str], object]
) -> tuple[Progress, EpochMetrics | None]:
    """The epoch once more, with those that turn sick out from then on."""
    setup, policy = course.setup, course.setup.config.on_nan
    before = course.at(epoch - 1)
    # Copied: NumPy arrays may share memory with buffers that are then given up.
    held = jax.tree.map(np.array, setup.program.placement.gather(before.state))
    before = before._replace(state=held)
    out, faults = dict(before.isolated), list[Fault]()
    while True:
        start = setup.program.placement.scatter(jax.tree.map(np.copy, before.state))
        after, metrics, sick_from = run.train_watched_epoch(
            setup, before._replace(state=start, isolated=out)
        )
        sick = {worker: int(update) for worker, update in enumerate(sick_from) if update}
        if not sick:
            break
        # Those that fell sick first: the others may have it from them.
        first = min(sick.values())
        fallen = [worker for worker, update in sick.items() if update == first]
        well = [worker for worker in before.workers if worker not in {*out, *fallen}]
        for worker in fallen:
            faults.append(Fault(worker, first, epoch, _action(policy, worker, well)))
            say(str(faults[-1]))
        if policy == "stop" or not well:
            if before.epoch and before.epoch not in course.checkpoints.epochs():
                course.save(before)
            raise Diverged(f"{faults[-1]}; the run is as it was after epoch {before.epoch}")
        out |= dict.fromkeys(fallen, first)
    course.faults += [fault._asdict() for fault in faults]
    if policy == "restart":
        for fault in faults:
            donor = _donor(fault.worker, after.workers)
            after = after._replace(state=_copied(after.state, donor, fault.worker))
        after = after._replace(isolated=before.isolated)
    return after, metrics


def _action(policy: str, worker: int, well: list[int]) -> str:
    if not well:
        return "no worker is well"
    return {
        "stop": "stopped",
        "isolate": "isolated",
        "restart": f"restarted from worker {_donor(worker, well)}",
    }[policy]


def _donor(worker: int, well: list[int]) -> int:
    """The next worker that is well, counted in a circle."""
    return next((other for other in well if other > worker), well[0])


def _copied(state: Any, donor: int, worker: int) -> Any:
    return jax.tree.map(lambda leaf: leaf.at[worker].set(leaf[donor]), state)
