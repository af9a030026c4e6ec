"""What a protocol is to those who know it by name only: a command line, a report, a benchmark.

Every file of `gossip_jax/protocols` has a `SPEC` beside its factory, and `gossip_jax.protocols.SPECS`
has all of them by name. Nobody who runs or shows protocols needs another list of them.
"""

import dataclasses
import inspect
from collections.abc import Callable
from typing import Any, Literal

import optax

from gossip_jax.traffic import Traffic


@dataclasses.dataclass(frozen=True, kw_only=True)
class Option:
    """A hyper-parameter of a protocol that a user may set: an argument of its factory.

    Args:
      name: of the argument.
      kind: its type as a command line reads it: `float`, `int`, `bool` or a `Literal`.
      help: a sentence on what it is.
      default: what it is where the user gives none; or a function of W that says so.
      shown: the default in words, where it is a function.
      is_traced: whether it is a value of the compiled program, so that one program serves all values.
        Such an option is handed to the factory as a float32 scalar; any other one is compiled in.
    """

    name: str
    kind: Any
    help: str
    default: Any = None
    shown: str = ""
    is_traced: bool = False

    def default_for(self, num_workers: int) -> Any:
        """What it is for W workers, where the user gives none."""
        return self.default(num_workers) if callable(self.default) else self.default


def moving_rate(default: float | Callable[[int], float], shown: str = "") -> Option:
    """The option α, a value of the program."""
    return Option(
        name="alpha",
        kind=float,
        help="The moving rate.",
        default=default,
        shown=shown or f"{default:g}",
        is_traced=True,
    )


WIRE_DTYPE = Option(
    name="wire_dtype",
    kind=Literal["bfloat16", "float16"],
    help="The type that parameters are sent in; their own where not given.",
)
PERIOD = Option(
    name="period",
    kind=int,
    help="The communication period: only every so many updates may workers communicate.",
    default=1,
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Spec:
    """What a protocol is to those who know it by name only.

    Args:
      factory: makes it of its options, by keyword; its name is the protocol's.
      label: its name in a figure.
      short: an abbreviation of that.
      summary: half a sentence on what workers do, for a command line's help.
      color: of its lines, as matplotlib names it.
      line: the style of its lines, likewise.
      place: whether it goes before the local optimizer or after it.
      rounds: what it needs of rounds: the step at most, peers, a graph, or a graph that never changes.
      traffic: what it sends over stacked rounds: `(rounds, params, **compiled options) -> Traffic`.
      options: what a user may set.
      waits_for_all: whether one that sits out would keep all others waiting, and a sick one reach all.

    Raises:
      ValueError: the factory has no argument of an option's name.
    """

    factory: Callable[..., optax.GradientTransformationExtraArgs]
    label: str
    short: str
    summary: str
    color: str
    line: str
    place: Literal["before", "after"]
    rounds: Literal["none", "peers", "graph", "fixed graph"]
    traffic: Callable[..., Traffic]
    options: tuple[Option, ...] = ()
    waits_for_all: bool = False

    def __post_init__(self):
        arguments = inspect.signature(self.factory).parameters
        for option in self.options:
            if option.name not in arguments:
                raise ValueError(
                    f"Spec: {self.name} has no argument {option.name!r}; it has {', '.join(arguments)}"
                )

    @property
    def name(self) -> str:
        """Of the protocol, and of its factory."""
        return self.factory.__name__

    @property
    def draws_rounds(self) -> bool:
        """Whether workers talk when the rounds say so, with the probability and the period of these."""
        return self.rounds != "none"

    @property
    def traced(self) -> tuple[str, ...]:
        """The options that are values of the compiled program."""
        return tuple(option.name for option in self.options if option.is_traced)

    @property
    def compiled(self) -> tuple[str, ...]:
        """The options that are compiled in."""
        return tuple(option.name for option in self.options if not option.is_traced)

    def chain(
        self, local: optax.GradientTransformation, **options: Any
    ) -> optax.GradientTransformationExtraArgs:
        """The local optimizer and the protocol, each in its place."""
        protocol = self.factory(**options)
        return optax.chain(protocol, local) if self.place == "before" else optax.chain(local, protocol)
