"""Writes REPORT.md from the records in a directory: `python -m experiments.report --help`."""

import dataclasses
import datetime
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import tyro

from experiments.common.cli import make_console, reported
from experiments.common.files import write_whole
from experiments.common.grids import Grid
from experiments.report import comparison
from experiments.report import links as link_report
from experiments.report.claims import CLAIMS, CONFIDENCE, Claim, Finding, findings, verdict
from experiments.report.figures import PLOTS
from experiments.report.summary import SEED_NOISE, Results
from experiments.tables import rows
from experiments.tables.rows import Table


@dataclasses.dataclass(frozen=True)
class Options:
    """Write REPORT.md, its figures and its LaTeX tables into the directory of the results."""

    results: Path = Path("results")
    """The directory that experiments.table wrote to."""


def main() -> None:
    """Runs the command line: exits with 2 on bad input."""
    options = tyro.cli(Options, prog="python -m experiments.report")
    console = make_console()
    with reported(ValueError, OSError):
        results = Results(options.results, rows.load_all())
        if not (results.records or results.links):
            raise ValueError(f"--results {options.results} holds no records of runs")
        report = write(results, options.results)
    console.print(f"{len(results.records)} runs: {report}", soft_wrap=True)


def write(results: Results, directory: Path) -> Path:
    """Writes the report.

    Args:
      results: what it reports.
      directory: where REPORT.md, figures/ and tables/ go.

    Raises:
      OSError: a file cannot be written.
    """
    for name in ("figures", "tables"):
        (directory / name).mkdir(exist_ok=True)
    tables = [table for table in results.tables if results.lengths(table)]
    of_thesis = [table for table in tables if table.is_of_thesis]
    own = [table for table in tables if not table.is_of_thesis]
    sections = []
    if of_thesis or not own:
        sections += [_introduction(results, of_thesis), _claims(results)]
        sections += [_table(results, table, directory) for table in of_thesis]
    if results.links:
        sections.append(link_report.section(results.links, directory))
    if own:
        sections.append(_OWN)
        sections += [_table(results, table, directory) for table in own]
    sections.append(_provenance(results, directory))
    report = directory / "REPORT.md"
    write_whole(report, "\n\n".join(sections) + "\n")
    return report


_OWN = """# Tables of one's own

Tables of `experiments/tables/` that are not the thesis's. Written by `python -m experiments.report`
from the records in `runs/`: change nothing here by hand."""


def _introduction(results: Results, tables: Sequence[Table]) -> str:
    records = results.records_of(tables)
    seconds = sum(record.metrics[-1].seconds for record in records)
    noise = 100 * SEED_NOISE["mnist"]
    return f"""# The thesis's tables, re-run

*Elastic Gossip* (S. Pramod, [arXiv:1812.02407](https://arxiv.org/abs/1812.02407)): its published
figures beside {len(records)} runs of this project, {_duration(seconds)} of training in all.
Written by `python -m experiments.report` from the records in `runs/`: change nothing here by hand.

The thesis ran each row once. The one published measure of chance is the standard deviation of its
author's four single-worker runs on MNIST, {noise:.3f} percentage points: two single runs of the same
settings would then differ by {1.96 * 2**0.5 * noise:.2f} points or more once in twenty times.
{_caution(results, tables)}"""


def _caution(results: Results, tables: Sequence[Table]) -> str:
    """That the published noise may be too small, where the workers of one run differ by more."""
    full = [
        (
            table.metric.scale * float(np.ptp(workers)),
            runs.row.label,
        )
        for table in tables
        for row in table.rows
        for runs in results.runs(table, row)
        if runs.is_full and row.config.spec.draws_rounds
        for workers in runs.scores("worker")
    ]
    if not full:
        return ""
    spread, label = max(full)
    return f"""That is little: the replicas of one run, which gossip, differ by up to {spread:.2f}
points ({label}), so that worker 0's figure of a single run says less than such an interval."""


