"""Files of a user are read as data: no pickle is loaded, and no name in them leads elsewhere."""

import json
import pickle
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from experiments import train
from experiments.runs import records
from experiments.runs.checkpoints import Checkpoints
from experiments.runs.run_directory import RunDirectory
from experiments.tables import rows
from experiments.tasks import data
from experiments.training import run
from experiments.training.program import Programs

RUN = ["--width", "8", "--epochs", "2", "--backend", "vmap"]


class Bomb:
    """Makes a file where it is unpickled."""

    def __init__(self, path: Path):
        self.path = path

    def __reduce__(self):
        return Path.touch, (self.path,)


@pytest.fixture(scope="module", autouse=True)
def compile_once() -> Iterator[None]:
    programs = Programs(data.load("digits"))
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(run, "Programs", lambda _: programs)
        yield


def train_cli(monkeypatch, *arguments: str) -> int:
    monkeypatch.setenv("JAX_NUM_CPU_DEVICES", "8")
    monkeypatch.setattr(sys, "argv", ["train", *arguments])
    try:
        train.main()
    except SystemExit as exit:
        return exit.code if isinstance(exit.code, int) else 1
    return 0


@pytest.fixture
def finished(monkeypatch, tmp_path) -> Path:
    path = tmp_path / "run"
    assert train_cli(monkeypatch, *RUN, "--out", str(path)) == 0
    return path


def test_a_bomb_goes_off_where_it_is_unpickled(tmp_path):
    pickle.loads(pickle.dumps(Bomb(tmp_path / "exploded")))
    assert (tmp_path / "exploded").exists()


def test_no_file_of_a_run_is_unpickled(finished, monkeypatch, tmp_path):
    exploded = tmp_path / "exploded"
    bomb = pickle.dumps(Bomb(exploded))
    whole = tmp_path / "whole"
    shutil.copytree(finished, whole)
    files = [path.relative_to(whole) for path in whole.rglob("*") if path.is_file()]
    assert len(files) > 10
    for epoch in ("1", "2"):  # all of a checkpoint at once, and so that its checksums agree
        for file in (finished / "checkpoints" / epoch).rglob("*"):
            if file.is_file():
                file.write_bytes(bomb)
    train_cli(monkeypatch, "--resume", str(finished), "--epochs", "3")
    for file in files:
        if file.parts[0] != "checkpoints":
            shutil.rmtree(finished)
            shutil.copytree(whole, finished)
            (finished / file).write_bytes(bomb)
            train_cli(monkeypatch, "--resume", str(finished), "--epochs", "3")
    assert not exploded.exists()


def test_no_record_table_or_dataset_is_unpickled(monkeypatch, tmp_path):
    exploded = tmp_path / "exploded"
    bomb = pickle.dumps(Bomb(exploded))
    (tmp_path / "seed-0.json").write_bytes(bomb)
    with pytest.raises(ValueError, match="is damaged"):
        records.read(tmp_path / "seed-0.json")
    with pytest.raises(ValueError, match="not TOML"):
        rows.parse("bomb", bomb.decode("latin-1"))
    prepared = tmp_path / "mnist" / "3.0.1"
    prepared.mkdir(parents=True)
    for name in ("dataset_info.json", "features.json", "mnist-train.array_record-00000-of-00001"):
        (prepared / name).write_bytes(bomb)
    with pytest.raises(ValueError, match="mnist"):
        data.load("mnist", tmp_path)
    assert not exploded.exists()


def test_names_in_a_config_lead_nowhere(finished, monkeypatch, tmp_path):
    before = set(tmp_path.iterdir())
    config = json.loads((finished / "config.json").read_text())
    elsewhere = {"out": "../escaped", "resume": "../escaped", "path": "../escaped"}
    (finished / "config.json").write_text(json.dumps(config | elsewhere))
    assert train_cli(monkeypatch, "--resume", str(finished), "--epochs", "3") == 0
    assert set(tmp_path.iterdir()) == before
    assert "escaped" not in (finished / "config.json").read_text()


def test_a_link_among_the_checkpoints_is_not_followed(finished, monkeypatch, tmp_path):
    mine = tmp_path / "mine"
    shutil.copytree(finished / "checkpoints" / "2", mine)
    names = sorted(path.name for path in mine.iterdir())
    (finished / "checkpoints" / "9").symlink_to(mine)
    (finished / "checkpoints" / "1").rename(tmp_path / "one")
    (finished / "checkpoints" / "1").symlink_to(tmp_path / "one")
    assert RunDirectory(finished).checkpoints.epochs() == [2]
    assert train_cli(monkeypatch, "--resume", str(finished), "--epochs", "4") == 0
    assert sorted(path.name for path in mine.iterdir()) == names
    assert (tmp_path / "one").is_dir()


@pytest.mark.parametrize("name", ["07", "-1", "+1", "1e3", "1_0", " 1", "٣"])
def test_only_whole_numbers_name_checkpoints(name, tmp_path):
    path = tmp_path / "checkpoints" / name
    path.mkdir(parents=True)
    checkpoints = Checkpoints(tmp_path / "checkpoints")
    assert checkpoints.epochs() == []
    checkpoints.save(8, {"x": np.float32(1)}, {})
    assert path.is_dir()


@pytest.mark.parametrize("group", ["../escaped", "/escaped", "a/b", "", ".", "a\\0b"])
def test_a_table_s_group_names_no_other_directory(group):
    text = f'title = "T"\ngroup = "{group}"\n[rows]\nA = {{}}\n'
    with pytest.raises(ValueError, match=r"group names a directory|not TOML"):
        rows.parse("t", text)
