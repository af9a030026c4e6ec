"""Makes docs/errors.md of what is really printed: `PYTHONPATH=. python tests/error_messages.py`."""

import contextlib
import dataclasses
import io
import json
import os
import re
import shlex
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import fabricated
import jax
import jax.numpy as jnp
import numpy as np
import optax

import gossip_jax as gj
from experiments import table, train
from experiments.common.files import only_one_process
from experiments.common.interrupts import Interrupts
from experiments.runs import records
from experiments.tables import rows
from experiments.tasks import data
from experiments.training import program, run

DOCUMENT = Path(__file__).parents[1] / "docs" / "errors.md"
HEAD = """# Error messages

What each mistake or mishap gives, as it is really printed. This page is made by
`PYTHONPATH=. python tests/error_messages.py`, and a test fails where it is not what is printed.

The commands print a message as one line on stderr that begins with "error: ", and no traceback. They
exit with 2 on bad input or where a file cannot be read or written, with 1 where a worker turned NaN,
with 130 or 143 where SIGINT or SIGTERM came. What begins with "warning: ", and what is said of workers
that are isolated or restarted, is printed on stdout, and the run goes on.
"""


def one_worker(**arguments: Any) -> Any:
    """An update of Elastic Gossip on an axis of three workers."""
    protocol = gj.elastic_gossip(alpha=0.5)
    theta = arguments.pop("theta", jnp.zeros((3, 2)))

    def update(theta: Any) -> Any:
        given = {"params": theta, "round": gj.Round([-1, -1, -1])} | arguments
        params, round = given["params"], given["round"]
        return protocol.update(theta, optax.EmptyState(), params, round=round)[0]

    return jax.vmap(update, axis_name="workers")(theta)


class Call(NamedTuple):
    """A mistake in a call of the library."""

    what: str
    code: str
    function: Callable[[], Any]


CALLS = (
    Call("W < 1", "gj.uniform_peers(0, p=0.5)", lambda: gj.uniform_peers(0, p=0.5)),
    Call("p outside [0, 1]", "gj.pairing(4, p=1.5)", lambda: gj.pairing(4, p=1.5)),
    Call("α outside (0, 1]", "gj.elastic_gossip(alpha=0)", lambda: gj.elastic_gossip(alpha=0)),
    Call("period < 1", "gj.pairing(4, p=0.5, period=0)", lambda: gj.pairing(4, p=0.5, period=0)),
    Call(
        "weights of a wrong shape",
        "gj.uniform_peers(3, p=0.5, weights=np.ones((3, 4)))",
        lambda: gj.uniform_peers(3, p=0.5, weights=np.ones((3, 4))),
    ),
    Call(
        "negative weights",
        "gj.uniform_peers(2, p=0.5, weights=[[0, -1], [1, 0]])",
        lambda: gj.uniform_peers(2, p=0.5, weights=np.array([[0, -1], [1, 0]])),
    ),
    Call(
        "a row of weights without a positive entry",
        "gj.uniform_peers(2, p=0.5, weights=[[0, 1], [0, 0]])",
        lambda: gj.uniform_peers(2, p=0.5, weights=np.array([[0, 1], [0, 0]])),
    ),
    Call(
        "more workers than devices",
        'gj.place(9, "pmap")',
        lambda: gj.place(9, "pmap", devices=jax.devices()[:1]),
    ),
    Call("a worker that is not there", "gj.Round([-1, 2])", lambda: gj.Round([-1, 2])),
    Call(
        "a Round of another W than the axis",
        "update(grads, state, params, round=gj.Round([1, 0]))",
        lambda: one_worker(round=gj.Round([1, 0])),
    ),
    Call(
        "a parameter that is not floating point",
        'params = {"count": jnp.zeros(3, jnp.int32)}',
        lambda: one_worker(theta={"count": jnp.zeros(3, jnp.int32)}),
    ),
    Call("update without params", "update(grads, state)", lambda: one_worker(params=None)),
    Call("update without round", "update(grads, state, params)", lambda: one_worker(round=None)),
)


