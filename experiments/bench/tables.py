"""The figures as tables."""

from collections.abc import Sequence

from rich import box
from rich.table import Table

from experiments.bench.compiling import Compiled
from experiments.bench.exchanges import Exchange
from experiments.bench.limits import Rates
from experiments.bench.steps import Step
from experiments.bench.tpu import Compiled as TpuCompiled
from experiments.report.grids import fraction


def rates(found: Rates) -> str:
    """A line."""
    return (
        f"This machine: {found.gigaflops:,.0f} GFLOP/s in a matrix product, "
        f"{found.gigabytes_per_second:,.0f} GB/s read and written by a copy (float32)"
    )


def steps(rows: Sequence[Step]) -> Table:
    """An update with each protocol on one backend."""
    table = _table(
        f"Updates, W = {rows[0].workers}, {rows[0].backend}\n"
        f"arithmetic alone {rows[0].arithmetic_milliseconds:.1f} ms, memory traffic alone "
        f"{rows[0].memory_milliseconds:.1f} ms",
        ("protocol", "p"),
        ("ms", "x floor", "of limit", "compile s", "MB"),
    )
    for row in rows:
        limit = max(row.arithmetic_milliseconds, row.memory_milliseconds)
        table.add_row(
            row.protocol,
            "" if row.p is None else fraction(row.p),
            f"{row.milliseconds:.2f}",
            f"{row.ratio_to_floor:.2f}",
            f"{limit / row.milliseconds:.0%}",
            f"{row.compile_seconds:.1f}",
            f"{row.memory_bytes / 1e6:,.0f}",
        )
    return table


def compiling(rows: Sequence[Compiled]) -> Table:
    """Programs that were compiled only."""
    table = _table("Compiling", ("program", "W", "backend"), ("compile s", "MB"))
    for row in rows:
        table.add_row(
            row.program,
            str(row.workers),
            row.backend,
            f"{row.compile_seconds:.1f}",
            f"{row.memory_bytes / 1e6:,.0f}",
        )
    return table


def exchanges(rows: Sequence[Exchange]) -> Table:
    """Exchanges by themselves."""
    table = _table(
        f"Exchanges, {rows[0].backend}",
        ("W", "leaves", "what"),
        ("ms", "GB/s sent", "of copy"),
    )
    for row in rows:
        table.add_row(
            str(row.workers),
            str(row.leaves),
            row.kind,
            f"{row.milliseconds:.2f}",
            f"{row.gigabytes_per_second:.1f}" if row.gigabytes_per_second else "",
            f"{row.share_of_copy:.0%}" if row.gigabytes_per_second else "",
        )
    return table


def tpu(rows: Sequence[TpuCompiled]) -> Table:
    """Updates that were compiled for a TPU."""
    table = _table(
        f"{rows[0].topology}, W = {rows[0].workers}",
        ("program",),
        ("compile s", "permutes", "overlapped", "others", "code MB", "temporary"),
    )
    for row in rows:
        table.add_row(
            row.program,
            f"{row.compile_seconds:.1f}",
            str(row.permutes),
            f"{row.overlapped / row.permutes:.0%}" if row.permutes else "",
            str(row.collectives),
            f"{row.code_bytes / 1e6:.1f}",
            f"{row.temporary_replicas:.2f}",
        )
    return table


def _table(title: str, labels: Sequence[str], figures: Sequence[str]) -> Table:
    table = Table(
        title=title,
        title_justify="left",
        box=box.SIMPLE_HEAD,
        show_edge=False,
        pad_edge=False,
        padding=(0, 1, 0, 0),
    )
    for label in labels:
        table.add_column(label, no_wrap=True)
    for figure in figures:
        table.add_column(figure, justify="right", no_wrap=True)
    return table
