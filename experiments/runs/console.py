"""What a run shows on the terminal: progress while it trains, a table at the end."""

import datetime
import time
from collections.abc import Mapping
from types import TracebackType

from rich import box
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from experiments.training import run
from experiments.training.run import EpochMetrics, Result

_SECONDS_BETWEEN_LINES = 2.0


class EpochProgress:
    """Epochs done, updates a second, validation accuracy, time left.

    A bar on a terminal; elsewhere, now and then a line.
    """

    def __init__(self, console: Console, label: str, epochs: int, num_runs: int = 1):
        """Shows on `console` how many of `epochs` a run, or several at once, have done."""
        self._num_runs = num_runs
        self._console, self._label, self._epochs = console, label, epochs
        self._last_line = -_SECONDS_BETWEEN_LINES
        self._accuracy = ""
        self._has_bar = console.is_terminal and not console.is_dumb_terminal
        self._bar = Progress(
            TextColumn("{task.description}, epoch"),
            MofNCompleteColumn(),
            BarColumn(bar_width=None),
            TextColumn("{task.fields[figures]}, left"),
            TimeRemainingColumn(),
            console=console,
            disable=not self._has_bar,
            transient=True,
        )
        self._task = self._bar.add_task(label, total=epochs, figures="compiling")

    def __enter__(self) -> "EpochProgress":
        self._bar.start()
        if not self._has_bar:
            self._print("compiling")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop()

    def update(self, progress: run.Progress, updates: int, metrics: EpochMetrics | None) -> None:
        """Shows how far a run has come, after so many updates, and its metrics, if any."""
        if metrics is not None:
            self._accuracy = f", validation {metrics.validation_accuracy_mean:.4f}"
        figures = f"{updates / progress.seconds:.1f} updates/s{self._accuracy}"
        self._bar.update(self._task, completed=progress.epoch, figures=figures)
        is_due = time.monotonic() - self._last_line >= _SECONDS_BETWEEN_LINES
        if not self._has_bar and (is_due or progress.epoch == self._epochs):
            self._last_line = time.monotonic()
            per_epoch = self._num_runs * progress.seconds / progress.epoch
            left = per_epoch * (self._epochs - progress.epoch)
            time_left = datetime.timedelta(seconds=round(left))
            self._print(f"epoch {progress.epoch}/{self._epochs}, {figures}, left {time_left}")

    def _print(self, line: str) -> None:
        self._console.print(f"{self._label}, {line}", soft_wrap=True)


def result_table(results: Mapping[str, Result]) -> Table:
    """A line for each run, by its label."""
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=0)
    table.add_column("run", no_wrap=True)
    for heading in ("rank-0", "aggregate", "workers", "exchanges", "MB sent", "share"):
        table.add_column(heading, justify="right", no_wrap=True)
    for label, result in results.items():
        accuracy = result.worker_accuracy
        table.add_row(
            label,
            f"{result.rank0_accuracy:.4f}",
            f"{result.aggregate_accuracy:.4f}",
            f"{min(accuracy):.3f}-{max(accuracy):.3f}",
            f"{result.exchanges:,}",
            f"{result.bytes_sent_per_worker / 1e6:,.1f}",
            f"{result.share_of_all_reduce_bytes:.1%}",
        )
    table.caption = (
        "Test accuracy of worker 0, of the mean replica, and of the worst to the best worker; "
        "exchanges; MB sent by each worker, and as a share of what All-reduce sends"
    )
    table.caption_justify = "left"
    return table
