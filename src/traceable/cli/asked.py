"""The options of `report` that say which question is asked of which part of the recording, and what they come to.

Which view takes which of them stands in `report.views`; here is only how they are written. Nothing is answered here.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from traceable.analysis.columns import FIELD
from traceable.cli.profile import positive, whole
from traceable.errors import UsageError
from traceable.report.views import ALL, FINDINGS, RANGES, VIEWS, View

TYPE_CHECKING = False
if TYPE_CHECKING:
    from traceable.analysis.range_names import Rules
    from traceable.recording import Recording

_OF_VIEWS = {
    "by": "--by",
    "names": "--names",
    "range_name": "--range",
    "slowest": "--slowest",
    "families": "--families",
    "threshold": "--threshold",
    "domain": "--domain",
    "match": "--match",
    "sort": "--sort",
    "table": "--table",
}
"""The options that not every view takes, by the name of their value."""

_NAMES = ("demangled", "short", "base")

_FOR_ONE_TABLE = frozenset({"by", "slowest", "names", "domain", "match", "sort", "table"})
"""Those of them that say something about one table, and so nothing about all views."""


def add_question_arguments(parser: argparse.ArgumentParser) -> None:
    """Add what says which question is asked, and of which part."""
    group = parser.add_argument_group("what is asked")
    lines = ", ".join(f"{view.name} ({view.help})" for view in VIEWS.values())
    group.add_argument(
        "--view", metavar="VIEW", choices=[*VIEWS, ALL], default=RANGES.name, help=f"{lines}; or {ALL} of them"
    )
    group.add_argument("--by", metavar="WHAT", help="what a row is about: " + _ways())
    group.add_argument(
        "--names", metavar="FORM", choices=_NAMES, help="how kernels are named: demangled, short or base"
    )
    group.add_argument("--families", metavar="FILE", type=Path, help="your own kernel families (traceable help report)")
    group.add_argument("--range", metavar="NAME", dest="range_name", help="only what belongs to ranges of this name")
    group.add_argument(
        "--slowest",
        metavar="N",
        type=positive,
        help="print the N slowest instances of --range (default: of the outermost ranges) and the ranges inside them",
    )
    group.add_argument(
        "--expand",
        metavar="NAME",
        action="append",
        help="keep apart the ranges folded into this name, as in 'layers.*' (traceable help names); repeatable",
    )
    group.add_argument("--raw-names", action="store_true", help="group ranges by their names as recorded")
    group.add_argument(
        "--name-rules", metavar="FILE", type=Path, help="your own rules for range names (traceable help names)"
    )
    group.add_argument(
        "--threshold",
        metavar="RULE.NAME=VALUE",
        action="append",
        help="when a finding is said (traceable help findings); repeatable",
    )
    step = group.add_mutually_exclusive_group()
    step.add_argument("--step-range", metavar="NAME", help="a step is a range of this name")
    step.add_argument("--step-kernel", metavar="GLOB", help="a step ends where a kernel of such a name does")
    part = parser.add_argument_group("of which part of the recording")
    part.add_argument(
        "--process", metavar="P", action="append", help="only this process: its pid or a glob over its name; repeatable"
    )
    part.add_argument("--device", metavar="N", action="append", type=whole, help="only this GPU; repeatable")
    part.add_argument("--time", metavar="A:B", help="only this time since the start, as in 1.5s:2s, 2s: or :500us")
    part.add_argument("--steady", action="store_true", help="only the steps after the warm-up")


def views_asked(arguments: argparse.Namespace) -> list[View]:
    """Return the views to show, after refusing options that say nothing about them.

    Raises:
        UsageError: an option that the view does not take.
    """
    every = arguments.view == ALL
    if arguments.slowest is not None and arguments.view == RANGES.name:
        _check_slowest(arguments)
    views = list(VIEWS.values()) if every else [VIEWS[arguments.view]]
    taken = {name for view in views for name in (*view.options, "sort", *(("table",) if view.others else ()))}
    taken |= {"by" for view in views if view.by} | {name for view in views for name in view.chooses}
    if every:
        taken -= _FOR_ONE_TABLE
    if documented(views, arguments):
        taken |= set(FINDINGS.options)
    for name, flag in _OF_VIEWS.items():
        if getattr(arguments, name) is not None and name not in taken:
            raise UsageError("option_not_supported", f"--view {arguments.view} takes no {flag}", _who_takes(name))
    for name, flag in (("step_range", "--step-range"), ("step_kernel", "--step-kernel")):
        if getattr(arguments, name) is not None and name not in taken and not arguments.steady:
            raise UsageError(
                "option_not_supported", f"--view {arguments.view} takes no {flag}", "add --steady, or use --view steps"
            )
    _check_output(arguments, every)
    if not every and arguments.by is not None and not views[0].takes_by(arguments.by):
        raise UsageError(
            "no_such_grouping",
            f"--view {arguments.view} has no --by {arguments.by}",
            f"use {' or '.join(_by(views[0]))}",
        )
    return views


def names_requested(arguments: argparse.Namespace) -> Rules | None:
    """Return the rules that the options give for the names of ranges; None for names as recorded.

    Raises:
        UsageError: --raw-names together with what normalizes names.
        TraceableError: the file of rules can't be read, or holds anything but rules.
    """
    from traceable.analysis.range_names import load_rules

    if not arguments.raw_names:
        return load_rules(arguments.name_rules)
    if arguments.expand or arguments.name_rules:
        flag = "--expand" if arguments.expand else "--name-rules"
        raise UsageError("raw_names_conflict", f"{flag} has no effect on --raw-names", "leave one of them out")
    return None


def documented(views: Sequence[View], arguments: argparse.Namespace) -> bool:
    """Whether the ranges are among what is asked, by path or by name: a document of their own, with the findings."""
    return RANGES in views and arguments.by in (None, "path", "name")


def _check_slowest(arguments: argparse.Namespace) -> None:
    """Have --slowest say what a row is about, and refuse what would leave a tree without some of its ranges."""
    if arguments.by not in (None, "instance"):
        raise UsageError(
            "slowest_needs_instances", f"--slowest prints instances, not --by {arguments.by}", "leave one of them out"
        )
    for name in ("sort", "top", "match", "domain"):
        if getattr(arguments, name) is not None:
            raise UsageError(
                "slowest_needs_all_rows",
                f"--slowest prints whole trees, and --{name} chooses rows",
                "leave one of them out",
            )
    arguments.by = "instance"


def thresholds_of(arguments: argparse.Namespace) -> dict[str, float]:
    """Return the thresholds of the findings that the options set.

    Raises:
        UsageError: an option that is not RULE.NAME=VALUE, or names no threshold, or has a value that is none.
    """
    said: dict[str, float] = {}
    for word in arguments.threshold or ():
        name, _, value = word.partition("=")
        try:
            said[name.strip()] = float(value)
        except ValueError:
            raise UsageError(
                "threshold_malformed",
                f"--threshold {word[:80]!r} is not RULE.NAME=VALUE",
                "say for instance low_utilisation.utilisation=0.8",
            ) from None
    if said:
        # The rules need numpy, which takes a tenth of a second to import.
        from traceable.analysis.findings import checked

        checked(said)
    return said


def options_of(view: View, arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the keyword arguments of a view's question that the options give; what was not said is left to it."""
    keywords = {**view.options, **({"by": "by"} if view.by else {})}
    said = {word: getattr(arguments, name) for name, word in keywords.items() if getattr(arguments, name) is not None}
    if "thresholds" in said:
        said["thresholds"] = thresholds_of(arguments)
    if said.get("top") == 0:
        said["top"] = sys.maxsize
    if "families" in said:
        from traceable.analysis.kernel_families import load_families

        said["families"] = load_families(said["families"])
    return said


