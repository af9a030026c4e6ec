"""Records of runs that never took place, for tests of what is made of records."""

from pathlib import Path
from typing import Any

from experiments.runs import records
from experiments.runs.records import Record
from experiments.tables.rows import Row, Table
from experiments.training.results import EpochMetrics, Result

PROVENANCE = {
    "from_epoch": 0,
    "began": "2026-01-01T00:00:00+00:00",
    "placement": "pmap",
    "devices": ["cpu:0 cpu", "cpu:1 cpu"],
    "platform": "Linux",
    "versions": {"jax": "0.10.2"},
    "commit": "0123456789abcdef",
}


def accuracy_of(workers: list[float], aggregate: float) -> dict[str, Any]:
    """The scores of a run whose workers and mean replica have these accuracies."""
    return {
        "rank0_accuracy": workers[0],
        "aggregate_accuracy": aggregate,
        "worker_accuracy": workers,
    }


def write_run(
    results: Path,
    table: Table,
    row: Row,
    rank0: float,
    seed: int = 0,
    epochs: int | None = None,
    train_examples: int | None = None,
) -> Path:
    """A run with that rank-0 accuracy, whose other figures follow by simple rules."""
    config = row.run(seed, epochs, train_examples)
    share = 1.0 if config.protocol == "all_reduce" else config.p / config.period
    share *= config.protocol != "no_communication"
    measured = [
        epoch
        for epoch in range(1, config.epochs + 1)
        if epoch % config.validate_every == 0 or epoch == config.epochs
    ]
    metrics = tuple(
        EpochMetrics(
            epoch=epoch,
            updates=400 * epoch,
            training_loss=1 / epoch,
            scores={
                "validation_accuracy_mean": rank0 - 0.1 / epoch,
                "validation_accuracy_min": rank0 - 0.1 / epoch - 0.01,
                "validation_accuracy_max": rank0 - 0.1 / epoch + 0.01,
            },
            consensus_distance=10.0 + epoch,
            exchanges=int(400 * epoch * share),
            bytes_sent_per_worker=1e7 * 400 * epoch * share,
            seconds=8.0 * epoch,
        )
        for epoch in measured
    )
    result = Result(
        scores=accuracy_of(
            [rank0 + 0.0001 * worker for worker in range(config.workers)], rank0 + 0.001
        ),
        consensus_distance=10.0 + config.epochs,
        exchanges=metrics[-1].exchanges,
        bytes_sent_per_worker=metrics[-1].bytes_sent_per_worker,
        share_of_all_reduce_bytes=share,
        updates=400 * config.epochs,
        updates_per_second=50.0,
    )
    path = records.path_of(results, table.group, row.name(config), seed)
    records.write(path, Record(config.settings(), result, metrics, [PROVENANCE]))
    return path
