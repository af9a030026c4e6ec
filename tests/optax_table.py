"""Optax's wrappers and a protocol: what works, and which way round. docs/adopting.md shows these rows.

In each, `sgd` is the local optimizer, `gossip` a protocol, and `draw` its law of rounds.
"""

from typing import NamedTuple


class Row(NamedTuple):
    """One cell of the table: an expression that is an optimizer, and what comes of it."""

    wrapper: str
    expression: str
    outcome: str  # "agree", "apart" or "refused"
    remark: str


ROWS = (
    Row(
        "clipping, weight decay, schedules",
        "decentralise(optax.chain(optax.clip(1.0), sgd), gossip, draw)",
        "agree",
        "part of the local optimizer",
    ),
    Row(
        "scale",
        "optax.chain(decentralise(optax.identity(), gossip, draw), optax.scale(-0.05))",
        "apart",
        "the exchange is scaled by -0.05, too; have the learning rate inside",
    ),
    Row(
        "sgd",
        "optax.chain(decentralise(optax.identity(), gossip, draw), sgd)",
        "apart",
        "gossip before the optimizer pushes replicas apart",
    ),
    Row(
        "MultiSteps",
        "decentralise(optax.MultiSteps(sgd, 2).gradient_transformation(), gossip, draw)",
        "agree",
        "rounds at every mini-step",
    ),
    Row(
        "MultiSteps",
        "optax.MultiSteps(decentralise(sgd, gossip, draw), 2).gradient_transformation()",
        "agree",
        "rounds at every second; under vmap silent ones cost an exchange",
    ),
    Row(
        "masked",
        "decentralise(sgd, lambda local: optax.chain(local, optax.masked(gossip, True)), draw)",
        "agree",
        "exchanges what the mask holds true for: adapters, a backbone",
    ),
    Row(
        "partition",
        "optax.partition({'all': decentralise(sgd, gossip, draw)}, 'all')",
        "agree",
        "one label may gossip and another train alone",
    ),
    Row(
        "inject_hyperparams",
        "decentralise(sgd, lambda local: optax.chain(local, injected(alpha=0.5)), draw)",
        "agree",
        "`injected = optax.inject_hyperparams(gj.elastic_gossip)`: α may follow a schedule",
    ),
    Row(
        "apply_if_finite",
        "decentralise(optax.apply_if_finite(sgd, 3), gossip, draw)",
        "agree",
        "around the whole, workers that disagree on it would wait for each other for ever",
    ),
    Row(
        "schedule_free",
        "optax.contrib.schedule_free(decentralise(sgd, gossip, draw), 0.05)",
        "agree",
        "evaluate with `schedule_free_eval_params`",
    ),
    Row(
        "schedule_free",
        "decentralise(optax.contrib.schedule_free(sgd, 0.05), gossip, draw)",
        "refused",
        "its second copy of the parameters, z, would drift apart",
    ),
    Row(
        "ema",
        "decentralise(optax.chain(sgd, optax.ema(0.5)), gossip, draw)",
        "agree",
        "of updates; a mean of parameters (`optax.incremental_update`) is kept beside, by each worker",
    ),
    Row(
        "lookahead",
        "optax.lookahead(decentralise(sgd, gossip, draw), 5, 0.5)",
        "agree",
        "fast parameters are exchanged",
    ),
    Row(
        "lookahead",
        "decentralise(optax.lookahead(sgd, 5, 0.5), gossip, draw)",
        "agree",
        "fast and slow ones are exchanged: twice the bytes",
    ),
    Row(
        "sam",
        "optax.contrib.sam(decentralise(sgd, gossip, draw), optax.sgd(0.05))",
        "agree",
        "each round is drawn, and its exchange made, at `sync_period` updates, and counts at the last",
    ),
    Row(
        "sam",
        "decentralise(optax.contrib.sam(sgd, optax.sgd(0.05)), gossip, draw)",
        "refused",
        "it goes back to parameters from before the exchange",
    ),
    Row(
        "split_real_and_imaginary",
        "optax.contrib.split_real_and_imaginary(decentralise(sgd, gossip, draw))",
        "agree",
        "complex parameters travel as two real ones",
    ),
    Row(
        "mechanize, madgrad",
        "decentralise(optax.contrib.mechanize(sgd), gossip, draw)",
        "refused",
        "parameters are computed anew from those at the start",
    ),
)

_SHOWN = {
    "agree": "works",
    "apart": "**wrong**: no error, replicas apart",
    "refused": "refused with an error",
}


def markdown() -> str:
    """The table as docs/adopting.md has it."""
    lines = ["| wrapper | | | |", "| --- | --- | --- | --- |"]
    for row in ROWS:
        lines.append(f"| {row.wrapper} | `{row.expression}` | {_SHOWN[row.outcome]} | {row.remark} |")
    return "\n".join(lines) + "\n"
