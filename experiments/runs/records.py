"""Finished runs as files: what a run was, what came out, and on what it ran."""

import dataclasses
import hashlib
import json
from pathlib import Path
from typing import Any

from experiments.common import strict_json
from experiments.common.files import write_whole
from experiments.training.config import completed
from experiments.training.run import EpochMetrics, Result

FORMAT = 1
"""Of the files: to be raised where their content changes its meaning."""


@dataclasses.dataclass(frozen=True)
class Record:
    """A finished run."""

    settings: dict[str, Any]  # of `Config.settings`, and what `numerics.unusual` adds
    result: Result
    metrics: tuple[EpochMetrics, ...]
    provenance: list[dict[str, Any]]  # of each start and resumption: when, from which epoch, on what


def path_of(results: Path, group: str, name: str, seed: int) -> Path:
    """Where a run's record is: every seed has its own file."""
    return results / "runs" / group / name / f"seed-{seed}.json"


def write(path: Path, record: Record) -> None:
    """Writes a record: the file is there, whole, or not at all.

    Raises:
      OSError: it cannot be written; it names the file. What was there before is as it was.
    """
    content = {
        "format": FORMAT,
        "settings": record.settings,
        "result": record.result.flat(),
        "metrics": [metrics.flat() for metrics in record.metrics],
        "provenance": record.provenance,
    }
    content = json.loads(strict_json.dumps(content))
    content["sha256"] = _digest(content)
    write_whole(path, strict_json.dumps(content, indent=1) + "\n")


def read(path: Path) -> Record:
    """Reads a record.

    Raises:
      ValueError: it is of another format, damaged, or was edited; it names the file and the remedy.
      OSError: it cannot be read.
    """
    try:
        content = json.loads(path.read_bytes())
        if content["format"] != FORMAT:
            raise ValueError(
                f"{path} has format {content['format']!r}, and this version reads {FORMAT}: use "
                f"another directory, or move the file elsewhere to have it run again"
            )
        if content.pop("sha256") != _digest(content):
            raise ValueError(f"{path} was changed after it was written, or is damaged; {_REMEDY}")
        return Record(
            completed(content["settings"]),
            Result.of(_with_nan(content["result"])),
            tuple(metrics_from(metrics) for metrics in content["metrics"]),
            content["provenance"],
        )
    except (KeyError, TypeError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise ValueError(f"{path} is damaged; {_REMEDY}") from error


def metrics_from(figures: dict[str, Any]) -> EpochMetrics:
    """An epoch's metrics as they were written."""
    return EpochMetrics.of(_with_nan(figures))


def read_expected(path: Path, settings: dict[str, Any]) -> Record:
    """Reads the record of a run with these settings.

    Raises:
      ValueError: as `read`, or the record is of other settings, which it names.
      OSError: it cannot be read.
    """
    record = read(path)
    # Where no worker turned NaN, what would have been done with it makes no difference.
    free = {"on_nan": "stop"} if record.settings["on_nan"] == "stop" else {}
    require_equal(path, record.settings, settings | free)
    return record


def require_equal(path: Path, found: dict[str, Any], expected: dict[str, Any]) -> None:
    """Raises ValueError, and says where they differ, unless what is in a file has these settings."""
    if differences := strict_json.differences(found, expected, "here"):
        raise ValueError(
            f"{path} is of a run with other settings: {'; '.join(differences)}. Use another "
            f"directory, or move it elsewhere to have it run again"
        )


_REMEDY = "move it elsewhere to have it run again"


def _digest(content: dict[str, Any]) -> str:
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def _with_nan(figures: dict[str, Any]) -> dict[str, Any]:
    """A figure that JSON has no number for was written as null."""
    nan = float("nan")
    return {
        key: [nan if item is None else item for item in value]
        if isinstance(value, list)
        else (nan if value is None else value)
        for key, value in figures.items()
    }