def _claims(results: Results) -> str:
    found = [(claim, findings(claim, results)) for claim in CLAIMS]
    summary = Grid(
        "claims",
        ("claim", "dataset", "verdict"),
        tuple(
            (f"{claim.number}. {claim.text}", claim.dataset, verdict(of_claim).value)
            for claim, of_claim in found
        ),
    )
    details = "\n\n".join(_claim(claim, of_claim) for claim, of_claim in found)
    return f"""## The five claims

{summary.markdown()}

The rules were written down before the runs, in `experiments/report/claims.py`. A claim asks that
differences between rows' mean accuracies lie above bounds. It *holds* where the confidence interval of
each lies wholly above its bound, and *does not hold* where one lies wholly below. Else,
and where a row has not been run at the thesis's length, it is *undecided*. The intervals of a claim
hold together with {CONFIDENCE:.0%} confidence (Bonferroni). Where a row has one seed (or, a rule of
later, where all seeds agree to the last digit), the published noise stands in for that of all.

{details}"""


def _claim(claim: Claim, found: list[Finding]) -> str:
    grid = Grid(
        claim.text,
        ("comparison", "asked", "found", "interval", "rests on", "verdict"),
        tuple((*finding[:-1], finding.verdict.value) for finding in found),
    )
    title = f"### Claim {claim.number}, {claim.dataset}: {verdict(found).value}"
    return "\n\n".join([title, claim.text, grid.markdown()])


def _table(results: Results, table: Table, directory: Path) -> str:
    grid = comparison.beside_published(results, table)
    write_whole(directory / "tables" / f"{table.name}.tex", grid.latex())
    parts = [f"## {table.title}", f"`python -m experiments.table {table.name}`", grid.markdown()]
    for length in results.lengths(table):
        runs = results.of_length(table, length)
        words = comparison.describe(length)
        parts += [f"### {words}", comparison.of_length(runs).markdown()]
        for plot in PLOTS:
            figure = plot.draw(runs)
            if figure is not None:
                caption = plot.caption.format(metric=table.metric.label)
                figure.supxlabel(f"{table.title}; {words}", fontsize="small", color="0.4")
                images = f"-{length.train_examples}-images" if length.train_examples else ""
                kind = plot.name.format(metric=table.metric.name)
                name = f"{table.name}-{length.epochs}-epochs{images}-{kind}.png"
                path = directory / "figures" / name
                figure.savefig(path, dpi=110, metadata={"Software": None})
                parts.append(f"![{caption}](figures/{name})\n\n*{caption}.*")
    return "\n\n".join(parts)


def _provenance(results: Results, directory: Path) -> str:
    lines = []
    for path, record in results.records.items():
        last, seconds = record.provenance[-1], record.metrics[-1].seconds
        devices = Counter(device.partition(" ")[2] for device in last["devices"])
        lines.append(
            (
                str(path.relative_to(directory / "runs")),
                last["began"],
                ", ".join(f"{count} × {kind}" for kind, count in devices.items()),
                last["placement"],
                last["versions"]["jax"],
                (last["commit"] or "")[:7] + ("+" if "+" in (last["commit"] or "") else ""),
                _duration(seconds),
                str(len(record.provenance) - 1),
            )
        )
    grid = Grid(
        "Provenance",
        ("record", "began", "devices", "placement", "jax", "commit", "training time", "resumed"),
        tuple(lines),
        "Each record holds all settings and versions. Resumed: how many times it went on from a "
        "checkpoint; the other columns are of the last part. A + marks uncommitted changes.",
    )
    text = f"## Provenance\n\n{grid.markdown()}"
    if results.strangers:
        names = ", ".join(f"`{path.relative_to(directory)}`" for path in results.strangers)
        text += f"\n\nNot used, as no row of a table has these settings: {names}."
    return text


def _duration(seconds: float) -> str:
    return str(datetime.timedelta(seconds=round(seconds)))
