"""An observer that keeps a run: it notes every epoch, and writes checkpoints as often as asked."""

from collections.abc import Callable, Sequence

from experiments.cluster.processes import most
from experiments.common.interrupts import Interrupted, Interrupts
from experiments.runs.journal import Journal
from experiments.training.loop import Epoch


class Saving:
    """Notes each epoch in the journals of runs that train together, and saves their checkpoints."""

    def __init__(
        self,
        journals: Sequence[Journal],
        every: int = 1,
        keeps_last: bool = True,
        interrupts: Interrupts | None = None,
        then: Callable[[], object] = lambda: None,
    ):
        """Begins with the next epoch.

        Args:
          journals: of the runs.
          every: epochs between two checkpoints; 0 for none but where it is needed.
          keeps_last: whether there is a checkpoint of the last epoch.
          interrupts: a signal that they received has the epoch saved, unless it is the last one.
          then: is called once a checkpoint is safe.
        """
        self._journals, self._every, self._keeps_last = journals, every, keeps_last
        self._interrupts, self._then = interrupts, then
        self._num_faults = self._faults()
        self._received = 0

    def __call__(self, after: Sequence[Epoch]) -> None:
        """Notes the epoch, and saves it where that is due.

        Raises:
          OSError: a checkpoint cannot be written; those before are as they were.
        """
        epoch, last = after[0].progress.epoch, self._journals[0].setup.config.epochs
        is_last, every = epoch == last, self._every
        # Of several processes, all stop after the same epoch, whichever got the signal.
        if self._interrupts is not None and not is_last:
            self._received = most(self._interrupts.received or 0, f"what follows epoch {epoch}")
        is_due = bool(every) and (is_last or epoch % every == 0)
        num_faults, before = self._faults(), self._num_faults
        self._num_faults = num_faults
        for journal, (progress, metrics), new, old in zip(
            self._journals, after, num_faults, before, strict=True
        ):
            journal.note(metrics)
            # No replay goes back behind an epoch in which a worker was isolated or restarted.
            if (is_due or self._received or new > old) and (self._keeps_last or not is_last):
                journal.save(progress)
                self._then()

    def stop(self, how_to_go_on: str) -> None:
        """Ends the training where a signal came, once all other observers have been told.

        Raises:
          Interrupted: it came; the run has been saved.
        """
        if self._received:
            raise Interrupted(self._received, how_to_go_on)

    def _faults(self) -> list[int]:
        return [len(journal.faults) for journal in self._journals]