@dataclasses.dataclass(frozen=True)
class Command:
    """A mistake, or a mishap, in a command."""

    what: str
    arguments: str
    around: Callable[[], contextlib.AbstractContextManager[Any]] = contextlib.nullcontext
    main: Callable[[], None] = train.main
    says: str = "error: "  # with which the lines begin that are shown
    is_sick: bool = False  # a worker of the run


@contextlib.contextmanager
def another_process() -> Iterator[None]:
    with only_one_process(Path("busy")):
        yield


@contextlib.contextmanager
def changed(name: str, **settings: Any) -> Iterator[None]:
    """A run whose config.json was edited."""
    shutil.copytree("stopped", name)
    path = Path(name, "config.json")
    path.write_text(json.dumps(json.loads(path.read_text()) | settings))
    yield


@contextlib.contextmanager
def torn(name: str, *epochs: int) -> Iterator[None]:
    """A run of which checkpoints are torn."""
    shutil.copytree("stopped", name)
    for epoch in epochs:
        path = Path(name, "checkpoints", str(epoch), "_METADATA")
        path.write_bytes(path.read_bytes()[:-1])
    yield


@contextlib.contextmanager
def unreadable(name: str) -> Iterator[None]:
    """A run of which a checkpoint's file gives an I/O error."""
    shutil.copytree("stopped", name)
    path = Path(name, "checkpoints", "2", "_METADATA")
    path.unlink()
    path.symlink_to("/proc/self/mem")
    yield


@contextlib.contextmanager
def away(name: str) -> Iterator[None]:
    """A run whose checkpoints are on a file system that is not mounted."""
    shutil.copytree("stopped", name)
    shutil.rmtree(Path(name, "checkpoints"))
    Path(name, "checkpoints").mkdir()
    yield


@contextlib.contextmanager
def with_64_bits() -> Iterator[None]:
    """As JAX_ENABLE_X64=1 in the environment."""
    jax.config.update("jax_enable_x64", True)
    try:
        yield
    finally:
        jax.config.update("jax_enable_x64", False)


@contextlib.contextmanager
def with_file(path: str, text: str) -> Iterator[None]:
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    Path(path).write_text(text)
    yield


@contextlib.contextmanager
def blocked(name: str) -> Iterator[None]:
    shutil.copytree("stopped", name)
    shutil.rmtree(Path(name, "checkpoints"))
    Path(name, "checkpoints").write_text("")
    yield


@contextlib.contextmanager
def full_disk() -> Iterator[None]:
    free = mock.Mock(return_value=mock.Mock(free=200_000))
    with mock.patch("experiments.runs.checkpoints.shutil.disk_usage", free):
        yield


@contextlib.contextmanager
def signalled(module: Any) -> Iterator[None]:
    """A SIGINT comes in the first epoch."""
    interrupts = mock.MagicMock()
    interrupts.return_value.__enter__.return_value.received = 2
    with mock.patch.object(module, "Interrupts", interrupts):
        yield


@contextlib.contextmanager
def signalled_twice() -> Iterator[None]:
    """Ctrl-C, and once more while the epoch comes to its end."""
    exit_at_once = mock.Mock()

    class Twice(Interrupts):
        def __enter__(self) -> Interrupts:
            super().__enter__()
            for is_noted in (lambda: self.received, lambda: exit_at_once.called):
                os.kill(os.getpid(), signal.SIGINT)
                while not is_noted():
                    time.sleep(0.01)
            return self

    with (
        mock.patch.object(train, "Interrupts", Twice),
        mock.patch("experiments.common.interrupts.os._exit", exit_at_once),
    ):
        yield


@contextlib.contextmanager
def of_other_settings() -> Iterator[None]:
    """A record of a run with a momentum of its own, where that of a row belongs."""
    mnist = rows.load("mnist_protocols")
    (row,) = mnist.select(["EG-4-0.125"])
    path = fabricated.write_run(Path("results"), mnist, row, 0.9, epochs=1)
    record = records.read(path)
    records.write(path, dataclasses.replace(record, settings=record.settings | {"momentum": 0.5}))
    yield


