"""After the process: tables to terminal, JSON, CSV, Markdown.

One file an output, `<name>_output.py`, and one line in OUTPUTS.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, cast

TYPE_CHECKING = False
if TYPE_CHECKING:
    from traceable.report.page import Page


@dataclass(frozen=True)
class Content:
    """What an output writes; each form is made when an output needs it.

    Attributes:
        document: makes the document, of plain values.
        table: makes the rows of one table and names its columns.
        text: writes what people read.
        raw: write texts as they were recorded, without escapes.
    """

    document: Callable[[], dict[str, Any]]
    table: Callable[[], tuple[Iterable[dict[str, Any]], Sequence[str]]]
    text: Callable[[Page], None]
    raw: bool = False


class Output(Protocol):
    """What the module of an output offers."""

    def render(self, content: Content) -> str:
        """Return the text, of whole lines."""
        ...


OUTPUTS = {
    "json": "print the report as JSON on stdout (traceable help report); =FILE writes a file and prints the tables",
    "csv": "print the table as CSV, every column; =FILE as above",
    "markdown": "print what a terminal shows as GitHub Markdown; =FILE as above",
}
"""Each output, which is an option `--<name>`, with its line in --help."""


def load_output(name: str) -> Output:
    """Return the output of this name."""
    return cast(Output, importlib.import_module(f"{__name__}.{name}_output"))
