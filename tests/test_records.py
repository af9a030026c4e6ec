"""Records of finished runs: what is read is what was written, or an error that says what to do."""

import dataclasses
import hashlib
import json
import math
import os
from pathlib import Path
from typing import Any

import pytest
from fabricated import accuracy_of

from experiments.runs import records
from experiments.runs.records import Record
from experiments.training.config import Config
from experiments.training.results import EpochMetrics, Result

NAN = float("nan")


def of_workers(mean: float, low: float, high: float) -> dict[str, float]:
    names = (f"validation_accuracy_{of}" for of in ("mean", "min", "max"))
    return dict(zip(names, (mean, low, high), strict=True))


def record(**changes: Any) -> Record:
    config = dataclasses.replace(Config(halve_after=(1, 2)), **changes).checked()
    metrics = [
        EpochMetrics(1, 9, 2.25, of_workers(0.5, 0.25, 0.75), 0.1, 3, 1e6 / 3, 0.5),
        EpochMetrics(2, 18, NAN, of_workers(0.1, 0.1, 0.1), NAN, 6, 2e6 / 3, 1.0),
    ]
    result = Result(
        accuracy_of([0.1, NAN], NAN),
        NAN,
        6,
        2e6 / 3,
        1 / 3,
        18,
        18.0,
    )
    provenance = [{"from_epoch": 0, "began": "2026-01-01T00:00:00+00:00", "versions": {"jax": "1"}}]
    return Record(config.settings(), result, tuple(metrics), provenance)


@pytest.fixture
def path(tmp_path) -> Path:
    """Of a record."""
    path = records.path_of(tmp_path, "group", "name", seed=3)
    records.write(path, record())
    return path


def same(first: Any, second: Any) -> bool:
    """Equality in which a NaN equals itself."""
    return repr(first) == repr(second)


def rewrite(path: Path, change: Any, sign: bool = False) -> None:
    """Edits the content of a record, as one does by hand or, signed, as another version might."""
    content = json.loads(path.read_text(encoding="utf-8"))
    change(content)
    if sign:
        del content["sha256"]
        text = json.dumps(content, sort_keys=True, separators=(",", ":"))
        content["sha256"] = hashlib.sha256(text.encode()).hexdigest()
    path.write_text(json.dumps(content, indent=1), encoding="utf-8")


def require_refused(path: Path, *words: str) -> None:
    with pytest.raises(ValueError, match="move") as error:
        records.read(path)
    for word in (str(path), "to have it run again", *words):
        assert word in str(error.value)


def test_a_record_is_read_as_it_was_written(path):
    found, written = records.read(path), record()
    assert found.settings == written.settings
    assert same(found.result, written.result)
    assert same(found.metrics, written.metrics)
    assert found.provenance == written.provenance
    assert math.isnan(found.result.scores["worker_accuracy"][1])
    assert same(records.read_expected(path, written.settings), found)


def test_a_record_is_json_that_every_reader_takes(path):
    def refuse(constant: str) -> None:
        raise AssertionError(constant)

    content = json.loads(path.read_text(encoding="utf-8"), parse_constant=refuse)
    assert content["result"]["consensus_distance"] is None
    assert content["settings"]["halve_after"] == [1, 2]


def test_every_seed_has_a_record_of_its_own(tmp_path):
    paths = {
        records.path_of(tmp_path, group, name, seed)
        for group in "ab"
        for name in "cd"
        for seed in range(3)
    }
    assert len(paths) == 12


def test_writing_leaves_nothing_but_the_record(path):
    assert [file.name for file in path.parent.iterdir()] == ["seed-3.json"]


