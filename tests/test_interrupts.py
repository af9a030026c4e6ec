"""Signals that come more than once: a later one ends what an epoch keeps waiting, at once."""

import io
import os
import signal
from unittest import mock

import pytest
from commands import wait_for
from rich.console import Console

from experiments.common import interrupts
from experiments.common.interrupts import Interrupts

TERM, INT = signal.SIGTERM, signal.SIGINT


@pytest.mark.parametrize(
    ("apart", "signals", "code"),
    [
        (0, [TERM, TERM], 128 + TERM),
        (0, [INT, TERM], 128 + TERM),
        # One SIGTERM that is sent several times, as `timeout` does, is one.
        (1e9, [TERM, TERM, INT], 128 + INT),
        (1e9, [INT, INT], 128 + INT),
    ],
)
def test_a_second_signal_ends_at_once_but_for_an_echo_of_the_first(apart, signals, code, monkeypatch):
    exit_at_once = mock.Mock()
    monkeypatch.setattr(interrupts, "_APART", apart)
    monkeypatch.setattr(interrupts.os, "_exit", exit_at_once)
    console = Console(file=io.StringIO())
    with Interrupts(console, "this epoch") as received:
        os.kill(os.getpid(), signals[0])
        wait_for(lambda: received.received is not None)
        for number in signals[1:]:
            os.kill(os.getpid(), number)
        wait_for(lambda: exit_at_once.called)
    assert received.received == signals[0]
    exit_at_once.assert_called_once_with(code)
