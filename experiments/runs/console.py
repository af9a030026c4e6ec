"""What a run shows on the terminal: progress while it trains, a table at the end."""

import datetime
import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any

from rich.console import Console, RenderableType
from rich.progress import BarColumn, MofNCompleteColumn, ProgressColumn, SpinnerColumn, TextColumn
from rich.progress import Progress as Bar

from experiments.common.grids import Grid
from experiments.tasks.task import Metric
from experiments.training.loop import Epoch
from experiments.training.results import Result
from experiments.training.run import Setup

_SECONDS_BETWEEN_LINES = 2.0
_MOST_OF_AN_EPOCH = 0.99  # that is shown before it is over


class _Bar(Bar):
    """Runs within an epoch too, as far as the one before tells how long that takes."""

    def __init__(self, *columns: ProgressColumn, now: Callable[[], tuple[float, str]], **options: Any):
        self._now = now
        super().__init__(*columns, **options)

    def get_renderables(self) -> Iterable[RenderableType]:
        for task in self.tasks:
            task.completed, task.fields["figures"] = self._now()
        return super().get_renderables()


class EpochProgress:
    """Epochs done, updates a second, the validation score, time left, and what is done just now.

    A bar on a terminal; elsewhere, now and then a line.
    """

    def __init__(self, console: Console, label: str, setups: Sequence[Setup], done: int = 0):
        """Shows on `console` how far runs that train together have come, from an epoch on."""
        self._console, self._label, self._setup = console, label, setups[0]
        self._epochs, self._first = setups[0].config.epochs, done
        self._last_line = -_SECONDS_BETWEEN_LINES
        self._score, self._phase = "", ""
        self._began = self._entered = time.monotonic()
        self._compiling = 0.0  # seconds, which are not of an epoch
        self._has_bar = console.is_terminal and not console.is_dumb_terminal
        self._done, self._epoch_began, self._epoch_took = done, self._began, math.inf
        self._figures = ""
        self._bar = _Bar(
            SpinnerColumn(),
            TextColumn("{task.description}, epoch"),
            MofNCompleteColumn(),
            BarColumn(bar_width=None),
            TextColumn("{task.fields[figures]}"),
            console=console,
            disable=not self._has_bar,
            transient=True,
            now=self._now,
        )
        self._bar.add_task(label, total=self._epochs, completed=done, figures="")

    def __enter__(self) -> "EpochProgress":
        self._bar.start()
        if self._first:
            self._print(f"resumed at epoch {self._first} of {self._epochs}")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop()

    def enter(self, phase: str) -> None:
        """Shows what is done from now on: "compiling", "training", "scoring"."""
        now = time.monotonic()
        if self._phase == "compiling":
            self._compiling += now - self._entered
            self._epoch_began = now
        self._phase, self._entered = phase, now
        if not self._has_bar and not self._figures and phase != "scoring":
            self._print(phase)

    def update(self, after: Sequence[Epoch]) -> None:
        """Shows how far the runs have come, after an epoch."""
        progress, metrics = after[0]
        if metrics is not None:
            metric = self._setup.config.task.metric
            score = metric.on_terminal(metrics.scores[f"validation_{metric.name}_mean"])
            self._score = f", validation {score}"
        updates = progress.epoch * self._setup.updates_per_epoch
        # All that an epoch takes counts: training, scoring, checkpoints.
        seconds = time.monotonic() - self._began - self._compiling
        left = seconds / (progress.epoch - self._first) * (self._epochs - progress.epoch)
        self._figures = (
            f"{updates / progress.seconds:.1f} updates/s{self._score}, "
            f"left {datetime.timedelta(seconds=round(left))}"
        )
        now = time.monotonic()
        self._done, self._epoch_began, self._epoch_took = progress.epoch, now, now - self._epoch_began
        is_due = time.monotonic() - self._last_line >= _SECONDS_BETWEEN_LINES
        if not self._has_bar and (is_due or progress.epoch == self._epochs):
            self._last_line = time.monotonic()
            self._print(f"epoch {progress.epoch}/{self._epochs}, {self._figures}")

    def _now(self) -> tuple[float, str]:
        """Epochs done, with the part of one that is being trained, and what is said beside them."""
        now = time.monotonic()
        part = min((now - self._epoch_began) / self._epoch_took, _MOST_OF_AN_EPOCH)
        seconds = datetime.timedelta(seconds=round(now - self._entered))
        phase = f"{self._phase} {seconds}" if self._phase else ""
        return self._done + part, ", ".join(filter(None, (self._figures, phase)))

    def _print(self, line: str) -> None:
        self._console.print(f"{self._label}, {line}", soft_wrap=True)


def result_grid(results: Mapping[str, Result], metric: Metric) -> Grid:
    """A line for each run, by its label, with its scores by one metric."""
    lines = []
    for label, result in results.items():
        rank0, aggregate, workers = (
            result.scores[f"{of}_{metric.name}"] for of in ("rank0", "aggregate", "worker")
        )
        worst, best = metric.worst(workers), metric.best(workers)
        lines.append(
            (
                label,
                metric.on_terminal(rank0),
                metric.on_terminal(aggregate),
                f"{metric.on_terminal(worst)}-{metric.on_terminal(best)}",
                f"{result.exchanges:,}",
                f"{result.bytes_sent_per_worker / 1e6:,.1f}",
                f"{result.share_of_all_reduce_bytes:.1%}",
            )
        )
    return Grid(
        "",
        ("run", "rank-0", "aggregate", "workers", "exchanges", "MB sent", "share"),
        tuple(lines),
        f"Test {metric.label} of worker 0, of the mean replica, and of the worst to the best worker; "
        "exchanges; MB sent by each worker, and as a share of what All-reduce sends",
    )