@pytest.mark.parametrize("share", range(20))
def test_a_record_that_was_cut_off_is_refused(share, path):
    content = path.read_bytes().rstrip()
    path.write_bytes(content[: share * len(content) // 20])
    require_refused(path, "is damaged")


def test_a_record_without_its_last_brace_is_refused(path):
    path.write_bytes(path.read_bytes().rstrip()[:-1])
    require_refused(path, "is damaged")


CONTENT = {
    "empty": b"",
    "not JSON": b"accuracy: 0.98\n",
    "not UTF-8": b'{"format": 1, "sha256": "\xff\xfe"}',
    "null bytes": bytes(1000),
    "a list": b"[1, 2]",
    "a string": b'"format"',
    "a number": b"1",
    "without format": b'{"sha256": ""}',
    "without checksum": b'{"format": 1}',
}


@pytest.mark.parametrize("content", CONTENT.values(), ids=CONTENT.keys())
def test_what_is_no_record_is_refused(content, path):
    path.write_bytes(content)
    require_refused(path, "is damaged")


EDITS = {
    "an accuracy": lambda content: content["result"].update(rank0_accuracy=0.99),
    "a worker's accuracy": lambda content: content["result"]["worker_accuracy"].reverse(),
    "a NaN": lambda content: content["result"].update(consensus_distance=0.0),
    "an epoch's figure": lambda content: content["metrics"][0].update(training_loss=0.5),
    "an epoch less": lambda content: content["metrics"].pop(),
    "a setting": lambda content: content["settings"].update(seed=4),
    "the provenance": lambda content: content["provenance"][0].update(began="today"),
    "the checksum": lambda content: content.update(sha256="0" * 64),
    "one key more": lambda content: content.update(note="checked by hand"),
    "the metrics gone": lambda content: content.pop("metrics"),
}


@pytest.mark.parametrize("edit", EDITS.values(), ids=EDITS.keys())
def test_a_record_that_was_edited_is_refused(edit, path):
    rewrite(path, edit)
    require_refused(path, "was changed after it was written")


@pytest.mark.parametrize("key", ["settings", "result", "metrics", "provenance"])
def test_a_record_that_lacks_something_is_refused_though_its_checksum_holds(key, path):
    rewrite(path, lambda content: content.pop(key), sign=True)
    require_refused(path, "is damaged")


def test_a_record_with_a_figure_of_another_version_is_refused_though_its_checksum_holds(path):
    rewrite(path, lambda content: content["result"].update(rank7_accuracy=0.5), sign=True)
    require_refused(path, "is damaged")


def test_a_record_of_another_format_is_refused_as_such(path):
    rewrite(path, lambda content: content.update(format=2), sign=True)
    require_refused(path, "has format 2", "this version reads 1", "use another directory")


def test_spaces_do_not_make_another_record(path):
    rewrite(path, lambda content: content.update(dict(reversed(content.items()))))
    assert same(records.read(path), record())


def test_a_record_of_other_settings_is_refused_with_both_values(path):
    wanted = record(learning_rate=0.5, halve_after=(1, 3)).settings
    with pytest.raises(ValueError, match="other settings") as error:
        records.read_expected(path, wanted)
    assert str(error.value) == (
        f"{path} is of a run with other settings: halve_after [1, 2] there, [1, 3] here; "
        f"learning_rate 0.001 there, 0.5 here. Use another directory, or move it elsewhere to have it "
        f"run again"
    )


def test_a_record_from_before_a_setting_existed_is_refused(path):
    with pytest.raises(ValueError, match="patience 'not set' there, 7 here"):
        records.read_expected(path, record().settings | {"patience": 7})
    rewrite(path, lambda content: content["settings"].update(patience=7), sign=True)
    with pytest.raises(ValueError, match="patience 7 there, 'not set' here"):
        records.read_expected(path, record().settings)


def test_a_record_from_before_workers_could_drop_out_is_of_a_run_in_which_none_did(path):
    rewrite(path, lambda content: content["settings"].pop("drop_rate"), sign=True)
    assert records.read_expected(path, record().settings).settings["drop_rate"] == 0


def fail_to_replace(monkeypatch) -> None:
    def replace(*_: Any) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "replace", replace)


def fail_half_way(monkeypatch) -> None:
    def write_text(path: Path, text: str, **_: Any) -> None:
        path.write_bytes(text[: len(text) // 2].encode())
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_text", write_text)


@pytest.mark.parametrize("fail", [fail_to_replace, fail_half_way])
def test_a_record_that_cannot_be_written_is_named_and_the_old_one_stays(fail, path, monkeypatch):
    before = path.read_bytes()
    fail(monkeypatch)
    with pytest.raises(OSError, match=r"seed-3\.json cannot be written: (Input|No space)"):
        records.write(path, record(seed=7))
    assert path.read_bytes() == before
    assert list(path.parent.iterdir()) == [path]


def test_a_directory_that_cannot_be_made_is_named(tmp_path):
    (tmp_path / "runs").write_text("a file")
    path = records.path_of(tmp_path, "group", "name", seed=0)
    with pytest.raises(OSError, match=r"seed-0\.json cannot be written: Not a directory"):
        records.write(path, record())