def with_a_sick_worker(programs: program.Programs) -> Any:
    """The programs, but that the gradients of worker 2 are NaN at update 5."""
    key = jax.random.key_data(gj.keys.derive(gj.keys.run_key(0), gj.keys.Purpose.MODEL, 5, 2))
    make_healthy = program.make_learner

    def make_learner(*arguments: Any) -> Any:
        task = make_healthy(*arguments)

        def loss(params: Any, model_state: Any, batch: Any, key_here: Any) -> Any:
            value, model_state = task.loss(params, model_state, batch, key_here)
            here = (jax.random.key_data(key_here) == key).all()
            return value * jnp.where(here, jnp.nan, 1.0), model_state

        return task._replace(loss=loss)

    def make(*arguments: Any) -> Any:
        with mock.patch.object(program, "make_learner", make_learner):
            return programs(*arguments)

    return make


SMALL = "--width 8 --epochs 2 --backend vmap"
RECORD = "results/runs/mnist/no_communication-W4-1epochs/seed-0.json"
COMMANDS = (
    Command("W < 1", "--workers 0"),
    Command("p outside [0, 1]", "--p 1.5"),
    Command("α outside (0, 1]", "--alpha 0"),
    Command("period < 1", "--period 0"),
    Command("period beyond the run", f"{SMALL} --period 1000 --out seldom", says="warning: "),
    Command("more workers than devices", "--workers 12 --batch-size 12 --backend pmap"),
    Command("batch not divisible by W", "--batch-size 130"),
    Command("data not divisible by W", "--workers 7 --batch-size 7"),
    Command("batch larger than the data", "--batch-size 4000"),
    Command("unknown dataset", "--dataset imagenet", says=""),
    Command("dataset that is not prepared", "--dataset mnist --data-dir nowhere"),
    Command(
        "corrupt dataset",
        "--dataset mnist --data-dir corrupt",
        lambda: with_file("corrupt/mnist/3.0.1/dataset_info.json", "{"),
    ),
    Command("--out holds another run", "--out stopped"),
    Command("--out holds other files", "--out corrupt"),
    Command("--out cannot be written", "--out file/run", lambda: with_file("file", "")),
    Command("another process is at work there", "--out busy", another_process),
    Command("no run to resume", "--resume nowhere"),
    Command("resumed with another W", "--resume stopped --workers 2"),
    Command("resumed with another model", "--resume stopped --model resnet18"),
    Command("resumed with another dataset", "--resume stopped --dataset mnist"),
    Command("resumed with another protocol", "--resume stopped --protocol all_reduce"),
    Command("resumed with fewer epochs", "--resume stopped --epochs 1"),
    Command("resumed after its end", "--resume finished"),
    Command(
        "config.json was damaged",
        "--resume edited-1",
        lambda: changed("edited-1", workers="four"),
    ),
    Command(
        "config.json was edited to other settings",
        "--resume edited-2",
        lambda: changed("edited-2", p=0.25, seed=1),
    ),
    Command("resumed under another setting of JAX", "--resume stopped", with_64_bits),
    Command("torn checkpoint", "--resume torn-1", lambda: torn("torn-1", 2), says="warning: "),
    Command("all checkpoints torn", "--resume torn-2", lambda: torn("torn-2", 1, 2), says="warning: "),
    Command("checkpoint that cannot be read", "--resume broken", lambda: unreadable("broken")),
    Command("checkpoints whose file system is away", "--resume away", lambda: away("away")),
    Command("a file where the checkpoints were", "--resume blocked", lambda: blocked("blocked")),
    Command("full disk", f"{SMALL} --out full", full_disk),
    Command("checkpoints at less than no epoch", "--checkpoint-every -1"),
    Command("SIGINT or SIGTERM", f"{SMALL} --out interrupted", lambda: signalled(train)),
    Command("a second SIGINT", f"{SMALL} --out twice", signalled_twice, says="error: stopped"),
    Command("drop rate outside [0, 1)", "--drop-rate 1"),
    Command("drop rate where all wait for all", "--drop-rate 0.1 --protocol all_reduce"),
    Command("isolation where all wait for all", "--on-nan isolate --protocol all_reduce"),
    Command("NaN, and --on-nan stop", f"{SMALL} --out nan-1", is_sick=True),
    Command(
        "NaN, and --on-nan isolate",
        f"{SMALL} --on-nan isolate --out nan-2",
        says="worker ",
        is_sick=True,
    ),
    Command(
        "NaN, and --on-nan restart",
        f"{SMALL} --on-nan restart --out nan-3",
        says="worker ",
        is_sick=True,
    ),
    Command(
        "NaN, and --on-nan continue",
        f"{SMALL} --on-nan continue --p 0 --out nan-4",
        says="worker ",
        is_sick=True,
    ),
    Command("NaN in all workers", f"{SMALL} --on-nan isolate --learning-rate 1e30 --out nan-5"),
    Command("unknown table", "mnist", main=table.main),
    Command("unknown row", "mnist_protocols --rows EG-5", main=table.main),
    Command(
        "damaged record",
        "mnist_protocols --rows NC-4 --epochs 1",
        lambda: with_file(RECORD, "{"),
        main=table.main,
    ),
    Command(
        "record of other settings",
        "mnist_protocols --rows EG-4-0.125 --epochs 1",
        of_other_settings,
        main=table.main,
    ),
)


