"""Texts of a trace made safe and short enough to print. Names come from any program: anything may be in one."""

from __future__ import annotations

LONGEST_NAME = 200


def printable(name: str) -> str:
    """Return a name as one line of at most 200 characters that is safe to print."""
    if len(name) > LONGEST_NAME:
        name = name[:LONGEST_NAME] + "..."
    return escaped(name) or "(no name)"


def escaped(text: str) -> str:
    r"""Return a text with control characters and other invisible ones as escapes.

    Examples:
        >>> escaped("a\x1b[31mb")
        'a\\x1b[31mb'
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)


def encodable(text: str, encoding: str | None) -> str:
    """Return a text with escapes for what `encoding` (None: UTF-8) lacks: Greek on an ASCII terminal."""
    encoding = encoding or "utf-8"
    return text.encode(encoding, "backslashreplace").decode(encoding)


def width_of(text: str) -> int:
    """Return how many cells of a terminal a text takes: Chinese takes two a character."""
    if text.isascii():
        return len(text)
    # Loaded for such text alone: a start without it is 10 ms faster.
    from rich.cells import cell_len

    return cell_len(text)


def cut(text: str, width: int) -> str:
    """Return a text in at most `width` cells; one that is cut ends with two dots.

    Examples:
        >>> cut("forward", 7), cut("forward", 6)
        ('forward', 'forw..')
    """
    if width_of(text) <= width:
        return text
    dots = ".." if width > 2 else ""
    if text.isascii():
        return text[: width - len(dots)] + dots
    from rich.cells import set_cell_size

    return set_cell_size(text, width - len(dots)) + dots
