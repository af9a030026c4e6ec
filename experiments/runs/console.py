"""What a run shows on the terminal: progress while it trains, a table at the end."""

import datetime
import time
from collections.abc import Mapping, Sequence
from types import TracebackType

from rich import box
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, SpinnerColumn, TextColumn
from rich.progress import Progress as Bar
from rich.table import Table

from experiments.tasks.task import Metric
from experiments.training.loop import Epoch
from experiments.training.results import Result
from experiments.training.run import Setup

_SECONDS_BETWEEN_LINES = 2.0


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
        self._bar = Bar(
            SpinnerColumn(),
            TextColumn("{task.description}, epoch"),
            MofNCompleteColumn(),
            BarColumn(bar_width=None),
            TextColumn("{task.fields[figures]}"),
            console=console,
            disable=not self._has_bar,
            transient=True,
        )
        self._task = self._bar.add_task(label, total=self._epochs, completed=done, figures="")
        self._figures = ""

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
        self._phase, self._entered = phase, now
        self._bar.update(self._task, figures=", ".join(filter(None, (self._figures, phase))))
        if not self._has_bar and not self._figures and phase != "scoring":
            self._print(phase)

    def update(self, after: Sequence[Epoch]) -> None:
        """Shows how far the runs have come, after an epoch."""
        progress, metrics = after[0]
        if metrics is not None:
            metric = self._setup.config.task.metric
            score = metric.on_terminal(metrics.validation[metric.name].mean)
            self._score = f", validation {score}"
        updates = progress.epoch * self._setup.updates_per_epoch
        # All that an epoch takes counts: training, scoring, checkpoints.
        seconds = time.monotonic() - self._began - self._compiling
        left = seconds / (progress.epoch - self._first) * (self._epochs - progress.epoch)
        self._figures = (
            f"{updates / progress.seconds:.1f} updates/s{self._score}, "
            f"left {datetime.timedelta(seconds=round(left))}"
        )
        self._bar.update(self._task, completed=progress.epoch, figures=self._figures)
        is_due = time.monotonic() - self._last_line >= _SECONDS_BETWEEN_LINES
        if not self._has_bar and (is_due or progress.epoch == self._epochs):
            self._last_line = time.monotonic()
            self._print(f"epoch {progress.epoch}/{self._epochs}, {self._figures}")

    def _print(self, line: str) -> None:
        self._console.print(f"{self._label}, {line}", soft_wrap=True)


def result_table(results: Mapping[str, Result], metric: Metric) -> Table:
    """A line for each run, by its label, with its scores by one metric."""
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=0)
    table.add_column("run", no_wrap=True)
    for heading in ("rank-0", "aggregate", "workers", "exchanges", "MB sent", "share"):
        table.add_column(heading, justify="right", no_wrap=True)
    for label, result in results.items():
        scores = result.test[metric.name]
        worst, best = metric.worst(scores.worker), metric.best(scores.worker)
        table.add_row(
            label,
            metric.on_terminal(scores.rank0),
            metric.on_terminal(scores.aggregate),
            f"{metric.on_terminal(worst)}-{metric.on_terminal(best)}",
            f"{result.exchanges:,}",
            f"{result.bytes_sent_per_worker / 1e6:,.1f}",
            f"{result.share_of_all_reduce_bytes:.1%}",
        )
    table.caption = (
        f"Test {metric.label} of worker 0, of the mean replica, and of the worst to the best worker; "
        "exchanges; MB sent by each worker, and as a share of what All-reduce sends"
    )
    table.caption_justify = "left"
    return table
