"""The option --again of `run`: the command line of an earlier run, taken from its manifest, and what is not as it was.

What is given beside it overrides: options one by one, the program with all of its arguments.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from traceable.errors import Message, TraceError, UsageError
from traceable.launch import provenance, reports, target, windows
from traceable.protocol import redact

OPTION = "--again"
Split = Callable[[Sequence[str]], tuple[list[list[str]], list[str]]]
"""Splits a command line into options, each with its value, and the program."""

_NOT_TAKEN = frozenset({"output", "force", "dry_run", "again"})
"""What says where a run goes, and is of that run alone."""

_OF_SHELLS = frozenset({"_", "PWD", "OLDPWD", "SHLVL", "LINES", "COLUMNS"})
_NAMES_MAX = 12
_NAME_A_RUN = "give the directory that `traceable run` named"


def add_again_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the option."""
    parser.add_argument(
        OPTION,
        metavar="RUN_DIR",
        type=Path,
        help="run what this run ran, as it ran it; options beside it override (traceable help run)",
    )


def completed(
    parser: argparse.ArgumentParser, options: list[list[str]], program: list[str], split: Split
) -> tuple[list[list[str]], list[str]]:
    """Return the options and the program, with those of the run that `--again` names where it is there.

    Args:
        parser: of the verb.
        options: as they were typed, each with its value.
        program: as it was typed; empty for none.
        split: how to split the older command line.

    Raises:
        UsageError: there is no such run, its command line is not one of `traceable run`, or not all of it was written.
    """
    named = [words for words in options if _destination(parser, words) == "again"]
    if not named:
        return options, program
    name = named[-1][0].partition("=")[2] or "".join(named[-1][1:])
    if not name:
        raise UsageError("value_missing", f"{OPTION} needs a run directory", _NAME_A_RUN)
    directory = Path(name)
    manifest = _manifest(directory)
    words = [str(word) for word in manifest.get("argv") or ()][1:]
    if words[:1] != ["run"]:
        raise UsageError(
            "run_not_repeatable",
            f"the run in {directory} was not started by `traceable run`",
            "type its command line anew",
        )
    before, ran = split(words[1:])
    given = {_destination(parser, one) for one in options}
    kept = [one for one in before if _destination(parser, one) not in given | _NOT_TAKEN and not _names_a_file(one)]
    kept += _of_environment(manifest, given | {_destination(parser, one) for one in before})
    hidden = _hidden(word for words in (*kept, () if program else ran) for word in words)
    if hidden:
        raise UsageError(
            "secret_not_recorded",
            f"the value of {hidden} in the command line of {directory} was not written, as it is a secret",
            f"give the program anew: traceable run {OPTION} {directory} PROGRAM ARGUMENTS",
        )
    return [*kept, *options], program or ran


def _destination(parser: argparse.ArgumentParser, words: Sequence[str]) -> str:
    options = parser._option_string_actions  # argparse offers no public way to ask
    action = options.get(words[0].partition("=")[0]) or options.get(words[0][:2])
    return action.dest if action else words[0]


def _names_a_file(words: Sequence[str]) -> bool:
    """Whether an option names the file that its own run wrote."""
    return words[0].startswith(("--json=", "--csv="))


def _of_environment(manifest: Mapping[str, Any], given: set[str]) -> list[list[str]]:
    """What that run did not get by options: its collector, chosen for it, and steps of the environment."""
    found = []
    name = (manifest.get("collector") or {}).get("name")
    if "collector" not in given and name:
        found.append(["--collector", str(name)])
    asked = manifest.get(windows.WINDOW_KEY) or {}
    if "steps" not in given and asked.get("windows"):
        found.append(["--steps", str(asked["requested"])])
    return found


def _hidden(words: Any) -> str | None:
    """Return what stands before the first value that was not written; None where all were."""
    last = "a word"
    for word in words:
        if redact.REDACTED in word:
            return word.partition(redact.REDACTED)[0].rstrip("=: \"'") or last
        last = word
    return None


