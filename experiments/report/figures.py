"""The report's figures. Each shows rows of one table, with runs of one length."""

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, NullLocator

from experiments.common.grids import fraction
from experiments.report.summary import RowRuns
from experiments.tasks.task import Metric
from experiments.training.config import Config
from gossip_jax.protocols import SPECS

_MARKERS = "os^Dv"


class Plot(NamedTuple):
    """A kind of figure."""

    name: str  # where {metric} stands for the table's metric, as in the caption
    caption: str
    draw: Callable[[list[RowRuns]], Figure | None]  # None: these rows do not make such a figure


def score_over_updates(rows: list[RowRuns]) -> Figure | None:
    """The validation score: the mean over workers and seeds, and the band of all workers."""

    def draw(axes: Axes, runs: RowRuns, style: dict[str, Any]) -> None:
        updates, low, mean, high = _validation(runs)
        axes.plot(updates, mean, **style)
        axes.fill_between(updates, low, high, color=style["color"], alpha=0.12, linewidth=0)

    figure = _over_updates(rows, draw, f"validation {_metric(rows).heading}")
    # All start far off: the scale is for what comes after a fifth of the run, but for the worst.
    later = [
        figures[updates >= updates[-1] / 5]
        for updates, low, _, high in map(_validation, rows)
        for figures in (low, high)
    ]
    shown = (0.02, 1) if _metric(rows).is_higher_better else (0, 0.98)
    bottom, top = np.quantile(np.concatenate(later), shown)
    for axes in figure.axes:
        axes.set_ylim(bottom - 0.05 * (top - bottom), top + 0.05 * (top - bottom))
    return figure


def distance_over_updates(rows: list[RowRuns]) -> Figure | None:
    """The consensus distance. Replicas that stay equal, as All-reduce's do, are left out."""

    def draw(axes: Axes, runs: RowRuns, style: dict[str, Any]) -> None:
        updates, distance = _series(runs, "consensus_distance")
        axes.plot(updates, distance.mean(axis=0), **style)
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda distance, _: f"{distance:g}"))
        axes.yaxis.set_minor_locator(NullLocator())

    apart = [
        runs
        for runs in rows
        if runs.row.config.workers > 1 and not runs.row.config.spec.averages_gradients
    ]
    return _over_updates(apart, draw, "consensus distance (log scale)") if apart else None


def score_against_p(rows: list[RowRuns]) -> Figure | None:
    """The rank-0 test score against the communication probability."""
    pairwise = [runs for runs in rows if runs.row.config.spec.draws_rounds]
    others = [runs for runs in rows if runs not in pairwise]
    ticks = sorted({_frequency(runs.row.config) for runs in pairwise})
    if len(_values(pairwise, "alpha")) > 1 or len(ticks) < 2:
        return None

    def line(config: Config) -> str:
        fixed = ", fixed period τ" if config.period > 1 else ""
        return f"{config.spec.label}, W = {config.workers}{fixed}"

    figure = Figure(figsize=(9, 5), layout="constrained")
    axes = figure.subplots()
    _lines(axes, pairwise, line, _frequency)
    for runs in others:
        spec = runs.row.config.spec
        by_workers = {1: "-.", 4: spec.line}
        style = by_workers.get(runs.row.config.workers, (0, (1, 4)))  # sparser for a larger W
        level = _rank0(runs).mean()
        label = f"{runs.row.label} ({level:{_metric(rows).report_format}})"
        axes.axhline(level, color=spec.color, linestyle=style, linewidth=1, label=label)
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_locator(FixedLocator(ticks))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda p, _: fraction(p)))
    axes.xaxis.set_minor_locator(NullLocator())
    has_periods = len(_values(pairwise, "period")) > 1
    axes.set_xlabel("communication probability p" + (", or 1 / period τ" if has_periods else ""))
    return _with_legend(figure, f"rank-0 test {_metric(rows).heading}")


