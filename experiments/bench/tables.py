"""The figures as tables."""

from collections.abc import Sequence

from experiments.bench.compiling import Compiled
from experiments.bench.exchanges import Exchange
from experiments.bench.limits import Rates
from experiments.bench.steps import Step
from experiments.bench.tpu import Compiled as TpuCompiled
from experiments.common.grids import Grid, fraction


def rates(found: Rates) -> str:
    """Says in a line what was measured of the machine."""
    return (
        f"This machine: {found.gigaflops:,.0f} GFLOP/s in a matrix product, "
        f"{found.gigabytes_per_second:,.0f} GB/s read and written by a copy (float32)"
    )


def steps(rows: Sequence[Step]) -> Grid:
    """Shows what an update costs with each protocol on one backend."""
    arithmetic, memory = rows[0].arithmetic_milliseconds, rows[0].memory_milliseconds
    lines = [
        (
            row.protocol,
            "" if row.p is None else fraction(row.p),
            f"{row.milliseconds:.2f}",
            f"{row.ratio_to_floor:.2f}",
            f"{max(arithmetic, memory) / row.milliseconds:.0%}",
            f"{row.compile_seconds:.1f}",
            f"{row.memory_bytes / 1e6:,.0f}",
        )
        for row in rows
    ]
    return Grid(
        f"Updates, W = {rows[0].workers}, {rows[0].backend}\n"
        f"arithmetic alone {arithmetic:.1f} ms, memory traffic alone {memory:.1f} ms",
        ("protocol", "p", "ms", "x floor", "of limit", "compile s", "MB"),
        tuple(lines),
    )


def compiling(rows: Sequence[Compiled]) -> Grid:
    """Shows programs that were compiled only."""
    lines = [
        (
            row.program,
            str(row.workers),
            row.backend,
            f"{row.compile_seconds:.1f}",
            f"{row.memory_bytes / 1e6:,.0f}",
        )
        for row in rows
    ]
    return Grid("Compiling", ("program", "W", "backend", "compile s", "MB"), tuple(lines))


def exchanges(rows: Sequence[Exchange]) -> Grid:
    """Shows what exchanges cost by themselves."""
    lines = [
        (
            row.kind,
            str(row.workers),
            str(row.leaves),
            f"{row.milliseconds:.2f}",
            f"{row.gigabytes_per_second:.1f}" if row.gigabytes_per_second else "",
            f"{row.share_of_copy:.0%}" if row.gigabytes_per_second else "",
        )
        for row in rows
    ]
    header = ("what", "W", "leaves", "ms", "GB/s sent", "of copy")
    return Grid(f"Exchanges, {rows[0].backend}", header, tuple(lines))


def tpu(rows: Sequence[TpuCompiled]) -> Grid:
    """Shows updates that were compiled for a TPU."""
    lines = [
        (
            row.program,
            f"{row.compile_seconds:.1f}",
            str(row.permutes),
            f"{row.overlapped / row.permutes:.0%}" if row.permutes else "",
            str(row.collectives),
            f"{row.code_bytes / 1e6:.1f}",
            f"{row.temporary_replicas:.2f}",
        )
        for row in rows
    ]
    header = ("program", "compile s", "permutes", "overlapped", "others", "code MB", "temporary")
    return Grid(f"{rows[0].topology}, W = {rows[0].workers}", header, tuple(lines))