def enter(directory: Path) -> list[str]:
    """Change to the working directory of that run, and return a sentence for each thing that is not as it was.

    Raises:
        UsageError: there is no such run, or that directory is gone.
    """
    manifest = _manifest(directory)
    folder = str(manifest.get("cwd"))
    here = os.getcwd()  # noqa: PTH109 - it is compared with what the manifest says
    try:
        os.chdir(folder)
    except OSError as error:
        raise UsageError(
            "working_directory_missing",
            f"the working directory of that run, {folder}, can't be entered: {error.strerror}",
            "make it",
        ) from None
    where = [f"in {folder}, as that run"] if folder != here else []
    return [*where, *_of_code(manifest), *_of_interpreter(manifest), *_of_machine(manifest), *_of_variables(manifest)]


def _manifest(directory: Path) -> Mapping[str, Any]:
    """Return the manifest of a run; where a directory holds its ranks that of the first: all had one command line."""
    try:
        manifest = reports.find_manifest(directory)
    except TraceError as error:
        raise UsageError(error.code, error.problem, _NAME_A_RUN) from None
    if manifest is None:
        raise UsageError("not_a_run_dir", f"{directory} is not a run directory", _NAME_A_RUN)
    return manifest


def _of_code(manifest: Mapping[str, Any]) -> list[Message]:
    then, now = manifest.get("git"), provenance.read_git_state()
    if not then:
        changed = Message("git_repository_changed", "that run was not in a git repository, and this one is")
        return [changed] if now else []
    said = []
    if not now or now["commit"] != then.get("commit"):
        is_now = f"the code is now at {now['commit'][:12]}" if now else "there is no git repository now"
        said.append(Message("commit_changed", f"that run was of commit {str(then.get('commit'))[:12]}, and {is_now}"))
    if then.get("dirty"):
        said.append(
            Message("changes_not_recorded", "that run had changes that were not committed, which are not known")
        )
    elif now and now["dirty"]:
        said.append(
            Message("changes_not_committed", "there are changes now that are not committed, and that run had none")
        )
    return said


def _of_interpreter(manifest: Mapping[str, Any]) -> list[Message]:
    now = provenance.get_versions()
    then = {"python": (manifest.get("python") or {}).get("version"), **(manifest.get("versions") or {})}
    said = [
        Message("version_changed", f"{name} was {then[name] or 'absent'} and is {now.get(name) or 'absent'}")
        for name in then
        if then[name] != now.get(name)
    ]
    ran = manifest.get("target") or {}
    if ran.get("kind") != target.COMMAND:
        words = list(ran.get("command") or ())
        flags = words[1 : len(words) - len(ran.get("arguments") or ()) - (1 if ran.get("kind") == target.SCRIPT else 2)]
        if flags != target.get_interpreter_flags():
            were = f"Python's own options were {' '.join(flags) or 'none'}: write them before -m traceable"
            said.append(Message("python_options_changed", were))
    return said


def _of_machine(manifest: Mapping[str, Any]) -> list[Message]:
    then = (manifest.get("host") or {}).get("name")
    changed = Message("host_changed", f"that run was on {then}, and this is {os.uname().nodename}")
    return [changed] if then != os.uname().nodename else []


def _of_variables(manifest: Mapping[str, Any]) -> list[Message]:
    then, now = set(manifest.get("environment_names") or ()) - _OF_SHELLS, set(os.environ) - _OF_SHELLS
    said = []
    if then - now:
        said.append(
            Message("variables_missing", f"variables that it had and that are not set now: {_listed(then - now)}")
        )
    if now - then:
        said.append(Message("variables_added", f"variables that it had not: {_listed(now - then)}"))
    return said


def _listed(names: set[str]) -> str:
    shown = sorted(names)
    more = f" and {len(shown) - _NAMES_MAX} more" if len(shown) > _NAMES_MAX else ""
    return ", ".join(shown[:_NAMES_MAX]) + more