def part_asked(recording: Recording, arguments: argparse.Namespace) -> Recording:
    """Return the part of the recording that the options ask about.

    Raises:
        UsageError: --time says no time.
        UnanswerableError: the recording has no such part.
    """
    narrowing = (arguments.process, arguments.device, arguments.time)
    if all(option is None for option in narrowing) and not arguments.steady:
        return recording
    from traceable.analysis.select import parse_time_span

    return recording.select(
        process=arguments.process,
        device=arguments.device,
        time_ns=None if arguments.time is None else parse_time_span(arguments.time),
        steady=arguments.steady,
        step_range=arguments.step_range,
        step_kernel=arguments.step_kernel,
    )


def _check_output(arguments: argparse.Namespace, every: bool) -> None:
    if arguments.csv and every:
        raise UsageError(
            "csv_of_all_views", "--view all is no single table for --csv", "use --json, or --csv with one view"
        )
    if arguments.threshold is not None and arguments.csv and arguments.view == RANGES.name:
        raise UsageError(
            "csv_without_findings",
            "--csv of the ranges has no findings for --threshold",
            f"add --view {FINDINGS.name}",
        )
    if arguments.table is not None and not arguments.csv:
        raise UsageError(
            "table_needs_csv", "--table says which table --csv prints", "add --csv; without it all tables are printed"
        )


def _who_takes(name: str) -> str:
    takers = [
        view.name
        for view in VIEWS.values()
        if name in view.options or name in view.chooses or (name == "by" and view.by)
    ]
    if not takers:
        return "ask one view at a time"
    return f"leave it out; {_listed(takers)} {'takes' if len(takers) == 1 else 'take'} it"


def _listed(words: Sequence[str]) -> str:
    return " and ".join(filter(None, (", ".join(words[:-1]), words[-1])))


def _ways() -> str:
    return "; ".join(f"{view.name}: {', '.join(_by(view))}" for view in VIEWS.values() if view.by)


def _by(view: View) -> tuple[str, ...]:
    return (*view.by, FIELD + "NAME") if view.fields else view.by
