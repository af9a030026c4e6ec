"""The report's section on slow links: what was measured, and the time to an accuracy by rate."""

from collections.abc import Sequence
from pathlib import Path

import matplotlib
import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from experiments.common.grids import Grid, fraction
from experiments.links.namespaces import UNLIMITED, bits_per_second
from experiments.links.records import LinkRecord
from experiments.training.config import Config, names_of
from experiments.training.protocols import depend_on_p
from gossip_jax.protocols import SPECS

_EXTRAPOLATED = "≈"


def section(records: Sequence[LinkRecord], directory: Path) -> str:
    """The section, in Markdown; writes its figure into figures/ and its table into tables/."""
    parts = [_INTRODUCTION]
    for group in groups(records):
        workers, width = group[0].settings["workers"], group[0].settings["width"]
        name = f"links-{group[0].settings['dataset']}-W{workers}-width{width}"
        table = measured(group)
        (directory / "tables" / f"{name}.tex").write_text(table.latex(), encoding="utf-8")
        time_to_accuracy(group).savefig(
            directory / "figures" / f"{name}.png", dpi=110, metadata={"Software": None}
        )
        caption = f"{table.title}: time to the accuracy against the rate of the links"
        parts += [
            f"### {table.title}",
            table.markdown(),
            f"![{caption}](figures/{name}.png)\n\n*{caption}; open markers are extrapolated.*",
        ]
    return "\n\n".join(parts)


_INTRODUCTION = """## Slow links

`python -m experiments.network`

Each worker is a process in a network namespace of its own, on one machine, with a link that `tc`
limits to a rate in each direction. Updates a second are of the slowest worker, without compiling and
validation. MB are what a worker sends (the mean over workers): *counted* from the rounds, as everywhere
in this report, and *sent* by the kernel's counter of the worker's interface. The difference is headers
of TCP/IP, acknowledgements and, for All-reduce, what gloo adds for small arrays. The kernel counts
packets of up to 64 KiB with one header each; *framed* is what they come to as packets of 1,500 bytes
with 66 bytes of headers each, to which the limit applies.

The time to an accuracy is measured where the run went on so far. Where it did not, at slow links, it is
extrapolated (≈): the updates that the same settings needed over a faster link, at the updates a second
measured here."""


def measured(records: Sequence[LinkRecord]) -> Grid:
    """A line for each rate and protocol."""
    lines = []
    for record in records:
        counted, sent = np.mean(record.bytes_counted), np.mean(record.bytes_sent)
        framed = None if record.bytes_framed is None else np.mean(record.bytes_framed)
        reference = _all_reduce(records, record)
        lines.append(
            (
                record.settings["rate"],
                label(record),
                f"{record.updates:,}",
                _digits(record.updates_per_second),
                _digits(record.updates_per_second / reference) if reference else "",
                f"{record.exchanges:,}",
                f"{counted / 1e6:,.1f}",
                f"{sent / 1e6:,.1f}",
                f"{sent / counted - 1:+.1%}" if counted else "",
                f"{framed / counted - 1:+.1%}" if counted and framed is not None else "",
                _time(records, record),
            )
        )
    settings = records[0].settings
    return Grid(
        f"{settings['dataset']}, W = {settings['workers']}, MLP of width {settings['width']:,}",
        (
            "link",
            "protocol",
            "updates",
            "updates/s",
            "× All-reduce",
            "exchanges",
            "MB counted",
            "MB sent",
            "sent",
            "framed",
            f"s to {settings['accuracy']:.0%}",
        ),
        tuple(lines),
        "Updates, exchanges and MB are of the measured part of a run. Sent and framed: beyond what was "
        f"counted. The accuracy is of 1,000 validation images, the mean over workers. {_EXTRAPOLATED} "
        "extrapolated.",
    )


def time_to_accuracy(records: Sequence[LinkRecord]) -> Figure:
    """Seconds to the accuracy against the rate of the links, a line for each protocol."""
    rates = sorted({record.settings["rate"] for record in records}, key=bits_per_second)
    labels = list(dict.fromkeys(label(record) for record in records))
    gossip = [name for name in labels if " " in name]
    shades = matplotlib.colormaps["viridis"](np.linspace(0, 0.9, max(len(gossip), 1)))
    figure = Figure(figsize=(8, 5), layout="constrained")
    axes = figure.subplots()
    for name in labels:
        points = [
            (rates.index(record.settings["rate"]), *seconds)
            for record in records
            if label(record) == name and (seconds := seconds_to_accuracy(records, record)) is not None
        ]
        spec = SPECS[name.split()[0]]
        color = shades[gossip.index(name)] if name in gossip else spec.color
        where, times, is_measured = zip(*sorted(points), strict=True) if points else ((), (), ())
        axes.plot(where, times, color=color, linestyle=spec.line, label=name)
        for x, y, filled in zip(where, times, is_measured, strict=True):
            axes.plot(x, y, "o", color=color, markerfacecolor=color if filled else "white")
    axes.set_xticks(range(len(rates)), [f"{rate}/s" if rate != UNLIMITED else rate for rate in rates])
    goal = f"{records[0].settings['accuracy']:.0%} validation accuracy"
    axes.set(yscale="log", xlabel="rate of each link", ylabel=f"seconds to {goal} (log scale)")
    axes.yaxis.set_major_formatter(FuncFormatter(lambda seconds, _: f"{seconds:,g}"))
    axes.grid(alpha=0.3)
    axes.legend(fontsize="small")
    return figure


def seconds_to_accuracy(records: Sequence[LinkRecord], record: LinkRecord) -> tuple[float, bool] | None:
    """Seconds, and whether they were measured; None where no run of these settings got so far."""
    if record.reached is not None:
        return record.reached[1], True
    reached = [other.reached[0] for other in records if other.reached and label(other) == label(record)]
    return (reached[-1] / record.updates_per_second, False) if reached else None


def label(record: LinkRecord) -> str:
    """The protocol, and p where its rounds depend on it."""
    settings = {name: record.settings[name] for name in names_of("result") if name in record.settings}
    config = Config(**settings)
    return f"{config.protocol} p = {fraction(config.p)}" if depend_on_p(config) else config.protocol


def groups(records: Sequence[LinkRecord]) -> list[list[LinkRecord]]:
    """Records that differ in the rate, the protocol and p only: slow links first."""
    groups: dict[str, list[LinkRecord]] = {}
    for record in records:
        free = ("rate", "protocol", "p", "alpha")
        key = {name: value for name, value in record.settings.items() if name not in free}
        groups.setdefault(str(sorted(key.items())), []).append(record)
    order = list(SPECS)
    return [
        sorted(
            group,
            key=lambda record: (
                bits_per_second(record.settings["rate"]),
                order.index(record.settings["protocol"]),
                -record.settings["p"],
            ),
        )
        for group in groups.values()
    ]


def _all_reduce(records: Sequence[LinkRecord], record: LinkRecord) -> float | None:
    """All-reduce's updates a second over links of the same rate."""
    found = (
        other.updates_per_second
        for other in records
        if other.settings["protocol"] == "all_reduce"
        and other.settings["rate"] == record.settings["rate"]
    )
    return next(found, None)


def _time(records: Sequence[LinkRecord], record: LinkRecord) -> str:
    found = seconds_to_accuracy(records, record)
    if found is None:
        return ""
    seconds, is_measured = found
    return f"{'' if is_measured else _EXTRAPOLATED} {seconds:,.0f}".strip()


def _digits(figure: float) -> str:
    """Three of them, but no fewer than stand before the point."""
    return f"{figure:,.0f}" if figure >= 100 else f"{figure:.3g}"
