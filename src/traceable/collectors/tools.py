"""Command-line tools of NVIDIA's: where one is found, and how it is asked something.

What they are asked is `nsys_install` and `ncu_install`. Nothing here starts a program under a tool.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

from traceable.errors import CollectorError

TIMEOUT_SECONDS = 20
"""How long a question may take. `--version` and `--help` answer in well under a second; a broken install hangs."""

_PR_SET_PDEATHSIG = 1
"""Of prctl(2)."""


def find_tool(
    name: str, variable: str, patterns: Sequence[str], version: re.Pattern[str], missing: CollectorError
) -> tuple[Path, str]:
    """Return the executable to use, links not resolved, and its version.

    It is the one that the environment names, else the first that answers on PATH or in an install folder.

    Args:
        name: of the executable.
        variable: the environment variable that may name another.
        patterns: of the folders in which it may lie when it is not on PATH, globs from the root.
        version: finds it, as group 1, in what `--version` says.
        missing: raised where there is none.

    Raises:
        CollectorError: there is none, or none that answers.
    """
    named = os.environ.get(variable)
    if named:
        if not os.access(named, os.X_OK) or Path(named).is_dir():
            found = f"{variable}={named} is not an executable file"
            raise CollectorError("tool_not_executable", found, "correct it or unset it")
        return Path(named).absolute(), _version(named, version)
    failure: CollectorError | None = None
    for executable in _candidates(name, patterns):
        try:
            return executable, _version(str(executable), version)
        except CollectorError as error:  # noqa: PERF203 - one broken install must not hide the next
            failure = failure or error
    raise failure or missing


def find_folders(patterns: Sequence[str]) -> Iterator[Path]:
    """Yield the folders that match, the newest version of each pattern first."""
    for pattern in patterns:
        yield from sorted(
            Path("/").glob(pattern.lstrip("/")), key=lambda path: parse_version_numbers(str(path)), reverse=True
        )


def parse_version_numbers(text: str) -> list[int]:
    """Return the numbers in a version, or in a path that holds one, for comparison."""
    return [int(number) for number in re.findall(r"\d+", text)]


def run_tool(
    words: Sequence[str], *, no_timeout: bool = False, variables: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a tool to its end, or to ours, and return what it said.

    Args:
        words: the command line.
        no_timeout: let it take as long as it takes, and not `TIMEOUT_SECONDS` at most.
        variables: what to set in its environment.

    Raises:
        CollectorError: it can't be executed, or takes too long.
    """
    seconds = None if no_timeout else TIMEOUT_SECONDS
    try:
        return subprocess.run(
            words,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            encoding="utf-8",
            errors="replace",
            timeout=seconds,
            check=False,
            env={**os.environ, **(variables or {})},
            # A session of its own: a Ctrl+C is for the launcher, which decides.
            start_new_session=True,
            preexec_fn=partial(die_with_parent, os.getpid()),
        )
    except subprocess.TimeoutExpired:
        found = f"{' '.join(words)} does not answer within {seconds} s"
        raise CollectorError("tool_timeout", found, "reinstall it") from None
    except OSError as error:
        found = f"{words[0]} can't be executed: {error.strerror}"
        raise CollectorError("tool_not_started", found, "reinstall it") from None


def die_with_parent(parent: int) -> None:
    """Have this process killed when the one that started it ends, however that is.

    Args:
        parent: the process id of that one, which may have ended already.
    """
    with contextlib.suppress(ImportError, OSError, AttributeError):  # a Python without ctypes, another system
        import ctypes

        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def extract_first_line(answer: subprocess.CompletedProcess[str]) -> str:
    """Return the first line that says something, for a message of one line."""
    lines = _lines(answer)
    return lines[0][:300] if lines else "it says nothing"


def quote_last_line(answer: subprocess.CompletedProcess[str]) -> str:
    """Return the last line that says something, quoted, for a message of one line."""
    lines = _lines(answer)
    return repr(lines[-1][:300]) if lines else "nothing"


def _lines(answer: subprocess.CompletedProcess[str]) -> list[str]:
    return [line.strip() for line in (answer.stdout + "\n" + answer.stderr).splitlines() if line.strip()]


def _candidates(name: str, patterns: Sequence[str]) -> Iterator[Path]:
    on_path = shutil.which(name)
    if on_path:
        yield Path(on_path).absolute()
    for folder in find_folders(patterns):
        if os.access(folder / name, os.X_OK) and (folder / name).is_file():
            yield folder / name


def _version(executable: str, version: re.Pattern[str]) -> str:
    answer = run_tool([executable, "--version"])
    match = version.search(answer.stdout)
    if answer.returncode or match is None:
        found = f"{executable} --version ends with {answer.returncode} and says {quote_last_line(answer)}"
        raise CollectorError("tool_failed", found, "reinstall it")
    return match.group(1)
