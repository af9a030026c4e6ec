"""What comes out of a run: figures after an epoch, and at the end."""

from typing import NamedTuple


class EpochMetrics(NamedTuple):
    """A line of metrics.jsonl; accuracies are on the validation set."""

    epoch: int
    updates: int  # since the start, as are all counts
    training_loss: float  # mean over workers and over the epoch's updates
    validation_accuracy_mean: float  # over workers
    validation_accuracy_min: float
    validation_accuracy_max: float
    consensus_distance: float
    exchanges: int
    bytes_sent_per_worker: float  # mean over workers
    seconds: float


class Result(NamedTuple):
    """The figures of a finished run; accuracies are on the test set, after the last update."""

    rank0_accuracy: float
    aggregate_accuracy: float  # of the mean replica
    worker_accuracy: list[float]
    consensus_distance: float
    exchanges: int
    bytes_sent_per_worker: float  # mean over workers
    share_of_all_reduce_bytes: float  # of what All-reduce SGD sends in as many updates
    updates: int
    updates_per_second: float
