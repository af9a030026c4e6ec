"""Workers whose state turns NaN or infinite in training: `--on-nan`.

Nothing is done for it inside the compiled epochs. After each, all states are looked at once. A sick one
has the run go back to its last checkpoint and train the epoch once more, watched update by update:
rounds are values, so it takes the same course. A worker is out from the first update that made it sick,
and keeps the state that it had before, so that it infects nobody.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from experiments.common.interrupts import Stopped
from experiments.runs.journal import Journal
from experiments.training import loop
from experiments.training.loop import Epoch
from gossip_jax.health import finite_workers


class Diverged(Stopped):
    """A run was stopped because a worker turned NaN or infinite; it is saved as it was before."""

    exit_code = 1

    def __init__(self, message: str, journal: Journal | None = None):
        """The message is what the user sees; the journal is that of the run."""
        super().__init__(message)
        self.journal = journal


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


class Treatment:
    """Does with sick workers what --on-nan says, of runs that train together: `treat` of the loop."""

    def __init__(self, journals: Sequence[Journal], say: Callable[[str], object]):
        """Knows of no sick worker yet.

        Args:
          journals: of the runs, which the faults are noted in.
          say: is told of sick workers.
        """
        self._journals, self._say = journals, say

    def __call__(self, after: list[Epoch]) -> list[Epoch]:
        """Of each run the epoch as it was, or as it is without those that turned sick in it.

        Raises:
          Diverged: --on-nan is stop, or no worker of a run is well.
          OSError: a checkpoint cannot be written.
        """
        return [self._of(*one) for one in zip(self._journals, after, strict=True)]

    def _of(self, journal: Journal, epoch: Epoch) -> Epoch:
        setup, at = journal.setup, epoch.progress.epoch
        finite = setup.program.placement.gather(finite_workers(epoch.progress.state))
        sick = np.flatnonzero(~np.asarray(finite)).tolist()
        if sick and setup.config.on_nan != "continue":
            return _treat(journal, at, self._say)
        known = {fault["worker"] for fault in journal.faults if fault["action"] == "continued"}
        for worker in sorted(set(sick) - known):
            # At which update is not looked for: the last one of the epoch will do.
            journal.faults.append(
                Fault(worker, at * setup.updates_per_epoch, at, "continued")._asdict()
            )
            self._say(f"worker {worker} is NaN or infinite since epoch {at}")
        return epoch


def _treat(course: Journal, epoch: int, say: Callable[[str], object]) -> Epoch:
    """The epoch once more, with those that turn sick out from then on."""
    setup, policy = course.setup, course.setup.config.on_nan
    before = course.at(epoch - 1)
    # Copied: NumPy arrays may share memory with buffers that are then given up.
    held = jax.tree.map(np.array, setup.program.placement.gather(before.state))
    before = before._replace(state=held)
    out, faults = dict(before.isolated), list[Fault]()
    while True:
        start = setup.program.placement.scatter(jax.tree.map(np.copy, before.state))
        after, sick_from = loop.watched_epoch(setup, before._replace(state=start, isolated=out))
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
            raise Diverged(f"{faults[-1]}; the run is as it was after epoch {before.epoch}", course)
        out |= dict.fromkeys(fallen, first)
    course.faults += [fault._asdict() for fault in faults]
    progress = after.progress
    if policy == "restart":
        kept = setup.config.spec.kept_at_restart
        for fault in faults:
            donor = _donor(fault.worker, progress.workers)
            progress = progress._replace(state=_copied(progress.state, donor, fault.worker, kept))
        progress = progress._replace(isolated=before.isolated)
    return after._replace(progress=progress)


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


def _copied(state: Any, donor: int, worker: int, kept: tuple[type, ...]) -> Any:
    """The state, a worker's replaced by another's, but for the types of which each keeps its own."""

    def is_kept(node: Any) -> bool:
        return isinstance(node, kept)

    def copied(node: Any) -> Any:
        return node if is_kept(node) else node.at[worker].set(node[donor])

    return jax.tree.map(copied, state, is_leaf=is_kept)
