"""Tables of text, and how they are written: Markdown, LaTeX, a terminal."""

import dataclasses
import fractions
from collections.abc import Sequence

import numpy as np
from rich import box
from rich.table import Table as RichTable

from experiments.config import Config
from experiments.protocols import PROTOCOLS
from experiments.requirements import points
from experiments.rows import Table
from experiments.summary import Length, Results, RowRuns

_SHORTER = "†"


@dataclasses.dataclass(frozen=True)
class Grid:
    """A table of text."""

    title: str
    header: tuple[str, ...]
    lines: tuple[tuple[str, ...], ...]
    note: str = ""

    def markdown(self) -> str:
        """As GitHub shows it; the first column to the left, the others to the right."""
        rule = ["---"] + ["---:"] * (len(self.header) - 1)
        lines = [self.header, rule, *([_escaped(cell) for cell in line] for line in self.lines)]
        text = "\n".join(f"| {' | '.join(line)} |" for line in lines)
        return text + (f"\n\n{self.note}" if self.note else "")

    def latex(self) -> str:
        """A `table` environment with booktabs' rules."""
        rows = [" & ".join(_in_latex(cell) for cell in line) + r" \\" for line in self.lines]
        return "\n".join(
            [
                "% Made by python -m experiments.report; needs booktabs.",
                r"\begin{table}",
                r"\centering",
                rf"\caption{{{_in_latex(self.title)}. {_in_latex(self.note)}}}",
                rf"\begin{{tabular}}{{l{'r' * (len(self.header) - 1)}}}",
                r"\toprule",
                " & ".join(_in_latex(cell) for cell in self.header) + r" \\",
                r"\midrule",
                *rows,
                r"\bottomrule",
                r"\end{tabular}",
                r"\end{table}",
                "",
            ]
        )

    def rich(self) -> RichTable:
        """For a terminal."""
        table = RichTable(title=self.title, title_justify="left", box=box.SIMPLE_HEAD, show_edge=False)
        for index, heading in enumerate(self.header):
            table.add_column(heading, justify="right" if index else "left", no_wrap=index == 0)
        for line in self.lines:
            table.add_row(*line)
        table.caption, table.caption_justify = self.note or None, "left"
        return table


def beside_published(results: Results, table: Table) -> Grid:
    """A line for each row of the thesis: what was published, what the longest runs here gave."""
    varied = [name for name in ("workers", "p", "period", "alpha") if _varies(table, name)]
    lines, is_any_shorter = [], False
    for row in table.rows:
        runs = next(iter(results.runs(table, row)), None)
        is_any_shorter |= runs is not None and not runs.is_full
        settings = [_setting(row.config, name) for name in varied]
        lines.append(
            (
                row.label,
                *settings,
                *([_epochs(runs), str(len(runs.records))] if runs else ["", ""]),
                *_compared(runs, "rank0_accuracy", row.published.rank0),
                *_compared(runs, "aggregate_accuracy", row.published.aggregate),
                _share(runs.figures("share_of_all_reduce_bytes").mean()) if runs else "",
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
        + (f" {_SHORTER} shorter than in the thesis." if is_any_shorter else ""),
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
    protocol, value = PROTOCOLS[config.protocol], getattr(config, name)
    is_used = {"workers": True, "alpha": protocol.has_moving_rate}.get(name, protocol.is_pairwise)
    if not is_used:
        return ""
    return str(fractions.Fraction(value)) if name == "p" else str(value)


def _epochs(runs: RowRuns) -> str:
    text = str(runs.length.epochs)
    if runs.length.train_examples:
        text += f" × {runs.length.train_examples:,}"
    return text + ("" if runs.is_full else _SHORTER)


def _compared(runs: RowRuns | None, name: str, published: float | None) -> tuple[str, str, str]:
    """Published, ours and the difference; the single figure of a protocol that keeps replicas equal."""
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


def _share(share: float) -> str:
    """A percentage of two digits, or of three where it is 10 or more."""
    return f"{100 * share:.{3 if share >= 0.0995 else 2}g}%"


def _escaped(cell: str) -> str:
    return cell.replace("|", r"\|")


_LATEX = {
    "\\": r"\textbackslash{}",
    "%": r"\%",
    "&": r"\&",
    "_": r"\_",
    "#": r"\#",
    "α": r"$\alpha$",
    "τ": r"$\tau$",
    "θ": r"$\theta$",
    "±": r"$\pm$",
    "×": r"$\times$",
    "−": r"$-$",
    "–": "--",
    "†": r"$^\dagger$",
}


def _in_latex(text: str) -> str:
    return "".join(_LATEX.get(character, character) for character in text)
