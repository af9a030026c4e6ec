"""Tables of text, and how they are written: Markdown, LaTeX, a terminal."""

import dataclasses
import fractions

from rich import box
from rich.table import Table as RichTable


@dataclasses.dataclass(frozen=True)
class Grid:
    """A table of text."""

    title: str
    header: tuple[str, ...]
    lines: tuple[tuple[str, ...], ...]
    note: str = ""

    def markdown(self) -> str:
        """As GitHub shows it; the first column to the left, the others to the right."""
        rule = ["---"] + ["---:"] * (len(self.header) - 1)
        lines = [self.header, rule, *([_escaped(cell) for cell in line] for line in self.lines)]
        text = "\n".join(f"| {' | '.join(line)} |" for line in lines)
        return text + (f"\n\n{self.note}" if self.note else "")

    def latex(self) -> str:
        """A `table` environment with booktabs' rules."""
        rows = [" & ".join(_in_latex(cell) for cell in line) + r" \\" for line in self.lines]
        return "\n".join(
            [
                "% Made by python -m experiments.report; needs booktabs.",
                r"\begin{table}",
                r"\centering",
                rf"\caption{{{_in_latex(self.title)}. {_in_latex(self.note)}}}",
                rf"\begin{{tabular}}{{l{'r' * (len(self.header) - 1)}}}",
                r"\toprule",
                " & ".join(_in_latex(cell) for cell in self.header) + r" \\",
                r"\midrule",
                *rows,
                r"\bottomrule",
                r"\end{tabular}",
                r"\end{table}",
                "",
            ]
        )

    def rich(self) -> RichTable:
        """For a terminal."""
        table = RichTable(title=self.title, title_justify="left", box=box.SIMPLE_HEAD, show_edge=False)
        for index, heading in enumerate(self.header):
            table.add_column(heading, justify="right" if index else "left", no_wrap=index == 0)
        for line in self.lines:
            table.add_row(*line)
        table.caption, table.caption_justify = self.note or None, "left"
        return table


def points(share: float) -> str:
    """A difference of accuracies in percentage points."""
    return f"{100 * share:+.2f}".replace("-", "−")


def percent(share: float) -> str:
    """A percentage of two digits, or of three where it is 10 or more."""
    return f"{100 * share:.{3 if share >= 0.0995 else 2}g}%"


def fraction(p: float) -> str:
    """A probability as one would write it: 1/32."""
    return str(fractions.Fraction(p).limit_denominator(1_000_000))


def _escaped(cell: str) -> str:
    return cell.replace("|", r"\|")


_LATEX = {
    "\\": r"\textbackslash{}",
    "%": r"\%",
    "&": r"\&",
    "_": r"\_",
    "#": r"\#",
    "α": r"$\alpha$",
    "τ": r"$\tau$",
    "θ": r"$\theta$",
    "±": r"$\pm$",
    "×": r"$\times$",
    "−": r"$-$",
    "–": "--",
    "†": r"$^\dagger$",
}


def _in_latex(text: str) -> str:
    return "".join(_LATEX.get(character, character) for character in text)
