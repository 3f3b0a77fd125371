"""Say what `traceable run` will find here, and what to do about what it won't: before the first run.

    traceable doctor [-o DIR] [--json]
    traceable doctor --report PATH [--json]

Looks at Python, nsys, ncu, the driver and the GPUs, space and permissions, and records and reads back a test program
with each collector. Takes a few seconds, 15 at most. The exit code is 0 where a run with default options lacks nothing
(a note names what only other options need), 1 with warnings (runs are recorded, and something named is missing), 2 with
problems (what is installed does not work). traceable help doctor

With --report, say instead why a run or a report holds nothing, or less than it should. traceable help diagnosis
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from traceable.checks import doctor
from traceable.checks.finding import STATES, Finding, worst_state
from traceable.cli import diagnosis
from traceable.cli.console import print_line
from traceable.cli.progress import Progress
from traceable.protocol.environment import escape_unprintable

# Not report.terminal, which needs numpy: that it is missing is what is to be said.
from traceable.report.layout import get_line_width, wrap_text
from traceable.report.text import escape_unencodable

SCHEMA = "traceable.doctor/1"
MIN_WRAP_WIDTH = 20
"""In fewer cells than these nothing is wrapped."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what may follow the verb."""
    parser.add_argument("-o", "--output", metavar="DIR", type=Path, help="output directory (default: traceable-runs)")
    parser.add_argument(
        "--report",
        metavar="PATH",
        type=Path,
        help="diagnose a run directory, a .nsys-rep, .sqlite or torch.profiler trace instead of this machine",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object, with the evidence of each line")


def run(arguments: argparse.Namespace) -> int:
    """Print the lines and return the exit code."""
    if arguments.report is not None:
        return diagnosis.report_diagnosis(arguments.report, as_json=arguments.json)
    try:
        with Progress() as progress:
            progress("recording a test program with each collector")
            findings = doctor.run_checks(arguments.output)
    except KeyboardInterrupt:
        return 130
    state = worst_state(findings)
    if arguments.json:
        print(json.dumps({"schema": SCHEMA, "state": state, "checks": [_content(one) for one in findings]}, indent=2))
    else:
        _print(findings)
    return STATES[state]


def _content(finding: Finding) -> dict[str, object]:
    said = finding.result
    return {
        "name": finding.name,
        "state": said.state,
        "code": said.message.code,
        "message": said.message,
        "fix": said.fix,
        "evidence": dict(said.evidence),
    }


def _print(findings: Sequence[Finding]) -> None:
    name_width, state_width = max(len(one.name) for one in findings), max(map(len, STATES))
    for one in findings:
        beside = f"{one.result.state.ljust(state_width)}  {one.name.ljust(name_width)}  "
        # What is well is an answer and no message.
        _paragraph(beside, one.result.message.printed if one.result.fix else one.result.message)
        if one.result.fix:
            _paragraph(" " * len(beside), f"fix: {one.result.fix}")
    counts = {state: sum(one.result.state == state for one in findings) for state in STATES}
    print_line()
    print_line(", ".join(f"{count} {_counted(state, count)}" for state, count in counts.items() if count))


def _paragraph(beside: str, text: str) -> None:
    """Print a text beside what stands in its first line only, wrapped where a terminal is wide enough for that."""
    text = escape_unencodable(escape_unprintable(text), sys.stdout.encoding)
    width = (get_line_width(sys.stdout) or 0) - len(beside)
    for line in wrap_text(text, width) if width >= MIN_WRAP_WIDTH else [text]:
        print_line(f"{beside}{line}")
        beside = " " * len(beside)


def _counted(state: str, count: int) -> str:
    return state if state == "ok" or count == 1 else f"{state}s"
