"""The report's tables: our figures beside the published ones."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from rich.console import Console

from experiments.common.grids import Grid, fraction, percent
from experiments.report.summary import Length, Results, RowRuns
from experiments.tables.rows import Table
from experiments.tasks.task import Metric
from experiments.training.config import Config

_OTHER_LENGTH = "†"


def show(console: Console, directory: Path, tables: Sequence[Table]) -> None:
    """Shows what there is of these tables in a directory of results, and says what to do next.

    Raises:
      ValueError: a record is damaged, or of other settings than its row.
    """
    results = Results(directory, tables)
    for table in tables:
        if results.lengths(table):
            console.print(beside_published(results, table).rich(console.width))
    console.print(f"next: python -m experiments.report --results {directory}", soft_wrap=True)


def beside_published(results: Results, table: Table) -> Grid:
    """A line for each row of the thesis: what was published, what the longest runs here gave."""
    varied = [name for name in ("workers", "p", "period", "alpha") if _varies(table, name)]
    lines, has_other_length = [], False
    for row in table.rows:
        runs = next(iter(results.runs(table, row)), None)
        has_other_length |= runs is not None and not runs.is_full
        settings = [_setting(row.config, name) for name in varied]
        lines.append(
            (
                row.label,
                *settings,
                *([_epochs(runs), str(len(runs.records))] if runs else ["", ""]),
                *_compared(table.metric, runs, "rank0", row.published.rank0),
                *_compared(table.metric, runs, "aggregate", row.published.aggregate),
                percent(runs.figures("share_of_all_reduce_bytes").mean()) if runs else "",
            )
        )
    header = ["row", *(_HEADINGS[name] for name in varied), "epochs", "n"]
    for figure in ("rank-0", "aggregate"):
        header += [f"{figure}: thesis", "ours", "difference"]
    return Grid(
        table.title,
        (*header, "bytes"),
        tuple(lines),
        f"Test {_in_unit(table.metric)}, after the last update: mean ± standard deviation over n "
        f"seeds; {'differences in percentage points; ' if table.metric.is_share else ''}"
        f"bytes as a share of All-reduce's."
        + (f" {_OTHER_LENGTH} not of the thesis's length." if has_other_length else ""),
    )


def of_length(rows: Sequence[RowRuns]) -> Grid:
    """Rows of a table that have runs of one length: ours alone."""
    lines, metric = [], rows[0].table.metric
    for runs in rows:
        workers = runs.scores("worker").ravel()
        lines.append(
            (
                runs.row.label,
                str(len(runs.records)),
                _spread(metric, runs.scores("rank0")),
                _spread(metric, runs.scores("aggregate")),
                f"{metric.in_report(metric.worst(workers))} – {metric.in_report(metric.best(workers))}",
                f"{runs.figures('consensus_distance').mean():.3g}",
                f"{runs.figures('exchanges').mean():,.0f}",
                f"{runs.figures('bytes_sent_per_worker').mean() / 1e6:,.0f}",
                f"{runs.figures('updates_per_second').mean():.1f}",
            )
        )
    return Grid(
        f"{rows[0].table.title}; {describe(rows[0].length)}",
        (
            "row",
            "n",
            "rank-0",
            "aggregate",
            "workers",
            "distance",
            "exchanges",
            "MB sent",
            "updates/s",
        ),
        tuple(lines),
        f"Test {_in_unit(metric)}: of worker 0, of the mean replica, of the worst to the best worker. "
        "The consensus distance √(mean ‖θ_i − θ̄‖²) of the replicas at the end; exchanges between "
        "workers; MB sent by each worker; updates a second.",
    )


def describe(length: Length) -> str:
    """A length in words."""
    examples = f", {length.train_examples:,} training images" if length.train_examples else ""
    return f"{length.epochs} epoch{'s' if length.epochs > 1 else ''}{examples}"


_HEADINGS = {"workers": "W", "p": "p", "period": "τ", "alpha": "α"}


def _varies(table: Table, name: str) -> bool:
    return len({getattr(row.config, name) for row in table.rows}) > 1


def _setting(config: Config, name: str) -> str:
    """Empty where the protocol has no use for it."""
    spec, value = config.spec, getattr(config, name)
    is_used = {
        "workers": True,
        "p": spec.draws_rounds,
        "period": spec.draws_rounds or config.period > 1,
        "alpha": "alpha" in spec.traced,
    }[name]
    if not is_used:
        return ""
    return fraction(value) if name == "p" else str(value)


def _epochs(runs: RowRuns) -> str:
    text = str(runs.length.epochs)
    if runs.length.train_examples:
        text += f" × {runs.length.train_examples:,}"
    return text + ("" if runs.is_full else _OTHER_LENGTH)


def _compared(
    metric: Metric, runs: RowRuns | None, of: str, published: float | None
) -> tuple[str, str, str]:
    """Published, ours and the difference."""
    theirs = "" if published is None else metric.in_report(published)
    if runs is None:
        return theirs, "", ""
    ours = runs.scores(of)
    difference = "" if published is None else metric.difference(ours.mean() - published)
    return theirs, _spread(metric, ours), difference


def _spread(metric: Metric, figures: np.ndarray) -> str:
    """The mean, and the standard deviation where there is one."""
    deviation = f" ± {metric.in_report(figures.std(ddof=1))}" if len(figures) > 1 else ""
    return f"{metric.in_report(figures.mean())}{deviation}"


def _in_unit(metric: Metric) -> str:
    return f"{metric.label} in %" if metric.is_share else metric.label
