"""Profile the most expensive kernels of a range with Nsight Compute: what limits each of them.

    traceable ncu --range forward --from RUN [--top 3 | --kernel GLOB] [options] app.py [arguments]
    traceable ncu --range forward [--kernel GLOB] [options] app.py [arguments]
    traceable ncu --read FILE

With --from, the kernels are the most expensive ones of the range in a recorded run. The program is run again; its exit
code is passed through. ncu replays each profiled launch several times, one at a time: it is slow, and not for
production. The program may also be -m module, -c code or -- command. --read prints a .ncu-rep, or the output of
`ncu --csv`. See `traceable help ncu`.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from traceable.cli import annotate
from traceable.cli.console import log, print_command
from traceable.cli.profile import STDOUT, add_raw_argument, check_raw, parse_positive_int, write_output
from traceable.cli.run import exit_with_status
from traceable.cli.run import take_program as take_program
from traceable.collectors.ncu import collector as ncu
from traceable.collectors.ncu import filter as ncu_filter
from traceable.errors import Message, MissingDataError, TraceableError, UsageError
from traceable.launch import launcher, target
from traceable.launch import ncu as runs

TYPE_CHECKING = False
if TYPE_CHECKING:
    from traceable.analysis.table import Table
    from traceable.analysis.top_kernels import TopKernels

DEFAULT_TOP = 3
DEFAULT_LAUNCHES = 5
MAX_NAME_CELLS = 100


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options that may precede the program."""
    parser.usage = "traceable ncu [options] (app.py | -m module | -c code | -- command) [arguments]"
    parser.add_argument(
        "--range", metavar="NAME", dest="range_name", help="only inside this range: NAME, DOMAIN:NAME or OUTER/INNER"
    )
    parser.add_argument(
        "--kernel", metavar="GLOB", help="only kernels whose function name matches, such as 'rms_norm*'"
    )
    parser.add_argument(
        "--from",
        metavar="RUN",
        dest="source",
        type=Path,
        help="profile the most expensive kernels of the range in this run directory, .nsys-rep, .sqlite or torch trace",
    )
    parser.add_argument(
        "--top", metavar="N", type=parse_positive_int, help=f"with --from: number of kernels (default: {DEFAULT_TOP})"
    )
    parser.add_argument(
        "--launches",
        metavar="N",
        type=parse_positive_int,
        default=DEFAULT_LAUNCHES,
        help=f"profile N launches; with --from, N of each kernel (default: {DEFAULT_LAUNCHES})",
    )
    parser.add_argument(
        "--skip", metavar="N", type=_parse_count, default=0, help="skip the first N matching launches (default: 0)"
    )
    parser.add_argument(
        "--clock-control",
        choices=ncu.CLOCKS,
        default=ncu.CLOCKS[0],
        help="lock the GPU's clocks to base while a kernel is profiled, or don't (default: base)",
    )
    parser.add_argument(
        "--set",
        metavar="NAME",
        dest="sections",
        help="also collect a set of ncu's sections, to view in ncu-ui: basic, detailed, full, roofline",
    )
    parser.add_argument(
        "-o", "--output", metavar="DIR", type=Path, help="output directory (default: traceable-runs/NAME-ncu-TIME)"
    )
    parser.add_argument("--force", action="store_true", help="allow a non-empty output directory")
    parser.add_argument("--dry-run", action="store_true", help="print the environment and the command line, and exit")
    parser.add_argument(
        "--read", metavar="FILE", type=Path, help="print a .ncu-rep, a directory with one, or ncu's CSV, and exit"
    )
    group = parser.add_argument_group("Output")
    output = group.add_mutually_exclusive_group()
    output.add_argument("--json", action="store_true", help="print kernels and launches as JSON (traceable help ncu)")
    output.add_argument("--csv", action="store_true", help="print the kernels as CSV, every column")
    add_raw_argument(group)
    annotate.add_annotate_arguments(parser)


