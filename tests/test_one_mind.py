"""Processes that would train with other rounds than each other are stopped before they do: both would
wait for ever. Here one process plays both.
"""

from typing import Any

import jax
import numpy as np
import pytest

import gossip_jax as gj
from experiments.cluster import processes
from experiments.cluster.lifeline import Lifeline
from experiments.cluster.processes import DisagreementError, Processes
from experiments.common.cli import reported
from gossip_jax import training

NAMES = ("process 0 (host a, PID 1)", "process 1 (host b, PID 2)")
DRAW = gj.uniform_peers(4, p=0.5)


def rounds(seed: int = 0, first: int = 1, draw: gj.Draw = DRAW) -> gj.Round:
    """Of an epoch of eight updates."""
    return training.draw_rounds(draw, gj.keys.run_key(seed), first, 8)


class Process(processes._All):
    """As it sees all: what the other brings to a meeting is given."""

    def __init__(self, others: dict[str, Any]):
        lifeline: Lifeline = None  # pyright: ignore[reportAssignmentType]  # nobody is met
        super().__init__(lifeline, NAMES, Processes())
        self.brought: dict[str, Any] = {}
        self.others, self.did = others, list[str]()

    def meet(self, what: str, brings: Any = None, *_: Any, **__: Any) -> list[Any]:
        self.brought[what] = brings
        return [brings, self.others.get(what, brings)]

    def contact_of(self, program: Any, devices: Any) -> Any:
        return lambda: self.did.append("contact")


def epoch(monkeypatch, decides: Any, others: dict[str, Any] | None = None) -> Process:
    """Goes into the third epoch, with what the other process brings there."""
    this = Process(others or {})
    monkeypatch.setattr(processes, "_all", this)
    program: Any = None
    with processes.together(program, jax.devices(), decides, "epoch 3"):
        this.did.append("epoch")
    return this


def test_processes_that_drew_the_same_train(monkeypatch):
    other = epoch(monkeypatch, (rounds(), None)).brought
    assert epoch(monkeypatch, (rounds(), None), other).did == ["contact", "epoch"]


SILENT = np.zeros((8, 4), bool)
OTHERS: dict[str, Any] = {
    "another seed": (rounds(seed=1), None),
    "another epoch": (rounds(first=9), None),
    "another p": (rounds(draw=gj.uniform_peers(4, p=0.25)), None),
    "another period": (rounds(draw=gj.uniform_peers(4, p=0.5, period=2)), None),
    "another law": (rounds(draw=gj.pairing(4, p=0.5)), None),
    "another graph": (rounds(draw=gj.every(gj.graphs.ring(4))), None),
    "a worker that sits out": (rounds(), SILENT | (np.arange(4) == 2)[None]),
}


@pytest.mark.parametrize("other", OTHERS.values(), ids=OTHERS.keys())
def test_processes_that_drew_other_rounds_refuse_to_train_and_name_who_did(other, monkeypatch):
    own = rounds(), None if other[1] is None else SILENT
    brought = epoch(monkeypatch, other).brought
    meetings = Process({"epoch 3": brought["epoch 3"]})
    with pytest.raises(DisagreementError) as refused:
        epoch(monkeypatch, own, meetings.others)
    assert str(refused.value) == f"{NAMES[1]} drew other rounds than process 0 for epoch 3"
    this = processes._all
    assert isinstance(this, Process)
    assert this.did == []  # not even in contact


def test_the_refusal_is_a_message_and_no_traceback(capsys):
    with pytest.raises(SystemExit) as ended, reported(OSError, DisagreementError):
        raise DisagreementError("process 1 drew other rounds than process 0 for epoch 3")
    assert ended.value.code == 2
    assert capsys.readouterr().err == "error: process 1 drew other rounds than process 0 for epoch 3\n"
