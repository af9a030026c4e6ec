"""What a protocol is to those who know it by name only: a command line, a report, a benchmark.

Every file of `gossip_jax/protocols` has a `SPEC` beside its factory, and `gossip_jax.protocols.SPECS`
has all of them by name. Nobody who runs or shows protocols needs another list of them.
"""

import dataclasses
import inspect
from collections.abc import Callable, Mapping
from typing import Any, Literal

import optax

from gossip_jax.delayed import InFlight, delayed
from gossip_jax.rounds import Round
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
DELAYED = Option(
    name="delayed",
    kind=bool,
    help="What is received arrives one update late, so that nothing waits for it.",
    default=False,
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
      rounds: what it needs of rounds: the step at most, peers, pairs, a graph, or a graph that never
        changes.
      traffic: what it sends over stacked rounds: `(rounds, params, **compiled options) -> Traffic`.
      options: what a user may set.
      make: makes it of the options, where that is not the factory itself.
      defaults: of settings that are not the protocol's own, such as those of its rounds, by name.
      averages_gradients: whether workers that start equal stay equal.
      is_of_every_update: whether it is right only where workers talk at every update.
      can_be_late: whether it can be `delayed`; this is then an option, too.
      conserved: types of state whose sum over workers means something, so that a worker which starts
        again from another's replica keeps its own.
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
    rounds: Literal["none", "peers", "pairs", "graph", "fixed graph"]
    traffic: Callable[..., Traffic]
    options: tuple[Option, ...] = ()
    make: Callable[..., optax.GradientTransformationExtraArgs] | None = None
    defaults: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    averages_gradients: bool = False
    is_of_every_update: bool = False
    can_be_late: bool = False
    conserved: tuple[type, ...] = ()
    waits_for_all: bool = False

    def __post_init__(self):
        arguments = inspect.signature(self.make or self.factory).parameters
        for option in self.options:
            if option.name not in arguments:
                raise ValueError(
                    f"Spec: {self.name} has no argument {option.name!r}; it has {', '.join(arguments)}"
                )
        if self.can_be_late:
            object.__setattr__(self, "options", (*self.options, DELAYED))

    @property
    def name(self) -> str:
        """Of the protocol, and of its factory."""
        return self.factory.__name__

    @property
    def draws_rounds(self) -> bool:
        """Whether workers talk when the rounds say so, with the probability and the period of these."""
        return self.rounds != "none"

    @property
    def may_miss_workers(self) -> bool:
        """Whether workers can sit out updates, and sick ones be kept from the others."""
        return not self.waits_for_all and self.rounds != "fixed graph"

    @property
    def kept_at_restart(self) -> tuple[type, ...]:
        """The types of state that a worker keeps where the rest is copied from another one."""
        return (*self.conserved, InFlight) if self.can_be_late else self.conserved

    @property
    def traced(self) -> tuple[str, ...]:
        """The options that are values of the compiled program."""
        return tuple(option.name for option in self.options if option.is_traced)

    @property
    def compiled(self) -> tuple[str, ...]:
        """The options that are compiled in."""
        return tuple(option.name for option in self.options if not option.is_traced)

    def join(
        self, local: optax.GradientTransformation, **options: Any
    ) -> optax.GradientTransformationExtraArgs:
        """The local optimizer and the protocol, each in its place.

        Args:
          local: the local optimizer, with its learning rate.
          options: of the protocol, by name.
        """
        is_late = options.pop("delayed", False)
        protocol: Any = (self.make or self.factory)(**options)
        late: Any = delayed(protocol) if is_late else protocol
        return late.join(local)

    def count(self, rounds: Round, params: Any, **options: Any) -> Traffic:
        """What is sent over stacked rounds.

        Args:
          rounds: the rounds drawn.
          params: one worker's parameters, or their shapes and dtypes.
          options: of the protocol, those that are compiled in, by name.
        """
        options.pop("delayed", None)  # it is sent all the same
        return self.traffic(rounds, params, **options)