def run(arguments: argparse.Namespace) -> int:
    """Profile the program and print the result, or print an existing report; return the exit code."""
    check_raw(arguments)
    if arguments.read is not None:
        if arguments.program or arguments.range_name or arguments.kernel or arguments.source or arguments.dry_run:
            raise UsageError(
                "read_runs_nothing",
                "--read runs no program",
                "remove the program and the options that select kernels",
            )
        _print(_read(arguments.read), arguments, str(arguments.read))
        return 0
    if arguments.top is not None and arguments.source is None:
        raise UsageError("top_needs_from", "--top needs --from", "add --from RUN")
    targets = annotate.load_option_targets(arguments)
    program = target.parse_target(arguments.program)
    selected = _select_launches(arguments)
    request = runs.NcuRequest(
        target=program,
        selection=selected.selection,
        selection_text=selected.scope,
        directory=arguments.output,
        force=arguments.force,
        variables=annotate.make_annotate_environment(targets),
    )
    annotate.check_reachable(targets, program.command(target.get_interpreter_flags()))
    runs.check_ncu_request(request)
    install = None if arguments.dry_run else runs.find_ncu(request)
    for line in selected.lines:
        log(line)
    if install is None:
        print_command(runs.format_ncu_command_line(request))
        return 0
    for line in _list_warnings(selected.selection):
        log(line)
    finished = runs.run_ncu(request, install, log)
    for note in annotate.find_unmatched(targets, finished.directory):
        log(note)
    failed = finished.problem
    if finished.csv is not None:
        try:
            _print(
                _read(finished.csv), arguments, launcher.format_path(finished.directory), _list_clock_notes(arguments)
            )
            report = launcher.format_path(finished.csv.with_suffix(ncu.SUFFIX))
            log(f"next: ncu-ui {report}, or python -m traceable ncu --read {report}")
        except TraceableError as error:
            failed = error
    if failed is not None:
        log(failed.message)
    # The program's exit code is passed through; if it succeeded, a missing result is the failure.
    return exit_with_status(finished.status) or (failed.exit_code if failed is not None else 0)


@dataclass(frozen=True)
class _LaunchSelection:
    """The launches to profile; `scope` describes them as a clause, `lines` as messages."""

    selection: ncu.Selection
    scope: str
    lines: tuple[str, ...]


def _select_launches(arguments: argparse.Namespace) -> _LaunchSelection:
    """Return the launches to profile.

    Raises:
        UsageError: the name of the range or the kernel is empty.
        MissingDataError: the recorded run does not have the range, or no such kernel in it.
    """
    from traceable.trace.ncu_csv import METRICS

    name, glob = arguments.range_name, arguments.kernel
    if name == "" or glob == "":
        raise UsageError("name_empty", "the name of a range or kernel is empty", "remove the option to select all")
    scope = f"inside range {name}" if name else "by the program"
    places = ncu_filter.parse_range_option(name) if name else ()
    expression, base = _convert_kernel_glob(glob)
    kernels = None if expression is None else ncu_filter.make_kernel_regex([expression])
    selection = ncu.Selection(
        includes=tuple(ncu_filter.format_nvtx_includes(places)),
        kernels=kernels,
        base=base,
        skip=arguments.skip,
        count=arguments.launches,
        metrics=METRICS,
        clocks=arguments.clock_control,
        sections=arguments.sections,
    )
    if arguments.source is None:
        kernel_text = f"kernels named {glob}" if glob else "the first kernels"
        return _LaunchSelection(
            selection, scope, (f"ncu will profile {arguments.launches} launches {scope}: {kernel_text}",)
        )
    return _select_top_kernels(arguments, selection, scope, expression)


def _convert_kernel_glob(glob: str | None) -> tuple[str | None, str]:
    """Return the regular expression of --kernel, and whether it is for functions or for whole demangled names."""
    if glob is None:
        return None, "function"
    if any(mark in glob for mark in "<(: "):
        return ncu_filter.convert_glob(glob).removeprefix(ncu_filter.convert_glob("")), "demangled"
    return ncu_filter.convert_glob(glob), "function"


def _select_top_kernels(
    arguments: argparse.Namespace, selection: ncu.Selection, scope: str, expression: str | None
) -> _LaunchSelection:
    """Return the most expensive kernels of the range in the recorded run."""
    from traceable.analysis.top_kernels import find_top_kernels, match_instances
    from traceable.cli.malloc_tuning import keep_freed_memory
    from traceable.cli.progress import Progress
    from traceable.recording import load

    keep_freed_memory()
    with Progress() as progress:
        # ncu matches ranges by the names that the program emits.
        recording = load(arguments.source, progress=progress, raw_names=True)
        context, places, instances = recording.context, [], None
        if arguments.range_name:
            names = recording.trace.names
            for place in ncu_filter.parse_range_option(arguments.range_name):
                matches = match_instances(context.instances, names, place.names, place.domain)
                if matches.any():
                    places.append(place)
                    instances = matches if instances is None else instances | matches
            if instances is None:
                recording.check_range(arguments.range_name)
                raise MissingDataError(
                    "range_not_found",
                    f"no range {arguments.range_name!r} in {arguments.source}",
                    "list the ranges with `traceable report RUN --view ranges`",
                )
        top = arguments.top or (None if expression else DEFAULT_TOP)
        options = {"pattern": expression, "top": top, "launches": arguments.launches, "skip": arguments.skip}
        best = find_top_kernels(context, instances, **options)
        symbols = _load_symbol_patterns(Path(recording.trace.source.path), arguments.source, best)
    expressions = symbols or [f"(?:.*::)?{ncu_filter.escape_regex(one.function)}" for one in best.kernels]
    narrowed = replace(
        selection,
        includes=tuple(ncu_filter.format_nvtx_includes(places)) if best.all_visible else (),
        kernels=ncu_filter.make_kernel_regex(expressions),
        base="mangled" if symbols else "function",
        count=best.launches_needed,
    )
    return _LaunchSelection(narrowed, scope, tuple(_describe_selection(arguments, best, symbols is not None, scope)))


