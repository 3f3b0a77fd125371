"""Python's own command line, as Python reads it."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from traceable.protocol.python_command import CODE, MODULE, SCRIPT, parse_python_command


@pytest.mark.parametrize(
    ("words", "options"),
    [
        (["-m", "traceable", "run", "-u"], []),
        (
            ["-u", "-X", "dev", "-Xutf8", "-W", "error", "-m", "traceable"],
            ["-u", "-X", "dev", "-Xutf8", "-W", "error"],
        ),
        (["-uBm", "traceable", "-O"], ["-uB"]),
        (["-OOWignore", "-I", "/bin/traceable", "run", "-s"], ["-OOWignore", "-I"]),
        (["-BW", "ignore", "-c", "code"], ["-BW", "ignore"]),
        (["--check-hash-based-pycs", "always", "-P", "-m", "x"], ["--check-hash-based-pycs", "always", "-P"]),
        ([], []),
    ],
)
def test_the_options_are_those_that_were_typed(words: list[str], options: list[str]) -> None:
    assert list(parse_python_command(["python", *words]).options) == options


@pytest.mark.parametrize(
    ("words", "letters"),
    [
        (["-uBm", "x", "-O"], "uB"),
        (["-OOWI", "-I", "x.py", "-s"], "OOI"),
        (["-X", "dev", "-W", "ignore", "-S", "-c", "1"], "S"),
        (["-mI"], ""),
        (["--check-hash-based-pycs", "always", "-E", "x"], "E"),
    ],
)
def test_the_letters_are_the_options_without_a_value(words: list[str], letters: str) -> None:
    assert parse_python_command(["python", *words]).letters == letters


@pytest.mark.parametrize(
    ("words", "kind", "program", "arguments", "name"),
    [
        (["train.py", "--lr", "1"], SCRIPT, "train.py", ("--lr", "1"), "train"),
        (["-u", "-X", "dev", "/srv/train.py"], SCRIPT, "/srv/train.py", (), "train"),
        (["-Wd", "-m", "package.module", "-c"], MODULE, "package.module", ("-c",), "package.module"),
        (["-mpackage"], MODULE, "package", (), "package"),
        (["-uc", "pass", "-m"], CODE, "pass", ("-m",), "python"),
        (["-cpass"], CODE, "pass", (), "python"),
        (["/venv/bin/gunicorn", "app:app"], SCRIPT, "/venv/bin/gunicorn", ("app:app",), "gunicorn"),
        (["--", "-odd.py", "x"], SCRIPT, "-odd.py", ("x",), "-odd"),
        (["-", "x"], SCRIPT, "-", ("x",), "python"),
        ([], SCRIPT, "-", (), "python"),
        (["-m"], MODULE, "", (), ""),
    ],
)
def test_the_program_and_its_arguments(
    words: list[str], kind: str, program: str, arguments: tuple[str, ...], name: str
) -> None:
    command = parse_python_command(["python", *words])
    assert (command.kind, command.program, command.arguments, command.name) == (kind, program, arguments, name)


PRINT = "import json, sys; print(json.dumps([sys.orig_argv, sys.argv, sys._xoptions, sys.warnoptions]))"


@pytest.mark.parametrize(
    "options",
    [["-uBX", "dev", "-Werror"], ["-W", "error", "-Xdev"], ["--check-hash-based-pycs", "always", "-BXdev", "-Werror"]],
)
def test_it_is_read_as_python_reads_it(options: list[str]) -> None:
    words = [sys.executable, *options, "-c", PRINT, "-c", "x"]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    original, arguments, *given = json.loads(done.stdout)
    command = parse_python_command(original)
    assert command[2:] == (CODE, PRINT, tuple(arguments[1:]))
    assert list(command.options) == options
    assert given == [{"dev": True}, ["default", "error"]]