def score_against_alpha(rows: list[RowRuns]) -> Figure | None:
    """The rank-0 test score against the moving rate."""
    rows = [runs for runs in rows if "alpha" in runs.row.config.spec.traced]
    if len(_values(rows, "alpha")) < 2:
        return None

    def line(config: Config) -> str:
        return f"{config.spec.label}, W = {config.workers}, p = {fraction(config.p)}"

    figure = Figure(figsize=(9, 5), layout="constrained")
    axes = figure.subplots()
    _lines(axes, rows, line, lambda config: config.alpha or 0.0)
    axes.set_xlabel("moving rate α")
    return _with_legend(figure, f"rank-0 test {_metric(rows).heading}")


def score_against_bytes(rows: list[RowRuns]) -> Figure | None:
    """The rank-0 test score against the bytes that a worker sends in the whole run."""
    talking = [runs for runs in rows if runs.figures("bytes_sent_per_worker").mean() > 0]
    if len({runs.row.config.protocol for runs in talking}) < 2:
        return None
    figure = Figure(figsize=(9, 5), layout="constrained")
    axes = figure.subplots()
    workers = sorted(_values(talking, "workers"))
    for (protocol, num_workers), group in _grouped(
        talking, lambda config: (config.protocol, config.workers)
    ).items():
        spec = SPECS[protocol]
        group = sorted(group, key=lambda runs: runs.figures("bytes_sent_per_worker").mean())
        axes.plot(
            [runs.figures("bytes_sent_per_worker").mean() / 1e6 for runs in group],
            [_rank0(runs).mean() for runs in group],
            color=spec.color,
            linestyle=spec.line,
            linewidth=0.8,
            marker=_MARKERS[workers.index(num_workers) % len(_MARKERS)],
            label=f"{spec.label}, W = {num_workers}",
        )
    for runs in rows:
        if runs not in talking and runs.row.config.workers > 1:
            level = _rank0(runs).mean()
            label = f"{runs.row.label} ({level:{_metric(rows).report_format}}), sends nothing"
            spec = runs.row.config.spec
            axes.axhline(level, color=spec.color, linestyle=spec.line, linewidth=1, label=label)
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda size, _: f"{size:,.0f}"))
    axes.set_xlabel("MB sent by each worker over the run (log scale)")
    return _with_legend(figure, f"rank-0 test {_metric(rows).heading}")


PLOTS = (
    Plot(
        "{metric}",
        "Validation {metric} over updates: the mean over workers, and the band from the worst to the "
        "best worker",
        score_over_updates,
    ),
    Plot(
        "against-p",
        "Rank-0 test {metric} against the communication probability (open markers, where the runs are "
        "as long as the thesis's: published)",
        score_against_p,
    ),
    Plot(
        "against-alpha",
        "Rank-0 test {metric} against the moving rate (open markers, where the runs are as long as the "
        "thesis's: published)",
        score_against_alpha,
    ),
    Plot(
        "against-bytes",
        "Rank-0 test {metric} against the bytes that a worker sends",
        score_against_bytes,
    ),
    Plot(
        "consensus",
        "Consensus distance √(mean ‖θ_i − θ̄‖²) of the replicas over updates",
        distance_over_updates,
    ),
)


def _over_updates(
    rows: list[RowRuns], draw: Callable[[Axes, RowRuns, dict[str, Any]], None], label: str
) -> Figure:
    """A panel for each number of workers; α or p, whichever varies, by color."""
    # A single worker is shown beside the smallest number of several.
    several = min((w for w in _values(rows, "workers") if w > 1), default=1)
    panels = _grouped(rows, lambda config: max(config.workers, several))
    vary_alpha = len(_values(rows, "alpha")) > 1
    colored = (lambda config: config.alpha or 0.0) if vary_alpha else _frequency
    pairwise = [runs for runs in rows if runs.row.config.spec.draws_rounds]
    values = sorted({colored(runs.row.config) for runs in pairwise})
    colors = matplotlib.colormaps["viridis"](np.linspace(0, 0.9, max(len(values), 1)))
    figure = Figure(figsize=(6.2 * len(panels) + 1, 6), layout="constrained")
    all_axes = np.atleast_1d(figure.subplots(1, len(panels), sharey=True))
    for axes, (num_workers, panel) in zip(all_axes, sorted(panels.items()), strict=True):
        for runs in panel:
            config = runs.row.config
            color, line = config.spec.color, config.spec.line
            if config.workers == 1:
                color, line = "0.4", "-."
            if runs in pairwise:
                color = colors[values.index(colored(config))]
                line = _line_of_pairwise(config, rows)
            draw(
                axes,
                runs,
                {"color": color, "linestyle": line, "linewidth": 1.2, "label": runs.row.label},
            )
        axes.set_xlabel("updates")
        axes.set_title(f"W = {num_workers}")
        axes.grid(alpha=0.3)
        # Below: within, it would hide lines.
        axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.13), fontsize="small", ncols=4)
    all_axes[0].set_ylabel(label)
    return figure