def _load_symbol_patterns(file: Path, source: Path, best: TopKernels) -> list[str] | None:
    """Return the kernels' symbols as regular expressions; None if the recording does not have them."""
    from traceable.launch.reports import open_report
    from traceable.trace.mangled_names import load_mangled_names

    names = [one.name for one in best.kernels]
    if source.is_file():
        with open_report(source) as readable:
            symbols = load_mangled_names(readable, names)
    else:
        symbols = load_mangled_names(file, names)
    return None if symbols is None else [ncu_filter.escape_regex(symbol) for symbol in symbols]


def _describe_selection(arguments: argparse.Namespace, best: TopKernels, exact: bool, scope: str) -> list[str]:
    from traceable.analysis.units import format_count, format_duration, format_percent
    from traceable.report.text import escape_name, truncate

    selected_ns = sum(kernel.total_ns for kernel in best.kernels)
    number = format_count(len(best.kernels), "kernel")
    share = format_percent(selected_ns / best.total_ns if best.total_ns else 0)
    needed = format_count(best.launches_needed, "launch", "launches")
    lines = [
        f"ncu will profile {needed} {scope} to get {arguments.launches} of each of {number} "
        f"({share} of the kernel time there):"
    ]
    for kernel in best.kernels:
        launches = format_count(kernel.launches, "launch", "launches")
        name = truncate(escape_name(kernel.name), MAX_NAME_CELLS)
        lines.append(f"  {format_duration(kernel.total_ns)} in {launches}: {name}")
    if not exact:
        lines.append(
            Message(
                "kernel_symbols_missing",
                "the recording has no symbols of kernels: every template instance of these functions is profiled",
            )
        )
    if not best.all_visible:
        lines.append(
            Message(
                "kernels_on_other_threads",
                f"some of them are launched by another thread (autograd's) than the one that opened "
                f"{arguments.range_name}, where ncu does not see the range: they are profiled wherever they run",
            )
        )
    if best.excluded:
        lines.append(
            Message(
                "nccl_kernels_excluded",
                f"{format_count(best.excluded, 'NCCL kernel')} excluded: they would deadlock, since ncu runs kernels "
                "one at a time",
            )
        )
    return lines


def _list_warnings(selection: ncu.Selection) -> tuple[Message, ...]:
    clocks = "clocks locked to base (--clock-control)" if selection.clocks == "base" else "clocks unchanged"
    return (
        Message(
            "kernels_replayed",
            f"ncu replays each of these launches several times, alone on the GPU, with caches flushed and {clocks}: "
            "they take 10 to 1000 times as long",
        ),
        Message(
            "gpu_not_shared",
            "don't use another profiler on this GPU meanwhile (nsys, torch.profiler, DCGM, another ncu)",
        ),
    )


def _list_clock_notes(arguments: argparse.Namespace) -> tuple[Message, ...]:
    if arguments.clock_control != "base":
        return ()
    return (
        Message(
            "clocks_locked",
            "measured alone, with cold caches and clocks at base: durations differ from those without ncu",
        ),
    )


def _read(path: Path) -> Table:
    from traceable.analysis.ncu import summarize_launches
    from traceable.trace import ncu_csv

    if path.is_dir() or path.suffix == ncu.SUFFIX:
        return summarize_launches(ncu_csv.parse(runs.read_report_csv(path), str(path)))
    return summarize_launches(ncu_csv.read(path))


def _print(table: Table, arguments: argparse.Namespace, source: str, notes: Sequence[Message] = ()) -> None:
    from traceable.report import ncu as report
    from traceable.report.csv_table import to_csv
    from traceable.report.document import to_json

    table = replace(table, notes=(*table.notes, *notes))
    if arguments.json:
        write_output(STDOUT, to_json(report.build_kernel_report(table, source)) + "\n", sys.stdout)
    elif arguments.csv:
        write_output(STDOUT, to_csv(list(table.rows()), table.columns, arguments.raw), sys.stdout)
    else:
        # stdout belongs to the program: the table of a run goes to stderr, as the profile of `run` does.
        report.write_kernels(sys.stdout if arguments.read else sys.stderr, table, f"kernels of {source}")
    sys.stdout.flush()


def _parse_count(word: str) -> int:
    if not (word.isascii() and word.isdigit() and len(word) < 16):
        raise argparse.ArgumentTypeError(Message("number_invalid", f"{word[:40]!r} is not a number of launches"))
    return int(word)
