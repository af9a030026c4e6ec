"""The report's tables: our figures beside the published ones."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from rich.console import Console

from experiments.report.grids import Grid, fraction, percent, points
from experiments.report.summary import Length, Results, RowRuns
from experiments.tables.rows import Table
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
                *_compared(runs, "rank0_accuracy", row.published.rank0),
                *_compared(runs, "aggregate_accuracy", row.published.aggregate),
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
        "Test accuracy in %, after the last update: mean ± standard deviation over n seeds; "
        "differences in percentage points; bytes as a share of All-reduce's."
        + (f" {_OTHER_LENGTH} not of the thesis's length." if has_other_length else ""),
    )


def of_length(rows: Sequence[RowRuns]) -> Grid:
    """Rows of a table that have runs of one length: ours alone."""
    lines = []
    for runs in rows:
        workers = np.concatenate([record.result.worker_accuracy for record in runs.records])
        lines.append(
            (
                runs.row.label,
                str(len(runs.records)),
                _spread(runs.figures("rank0_accuracy")),
                _spread(runs.figures("aggregate_accuracy")),
                f"{100 * workers.min():.2f} – {100 * workers.max():.2f}",
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
        "Test accuracy in %: of worker 0, of the mean replica, of the worst to the best worker. The "
        "consensus distance √(mean ‖θ_i − θ̄‖²) of the replicas at the end; exchanges between workers; "
        "MB sent by each worker; updates a second.",
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


def _compared(runs: RowRuns | None, name: str, published: float | None) -> tuple[str, str, str]:
    """Published, ours and the difference."""
    theirs = "" if published is None else f"{100 * published:.2f}"
    if runs is None:
        return theirs, "", ""
    ours = runs.figures(name)
    if published is None:
        return theirs, _spread(ours), ""
    return theirs, _spread(ours), points(ours.mean() - published)


def _spread(figures: np.ndarray) -> str:
    """Percentages: the mean, and the standard deviation where there is one."""
    deviation = f" ± {100 * figures.std(ddof=1):.2f}" if len(figures) > 1 else ""
    return f"{100 * figures.mean():.2f}{deviation}"