def said_by(call: Call) -> str:
    try:
        call.function()
    except (TypeError, ValueError) as error:
        return " ".join(f"{type(error).__name__}: {error}".split())
    raise AssertionError(f"{call.what}: nothing was said")


def said_by_command(command: Command, programs: Any) -> str:
    """What is printed, in one line, without the folder that it was run in and tyro's frame."""
    shown, message = io.StringIO(), io.StringIO()
    argv = [command.main.__module__, *shlex.split(command.arguments)]
    with (
        mock.patch.object(sys, "argv", argv),
        mock.patch.object(run, "Programs", return_value=programs[command.is_sick]),
        contextlib.redirect_stdout(shown),
        contextlib.redirect_stderr(message),
        command.around(),
        contextlib.suppress(SystemExit),
    ):
        command.main()
    text = shown.getvalue() + message.getvalue()
    lines = [line for line in text.splitlines() if line.startswith(command.says)]
    assert lines, f"{command.what}: it was not said in {text!r}"
    without_frame = re.sub(r"[╭╮╰╯│─]+|-{4,}|\|", " ", " ".join(lines))
    return " ".join(without_frame.replace(f"{Path.cwd()}/", "").split())


def document() -> str:
    """docs/errors.md, from what is said here and now."""
    parts = [HEAD, "\n## The library\n", *_table((c.what, c.code, said_by(c)) for c in CALLS)]
    digits = data.load("digits")
    programs = program.Programs(digits), with_a_sick_worker(program.Programs(digits))
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder), _eight_devices():
        for name in ("stopped", "finished"):
            _quietly(f"{SMALL} --out {name}", programs[0])
        Path("stopped", "result.json").unlink()
        lines = [
            (c.what, f"{_shortly(c.main)} {c.arguments}", said_by_command(c, programs))
            for c in COMMANDS
        ]
    return "".join([*parts, "\n## The commands\n", *_table(lines)])


def _table(lines: Any) -> Iterator[str]:
    yield "\n| what | how | message |\n| --- | --- | --- |\n"
    for what, how, message in lines:
        yield f"| {what} | `{how}` | {message.replace('|', chr(92) + '|').replace('<', '&lt;')} |\n"


def _shortly(main: Callable[[], None]) -> str:
    return main.__module__.removeprefix("experiments.")


def _quietly(arguments: str, programs: Any) -> None:
    with (
        mock.patch.object(sys, "argv", ["train", *arguments.split()]),
        mock.patch.object(run, "Programs", return_value=programs),
        contextlib.redirect_stdout(io.StringIO()),
    ):
        train.main()


def _eight_devices() -> Any:
    return mock.patch.dict(os.environ, {"JAX_NUM_CPU_DEVICES": "8", "COLUMNS": "200"})


if __name__ == "__main__":
    jax.config.update("jax_num_cpu_devices", 8)
    DOCUMENT.write_text(document(), encoding="utf-8")
