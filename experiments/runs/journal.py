"""What a run has done so far, and how it goes on from there: a journal, kept with its checkpoints."""

import contextlib
import dataclasses
import datetime
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from experiments.cluster.processes import is_first
from experiments.common import numerics
from experiments.common.files import brief
from experiments.runs import records
from experiments.runs.checkpoints import Checkpoints, DamagedCheckpointError
from experiments.runs.provenance import surroundings
from experiments.runs.records import Record
from experiments.training import loop, run
from experiments.training.config import completed, names_that_may_change
from experiments.training.run import EpochMetrics, Progress, Setup
from gossip_jax.traffic import Traffic


class Journal:
    """What a run measured so far, on what it ran, and its checkpoints, which hold both."""

    def __init__(self, setup: Setup, checkpoints: Checkpoints, keeps_best: bool = False):
        """A journal without an entry: `begin` fills it.

        Args:
          setup: of the run.
          checkpoints: of the run.
          keeps_best: whether the checkpoint that validated best stays.
        """
        self.setup, self.checkpoints = setup, checkpoints
        self.metrics: list[EpochMetrics] = []
        self.provenance: list[dict[str, Any]] = []
        """Of each start and resumption: when, from which epoch, on what."""
        self.faults: list[dict[str, Any]] = []
        """Workers that turned NaN or infinite, and what was done."""
        self._keeps_best = keeps_best

    def note(self, metrics: EpochMetrics | None) -> None:
        """Adds an epoch's metrics, if any."""
        self.metrics += [metrics] if metrics is not None else []

    def save(self, progress: Progress) -> None:
        """Writes a checkpoint. Of several processes, the first does; call it in all of them.

        Raises:
          OSError: it cannot be written; those before are as they were.
        """
        state = self.setup.program.placement.gather(progress.state)
        if not is_first():
            return
        notes = {
            "settings": self.setup.config.settings() | numerics.unusual(),
            "exchanges": progress.traffic.exchanges,
            "bytes_sent": progress.traffic.bytes_sent.tolist(),
            "seconds": progress.seconds,
            "isolated": {str(worker): update for worker, update in progress.isolated.items()},
            "faults": self.faults,
            "metrics": [metrics.flat() for metrics in self.metrics],
            "provenance": self.provenance,
        }
        best = self.best_epoch(progress.epoch) if self._keeps_best else None
        self.checkpoints.save(progress.epoch, state, notes, spared=() if best is None else (best,))

    def record(self, progress: Progress) -> Record:
        """Of the run, which has come to its end; call it in all of several processes.

        What was to be done with sick workers counts where there was one: a run without is what it would
        have been with any other --on-nan.
        """
        settings = self.setup.config.settings() | numerics.unusual()
        on_nan = settings["on_nan"] if self.faults else "stop"
        result = run.result(self.setup, progress)
        return Record(settings | {"on_nan": on_nan}, result, tuple(self.metrics), self.provenance)

    def best_epoch(self, *about_to_be_saved: int) -> int | None:
        """Of those with a checkpoint, the first that validated best, on average; None for none."""
        saved = {*self.checkpoints.epochs(), *about_to_be_saved}
        validated = [metrics for metrics in self.metrics if metrics.epoch in saved]
        if not validated:
            return None
        metric = self.setup.config.task.metric
        return metric.best(
            validated, key=lambda epoch: epoch.scores[f"validation_{metric.name}_mean"]
        ).epoch

    def restore(self, epoch: int) -> Progress:
        """From the checkpoint of that epoch; 0 is the start.

        Raises:
          DamagedCheckpointError: the checkpoint is damaged.
          OSError: it cannot be read.
          ValueError: it is of other settings, which it names, or of another version of this program.
        """
        if epoch:
            progress, notes = self._read(epoch)
            self.metrics = [records.metrics_from(metrics) for metrics in notes["metrics"]]
            self.provenance, self.faults = notes["provenance"], notes["faults"]
        else:
            progress = run.start(self.setup)
            self.metrics, self.provenance, self.faults = [], [], []
        began = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        here = {"from_epoch": epoch, "began": began} | surroundings(self.setup.program.placement)
        self.provenance.append(here)
        return progress

    def at(self, epoch: int) -> Progress:
        """How the run stood after an epoch that it has trained: from the last checkpoint up to there.

        Raises:
          ValueError: as `restore`.
        """
        for saved in sorted(self.checkpoints.epochs(), reverse=True):
            with contextlib.suppress(DamagedCheckpointError):
                if saved <= epoch:
                    progress, _ = self._read(saved)
                    break
        else:
            progress = run.start(self.setup)
        until = dataclasses.replace(self.setup.config, epochs=max(epoch, 1))
        if progress.epoch < epoch:
            *_, (progress, _) = loop.epochs_of_one(self.setup._replace(config=until), progress)
        return progress

    def _read(self, epoch: int) -> tuple[Progress, dict[str, Any]]:
        program, path = self.setup.program, self.checkpoints.path / str(epoch)
        notes = self.checkpoints.notes(epoch)
        try:
            expected = self.setup.config.settings() | numerics.unusual()
            # It may have been meant to be of another length, or to do something else with the sick.
            free = {name: expected[name] for name in names_that_may_change() if name in expected}
            found = completed(notes["settings"]) | free
            records.require_equal(path, found, expected)
            notes = {"faults": [], "isolated": {}} | notes
            sent = Traffic(notes["exchanges"], np.array(notes["bytes_sent"], np.float64))
            seconds = float(notes["seconds"])
            isolated = {int(worker): int(update) for worker, update in notes["isolated"].items()}
            _ = notes["metrics"], notes["provenance"]
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(
                f"the checkpoint {path} is of another version: its notes lack {error}"
            ) from error
        state, _ = self.checkpoints.restore(epoch, jax.eval_shape(program.init, self.setup.key))
        return Progress(program.placement.scatter(state), epoch, sent, seconds, isolated), notes


def begin(journals: Sequence[Journal], say: Callable[[str], object]) -> list[Progress]:
    """Runs that train together go on from their last whole checkpoint, or start where there is none.

    No file is changed: what is damaged is set aside once there is a newer checkpoint.

    Args:
      journals: of runs that differ in their seed only.
      say: is told of damaged checkpoints.

    Raises:
      OSError: a checkpoint cannot be read, so that nothing is known of it.
      ValueError: a checkpoint is of other settings, which it names, or of another version.
    """
    # A run may have been stopped when only some of the seeds had written their checkpoint.
    common = set.intersection(*(set(journal.checkpoints.epochs()) for journal in journals))
    for epoch in sorted(common, reverse=True):
        try:
            return [journal.restore(epoch) for journal in journals]
        except DamagedCheckpointError as error:
            say(f"warning: {brief(error)}; taking the one before, or the start")
    return [journal.restore(0) for journal in journals]
