"""Python's own command line, `python [options] [script | -m module | -c code] [arguments]`, as Python reads it."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import NamedTuple

SCRIPT, MODULE, CODE = "script", "module", "code"
_WITH_VALUE = "WX"


class PythonCommand(NamedTuple):
    """The parts of a command line.

    Attributes:
        options: the words before the program, as typed (`-uB -X dev`), without `-m` and `-c`.
        letters: the options of one letter in them, without those that have a value.
        kind: `script`, `module` or `code`.
        program: the script, the module or the code; `-` for standard input.
        arguments: those of the program.
    """

    options: tuple[str, ...]
    letters: str
    kind: str
    program: str
    arguments: tuple[str, ...]

    @property
    def name(self) -> str:
        """A short name of the program: `train` for `/srv/train.py`, the module's name, `python` for code."""
        if self.kind == MODULE:
            return self.program
        if self.kind == CODE or self.program == "-":
            return "python"
        return self.program.replace("\\", "/").rstrip("/").rpartition("/")[2].removesuffix(".py")


def parse_python_command(words: Sequence[str]) -> PythonCommand:
    """Parse a command line, of which the first word is the interpreter.

    >>> parse_python_command(["python", "-uBm", "http.server", "80"])
    PythonCommand(options=('-uB',), letters='uB', kind='module', program='http.server', arguments=('80',))
    """
    rest = iter(words[1:])
    options: list[str] = []
    letters = ""
    for word in rest:
        if word == "--":
            return PythonCommand(tuple(options), letters, SCRIPT, next(rest, "-"), tuple(rest))
        if word == "-" or not word.startswith("-"):
            return PythonCommand(tuple(options), letters, SCRIPT, word, tuple(rest))
        if word.startswith("--"):  # --check-hash-based-pycs, which takes a word
            options += [word, *islice(rest, 1)]
            continue
        for position, letter in enumerate(word[1:], start=1):
            if letter in "mc":
                options += [word[:position]] if position > 1 else []
                program = word[position + 1 :] or next(rest, "")
                return PythonCommand(tuple(options), letters, MODULE if letter == "m" else CODE, program, tuple(rest))
            if letter in _WITH_VALUE:
                options += [word] if position < len(word) - 1 else [word, *islice(rest, 1)]
                break
            letters += letter
        else:
            options.append(word)
    return PythonCommand(tuple(options), letters, SCRIPT, "-", ())
