"""What `run` and `doctor --report` share: saying why there is nothing to see, or less than there should be."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from traceable.cli.console import print_line
from traceable.errors import Message

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from traceable.checks.diagnosis import Diagnosis
    from traceable.launch.leak_check import Leak
    from traceable.recording import Recording

MAX_FINDINGS = 3
"""How many findings are said after a run."""

_SAID_BY_OTHERS = ("window_", "forked_child", "not_recorded", "no_report")
"""Causes that `run` has said by then: with the windows, with the ranks, as the problem of the run."""

_LOSS = {"everything": "all of it is missing", "part": "part is missing", "nothing": "nothing is missing"}


class RunDiagnosis:
    """The diagnosis of a run that is over. Whatever fails in it is said in one line and costs nothing else.

    Args:
        directory: the run directory.
        say: prints one line to the user.
    """

    def __init__(self, directory: Path, say: Callable[[str], None]) -> None:
        self._directory = directory
        self._say = say
        self._found: Diagnosis | None = None

    def __call__(self, recording: Recording | None, problem: Message | None = None) -> dict[str, Any]:
        """Diagnose, keep that in `run.json`, and return it as JSON has it; empty where that failed.

        Args:
            recording: what was read; None for nothing.
            problem: why nothing could be.
        """
        from traceable.checks import diagnosis
        from traceable.checks.case import build_run_case
        from traceable.errors import TraceError

        try:
            error = None
            if problem is not None:
                found, _, remedy = problem.partition("; ")
                error = TraceError(problem.code, found, remedy or "see `traceable help diagnosis`")
            self._found = diagnosis.diagnose(build_run_case(self._directory, recording, error), self._say)
            content = diagnosis.diagnosis_to_dict(self._found)
            diagnosis.write_diagnosis(content, self._directory)
        except Exception as error:  # noqa: BLE001 - the profile is worth more than what is said of it
            found = f"the run could not be diagnosed ({type(error).__name__}: {error})"
            self._say(Message("diagnosis_failed", found))
            return {}
        return content

    def report_problems(self) -> None:
        """Say what is wrong, in a few lines, or in none."""
        wrong = self._found.problems if self._found else ()
        fresh = [one for one in wrong if not one.cause.startswith(_SAID_BY_OTHERS)]
        # How much is missing is said with the profile; the fix is worth a line where nothing else knows why.
        if len(fresh) > 1:
            fresh = [one for one in fresh if one.cause != "ranges_missing"]
        for one in fresh[:MAX_FINDINGS]:
            self._say(Message(one.cause, f"{one.certainty}: {one.message} ({one.evidence[0]})"))
            self._say(f"  fix: {one.fix}")


def report_diagnosis(path: Path, *, as_json: bool) -> int:
    """Print the diagnosis of whatever `traceable report` reads; return 0 where nothing is wrong, else 1.

    Raises:
        TraceError: there is nothing of that name, or a run that is not over.
    """
    from traceable.checks import diagnosis
    from traceable.checks.case import open_case
    from traceable.cli.progress import Progress

    with Progress() as progress:
        progress(f"diagnosing {path}")
        with open_case(path) as case:
            found = diagnosis.diagnose(case)
        leaked = _leaks(path)
    if as_json:
        leaks = [one.message.as_dict for one in leaked]
        print(json.dumps({**diagnosis.diagnosis_to_dict(found), "path": str(path), "leaks": leaks}, indent=2))
    else:
        for line in (*_lines(found), *(f"leaks     {one.message.printed}" for one in leaked)):
            print_line(line)
    return 1 if found.problems else 0


def _leaks(path: Path) -> list[Leak]:
    """Return what of the environment is in the recording; nothing where that is no report of nsys's."""
    from traceable.errors import TraceableError
    from traceable.launch import leak_check

    try:
        return leak_check.find_leaks(path)
    except TraceableError:
        return []


def _lines(found: Diagnosis) -> list[str]:
    said: list[str] = []
    for one in found.findings:
        loss = _LOSS[one.loss] if (one.certainty, one.loss) != ("possible", "nothing") else "perhaps nothing is missing"
        said.append(f"{one.certainty:9} {one.cause}: {one.message} ({loss})")
        said += [f"          evidence: {evidence}" for evidence in one.evidence]
        said.append(f"          fix: {one.fix}")
    if not found.problems:
        said.append("no cause found")
    said += [f"ruled out {cause}: {why}" for cause, why in found.ruled_out]
    said += [f"failed    {cause}: {error}" for cause, error in found.failed_rules]
    if found.not_applicable:
        said.append(f"not known {', '.join(found.not_applicable)}")
    return said
