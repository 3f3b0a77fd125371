"""The one class tree of traceable's errors.

An error says what was found and what to do next, in one line; the command line prints that line and ends with
`exit_code`. It carries no traceback to the user: what deserves one is a fault of ours and is not wrapped here.
"""

from __future__ import annotations


class TraceableError(Exception):
    """A cause that the user can act on.

    Args:
        found: what is wrong, naming the file, option or process it was found in.
        remedy: the next thing to do, as an imperative clause. Printed after the cause.
    """

    exit_code = 2

    def __init__(self, found: str, remedy: str) -> None:
        super().__init__(found, remedy)
        self.found = found
        self.remedy = remedy

    def __str__(self) -> str:
        return f"{self.found}; {self.remedy}"


def one_line(error: BaseException) -> str:
    """Return an error of others, whose text may have many lines, by its class and the first line of its text."""
    words = next((line.strip() for line in str(error).splitlines() if line.strip()), "")
    return f"{type(error).__name__}: {words}" if words else type(error).__name__


class UsageError(TraceableError):
    """The command line asks for something that can't be done as it stands."""


class CollectorError(TraceableError):
    """A collector is missing, can't start, or left nothing to read."""


class TraceError(TraceableError):
    """A report can't be read as a trace."""


class UnanswerableError(TraceableError):
    """The trace does not hold what a question needs; the remedy says what to record next time."""
