"""The HTML report: one file that opens from disk, without a network."""

from __future__ import annotations

from pathlib import Path

from traceable.errors import UsageError

_MARK = b'<meta name="generator" content="traceable">'
"""In the first line of the head of every page (`page.html.j2`)."""


def check_replaceable(path: Path) -> None:
    """Raise `UsageError` for a file that exists and is not a page: a recording must not be lost to a mistyped name."""
    try:
        if not path.is_file() or path.stat().st_size == 0:
            return
        with path.open("rb") as file:
            is_page = _MARK in file.read(512)
    except OSError as error:
        raise UsageError(
            "file_not_replaced", f"{path} can't be replaced: {error.strerror}", "name another file"
        ) from None
    if not is_page:
        raise UsageError(
            "output_exists", f"{path} exists and is not a page that traceable wrote", "name another file, or delete it"
        )