def _line_of_pairwise(config: Config, rows: list[RowRuns]) -> str:
    """Tells protocols apart, or, where there is one only, a fixed period, or p."""
    if config.period > 1:
        return ":"
    if len(_values(rows, "alpha")) > 1:
        return "-" if config.p == max(_values(rows, "p")) else "--"
    return config.spec.line


def _lines(
    axes: Axes,
    rows: list[RowRuns],
    line: Callable[[Config], str],
    x: Callable[[Config], float],
) -> None:
    """A line for each group of rows: ours, with the deviation over seeds, and what was published."""
    for index, (label, group) in enumerate(_grouped(rows, line).items()):
        group = sorted(group, key=lambda runs: x(runs.row.config))
        color = matplotlib.color_sequences["tab10"][index % 10]
        where = [x(runs.row.config) for runs in group]
        accuracy = [_rank0(runs) for runs in group]
        axes.errorbar(
            where,
            [figures.mean() for figures in accuracy],
            # No bar for a single run.
            [figures.std(ddof=1) if len(figures) > 1 else np.nan for figures in accuracy],
            color=color,
            marker="o",
            capsize=2,
            label=label,
        )
        known = [runs for runs in group if runs.row.published.rank0 is not None]
        if known and all(runs.is_full for runs in group):
            axes.plot(
                [x(runs.row.config) for runs in known],
                [_metric(rows).scale * (runs.row.published.rank0 or 0.0) for runs in known],
                color=color,
                linestyle=":",
                marker="o",
                markerfacecolor="none",
                label=f"{label}: published",
            )


def _with_legend(figure: Figure, label: str) -> Figure:
    (axes,) = figure.axes
    axes.set_ylabel(label)
    axes.grid(alpha=0.3)
    figure.legend(loc="outside right upper", fontsize="small")
    return figure


def _metric(rows: list[RowRuns]) -> Metric:
    return rows[0].table.metric


def _rank0(runs: RowRuns) -> np.ndarray:
    """Worker 0's scores, as the report shows them: float64 [n]."""
    return runs.table.metric.scale * runs.scores("rank0")


def _validation(runs: RowRuns) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Updates, and the least, mean and highest validation score at each, as the report shows them."""
    metric = runs.table.metric
    updates, mean = _series(runs, f"validation_{metric.name}_mean")
    low = _series(runs, f"validation_{metric.name}_min")[1].min(axis=0)
    high = _series(runs, f"validation_{metric.name}_max")[1].max(axis=0)
    return updates, metric.scale * low, metric.scale * mean.mean(axis=0), metric.scale * high


def _series(runs: RowRuns, name: str) -> tuple[np.ndarray, np.ndarray]:
    """The updates at which runs were measured [T], and a figure of their metrics there [n, T]."""
    updates = np.array([metrics.updates for metrics in runs.records[0].metrics])
    return updates, np.array(
        [[metrics.flat()[name] for metrics in record.metrics] for record in runs.records]
    )


def _frequency(config: Config) -> float:
    """How often a worker initiates contact: p, or 1 / τ where the period is fixed."""
    return config.p / config.period


def _values(rows: Iterable[RowRuns], name: str) -> set[Any]:
    return {getattr(runs.row.config, name) for runs in rows}


def _grouped(rows: list[RowRuns], key: Callable[[Config], Any]) -> dict[Any, list[RowRuns]]:
    groups: dict[Any, list[RowRuns]] = {}
    for runs in rows:
        groups.setdefault(key(runs.row.config), []).append(runs)
    return groups
