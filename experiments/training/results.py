"""What comes out of a run: figures after an epoch, and at the end."""

from typing import Any, NamedTuple


class EpochMetrics(NamedTuple):
    """A line of metrics.jsonl."""

    epoch: int
    updates: int  # since the start, as are all counts
    training_loss: float  # mean over workers and over the epoch's updates
    scores: dict[str, float]
    """On the validation set, of each of the task's metrics: `validation_accuracy_mean` over workers,
    `validation_accuracy_min` and `validation_accuracy_max`."""
    consensus_distance: float
    exchanges: int
    bytes_sent_per_worker: float  # mean over workers
    seconds: float

    def flat(self) -> dict[str, Any]:
        """All figures by name, as they are written."""
        return _flat(self._asdict())

    @classmethod
    def of(cls, flat: dict[str, Any]) -> "EpochMetrics":
        """The inverse of `flat`; KeyError where a figure is missing, or is none of these."""
        return cls(**_divided(flat, cls._fields, ("validation_",)))


class Result(NamedTuple):
    """The figures of a finished run, after the last update."""

    scores: dict[str, Any]
    """On the test set, of each of the task's metrics: `rank0_accuracy` of worker 0,
    `aggregate_accuracy` of the mean replica, and `worker_accuracy`, the list of all."""
    consensus_distance: float
    exchanges: int
    bytes_sent_per_worker: float  # mean over workers
    share_of_all_reduce_bytes: float  # of what All-reduce SGD sends in as many updates
    updates: int
    updates_per_second: float

    def flat(self) -> dict[str, Any]:
        """All figures by name, as they are written."""
        return _flat(self._asdict())

    @classmethod
    def of(cls, flat: dict[str, Any]) -> "Result":
        """The inverse of `flat`; KeyError where a figure is missing, or is none of these."""
        return cls(**_divided(flat, cls._fields, ("rank0_", "aggregate_", "worker_")))


def _flat(figures: dict[str, Any]) -> dict[str, Any]:
    """Puts the scores where the dictionary of them was."""
    return {
        name: value
        for key, own in figures.items()
        for name, value in (own if key == "scores" else {key: own}).items()
    }


def _divided(
    flat: dict[str, Any], fields: tuple[str, ...], prefixes: tuple[str, ...]
) -> dict[str, Any]:
    """Collects the scores, which are named so, from among the other fields."""
    others = {name: flat[name] for name in fields if name != "scores"}
    scores = {name: value for name, value in flat.items() if name not in others}
    for name in scores:
        if not name.startswith(prefixes):
            raise KeyError(name)
    return others | {"scores": scores}
