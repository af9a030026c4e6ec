"""Tables of text, and how they are written: Markdown, LaTeX, a terminal."""

import dataclasses
import fractions

from rich import box
from rich.console import Group
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

    def rich(self, width: int) -> Group:
        """For a terminal of so many characters: several tables, where the columns do not fit in one."""
        pages, room = [[0]], 0
        for column in range(1, len(self.header)):
            needed = self._width(column) + 2  # with what stands between two columns
            if (room < needed and len(pages[-1]) > 1) or column == 1:
                pages += [[0]] if len(pages[-1]) > 1 else []
                room = width - self._width(0)
            pages[-1].append(column)
            room -= needed
        tables = [self._page(columns, width) for columns in pages]
        tables[0].title, tables[0].title_justify = self.title or None, "left"
        tables[-1].caption, tables[-1].caption_justify = self.note or None, "left"
        return Group(*tables)

    def _width(self, column: int) -> int:
        """That of its widest cell, or of the widest word of its heading."""
        words = self.header[column].split() if column else [self.header[column]]
        return max(map(len, [*words, *(line[column] for line in self.lines)]))

    def _page(self, columns: list[int], width: int) -> RichTable:
        # Each column's width is said, since rich takes from cells, too, where headings are too long.
        whole = [max(self._width(column), len(self.header[column])) for column in columns]
        fits = sum(whole) + 2 * (len(columns) - 1) <= width
        widths = whole if fits else [self._width(column) for column in columns]
        table = RichTable(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
        for column, characters in zip(columns, widths, strict=True):
            justify = "right" if column else "left"
            table.add_column(self.header[column], justify=justify, width=characters)
        for line in self.lines:
            table.add_row(*(line[column] for column in columns))
        return table


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
