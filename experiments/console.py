"""What a run shows on the terminal: progress while it trains, tables at the end."""

import datetime
from collections.abc import Mapping
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from experiments.run import EpochMetrics, Result


class EpochProgress:
    """Epochs done, updates a second, validation accuracy, time left.

    A bar on a terminal; elsewhere a line an epoch.
    """

    def __init__(self, console: Console, epochs: int):
        """Shows on `console` how many of `epochs` are done."""
        self._console, self._epochs = console, epochs
        self._bar = Progress(
            TextColumn("epoch"),
            MofNCompleteColumn(),
            BarColumn(),
            TextColumn("{task.fields[figures]}"),
            TextColumn("left"),
            TimeRemainingColumn(),
            console=console,
            disable=not console.is_terminal,
        )
        self._task = self._bar.add_task("", total=epochs, figures="compiling")

    def __enter__(self) -> "EpochProgress":
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop()

    def update(self, metrics: EpochMetrics) -> None:
        """Shows an epoch's metrics."""
        speed = metrics.updates / metrics.seconds
        figures = f"{speed:.1f} updates/s, validation accuracy {metrics.validation_accuracy_mean:.4f}"
        self._bar.update(self._task, completed=metrics.epoch, figures=figures)
        if not self._console.is_terminal:
            left = metrics.seconds / metrics.epoch * (self._epochs - metrics.epoch)
            left_in_words = datetime.timedelta(seconds=round(left))
            self._console.print(
                f"epoch {metrics.epoch}/{self._epochs}, {figures}, left {left_in_words}", soft_wrap=True
            )


def result_table(results: Mapping[str, Result]) -> Table:
    """A line for each run, by its label."""
    table = Table()
    table.add_column("protocol", no_wrap=True)
    for heading in (
        "rank-0",
        "aggregate",
        "workers",
        "exchanges",
        "MB sent",
        "of All-reduce",
        "updates/s",
    ):
        table.add_column(heading, justify="right")
    for label, result in results.items():
        accuracy = result.worker_accuracy
        table.add_row(
            label,
            f"{result.rank0_accuracy:.4f}",
            f"{result.aggregate_accuracy:.4f}",
            f"{min(accuracy):.4f} to {max(accuracy):.4f}",
            f"{result.exchanges:,}",
            f"{result.bytes_sent_per_worker / 1e6:,.1f}",
            f"{result.share_of_all_reduce_bytes:.1%}",
            f"{result.updates_per_second:,.1f}",
        )
    table.caption = (
        "accuracies on the test set: of worker 0's replica, of the mean replica, of the worst and the "
        "best worker's; MB sent by each worker, and its share of what All-reduce sends"
    )
    return table
