"""Look at the heaviest kernels of a range with Nsight Compute: what holds each of them back.

    traceable ncu --range forward --from RUN [--top 3 | --kernel GLOB] [options] app.py [arguments]
    traceable ncu --range forward [--kernel GLOB] [options] app.py [arguments]
    traceable ncu --read FILE

With --from, the kernels are those that a recorded run says are the heaviest of the range. The program is run again; its
exit code is the exit code. ncu runs each profiled launch several times over, one at a time: slow, and nothing for
production. The program may also be -m module, -c code or -- command. --read prints a .ncu-rep, or what `ncu --csv`
printed. traceable help ncu
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
    """Declare the options that may stand before the program."""
    parser.usage = "traceable ncu [options] (app.py | -m module | -c code | -- command) [arguments]"
    parser.add_argument(
        "--range", metavar="NAME", dest="range_name", help="only inside of this range: NAME, DOMAIN:NAME or OUTER/INNER"
    )
    parser.add_argument("--kernel", metavar="GLOB", help="only kernels with a matching function name: 'rms_norm*'")
    parser.add_argument(
        "--from",
        metavar="RUN",
        dest="source",
        type=Path,
        help="take the most expensive kernels of the range from this run directory, .nsys-rep, .sqlite or torch trace",
    )
    parser.add_argument(
        "--top", metavar="N", type=parse_positive_int, help=f"with --from: how many kernels ({DEFAULT_TOP})"
    )
    parser.add_argument(
        "--launches",
        metavar="N",
        type=parse_positive_int,
        default=DEFAULT_LAUNCHES,
        help=f"profile N launches: with --from of each kernel, else in all ({DEFAULT_LAUNCHES})",
    )
    parser.add_argument("--skip", metavar="N", type=_whole, default=0, help="skip the first N matching launches (0)")
    parser.add_argument(
        "--clock-control",
        choices=ncu.CLOCKS,
        default=ncu.CLOCKS[0],
        help="lock the GPU's clocks to base while a kernel is profiled (default), or leave them alone",
    )
    parser.add_argument(
        "--set",
        metavar="NAME",
        dest="sections",
        help="also collect a set of ncu sections for ncu-ui: basic, detailed, full, roofline",
    )
    parser.add_argument(
        "-o", "--output", metavar="DIR", type=Path, help="output directory (default: traceable-runs/NAME-ncu-TIME)"
    )
    parser.add_argument("--force", action="store_true", help="allow a non-empty output directory")
    parser.add_argument(
        "--dry-run", action="store_true", help="print the environment and the command line without running anything"
    )
    parser.add_argument(
        "--read", metavar="FILE", type=Path, help="run nothing: print a .ncu-rep, a directory with one, or ncu's CSV"
    )
    group = parser.add_argument_group("what is printed")
    output = group.add_mutually_exclusive_group()
    output.add_argument("--json", action="store_true", help="print kernels and launches as JSON (traceable help ncu)")
    output.add_argument("--csv", action="store_true", help="print the kernels as CSV, every column")
    add_raw_argument(group)
    annotate.add_annotate_arguments(parser)


def run(arguments: argparse.Namespace) -> int:
    """Profile the program and print what was measured, or print what there is; return the exit code."""
    check_raw(arguments)
    if arguments.read is not None:
        if arguments.program or arguments.range_name or arguments.kernel or arguments.source or arguments.dry_run:
            raise UsageError(
                "read_runs_nothing",
                "--read runs no program",
                "leave out the program and what says which kernels to profile",
            )
        _print(_read(arguments.read), arguments, str(arguments.read))
        return 0
    if arguments.top is not None and arguments.source is None:
        raise UsageError(
            "top_needs_from", "--top needs --from", "name the recorded run whose heaviest kernels are meant"
        )
    targets = annotate.load_option_targets(arguments)
    asked = target.parse_target(arguments.program)
    chosen = _chosen(arguments)
    request = runs.NcuRequest(
        target=asked,
        selection=chosen.selection,
        selection_text=chosen.where,
        directory=arguments.output,
        force=arguments.force,
        variables=annotate.make_annotate_environment(targets),
    )
    annotate.check_reachable(targets, asked.command(target.get_interpreter_flags()))
    runs.check_ncu_request(request)
    install = None if arguments.dry_run else runs.find_ncu(request)
    for line in chosen.said:
        log(line)
    if install is None:
        print_command(runs.format_ncu_command_line(request))
        return 0
    for line in _warnings(chosen.selection):
        log(line)
    finished = runs.run_ncu(request, install, log)
    for note in annotate.find_unmatched(targets, finished.directory):
        log(note)
    failed = finished.problem
    if finished.csv is not None:
        try:
            _print(_read(finished.csv), arguments, launcher.format_path(finished.directory), _clocks_note(arguments))
            report = launcher.format_path(finished.csv.with_suffix(ncu.SUFFIX))
            log(f"next: ncu-ui {report}, or python -m traceable ncu --read {report}")
        except TraceableError as error:
            failed = error
    if failed is not None:
        log(failed.message)
    # The program's exit code is the exit code; where it succeeded, that there is nothing to show is the news.
    return exit_with_status(finished.status) or (failed.exit_code if failed is not None else 0)


@dataclass(frozen=True)
class _Chosen:
    """What is to be profiled, and what is said of it: `where` as a clause, `said` as lines."""

    selection: ncu.Selection
    where: str
    said: tuple[str, ...]


def _chosen(arguments: argparse.Namespace) -> _Chosen:
    """Return what is to be profiled.

    Raises:
        UsageError: the range has no name, or a kernel's is empty.
        UnanswerableError: the recorded run has no such range, or no such kernel in it.
    """
    from traceable.trace.ncu_csv import METRICS

    name, glob = arguments.range_name, arguments.kernel
    if name == "" or glob == "":
        raise UsageError("name_empty", "a range and a kernel have a name", "leave the option out to mean all of them")
    where = f"inside of range {name}" if name else "by the program"
    places = ncu_filter.parse_range_option(name) if name else ()
    expression, base = _of_glob(glob)
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
        what = f"kernels named {glob}" if glob else "whichever kernels come first"
        return _Chosen(selection, where, (f"ncu is to profile {arguments.launches} launches {where}: {what}",))
    return _from_recording(arguments, selection, where, expression)


def _of_glob(glob: str | None) -> tuple[str | None, str]:
    """Return the regular expression of --kernel, and whether it is one of functions or of whole demangled names."""
    if glob is None:
        return None, "function"
    if any(mark in glob for mark in "<(: "):
        return ncu_filter.convert_glob(glob).removeprefix(ncu_filter.convert_glob("")), "demangled"
    return ncu_filter.convert_glob(glob), "function"


def _from_recording(
    arguments: argparse.Namespace, selection: ncu.Selection, where: str, expression: str | None
) -> _Chosen:
    """Return the heaviest kernels of the range in the recorded run."""
    from traceable.analysis.top_kernels import find_top_kernels, match_instances
    from traceable.cli.malloc_tuning import keep_freed_memory
    from traceable.cli.progress import Progress
    from traceable.recording import load

    keep_freed_memory()
    with Progress() as progress:
        # ncu compares ranges by the names that the program gives them.
        recording = load(arguments.source, progress=progress, raw_names=True)
        context, places, instances = recording.context, [], None
        if arguments.range_name:
            names = recording.trace.names
            for place in ncu_filter.parse_range_option(arguments.range_name):
                found = match_instances(context.instances, names, place.names, place.domain)
                if found.any():
                    places.append(place)
                    instances = found if instances is None else instances | found
            if instances is None:
                recording.check_range(arguments.range_name)
                raise MissingDataError(
                    "range_not_found",
                    f"no range {arguments.range_name!r} in {arguments.source}",
                    "`--view ranges` lists them",
                )
        top = arguments.top or (None if expression else DEFAULT_TOP)
        wanted = {"matching": expression, "top": top, "launches": arguments.launches, "skip": arguments.skip}
        best = find_top_kernels(context, instances, **wanted)
        symbols = _symbols(Path(recording.trace.source.path), arguments.source, best)
    expressions = symbols or [f"(?:.*::)?{ncu_filter.escape_regex(one.function)}" for one in best.kernels]
    narrowed = replace(
        selection,
        includes=tuple(ncu_filter.format_nvtx_includes(places)) if best.all_visible else (),
        kernels=ncu_filter.make_kernel_regex(expressions),
        base="mangled" if symbols else "function",
        count=best.launches_needed,
    )
    return _Chosen(narrowed, where, tuple(_said(arguments, best, symbols is not None, where)))


def _symbols(file: Path, source: Path, best: TopKernels) -> list[str] | None:
    """Return the kernels' symbols as regular expressions; None where the recording has them not."""
    from traceable.launch.reports import open_report
    from traceable.trace.mangled_names import load_mangled_names

    names = [one.name for one in best.kernels]
    if source.is_file():
        with open_report(source) as readable:
            found = load_mangled_names(readable, names)
    else:
        found = load_mangled_names(file, names)
    return None if found is None else [ncu_filter.escape_regex(symbol) for symbol in found]


def _said(arguments: argparse.Namespace, best: TopKernels, exact: bool, where: str) -> list[str]:
    from traceable.analysis.units import format_count, format_duration, format_percent
    from traceable.report.text import escape_name, truncate

    chosen = sum(one.total_ns for one in best.kernels)
    number = format_count(len(best.kernels), "kernel")
    part = format_percent(chosen / best.total_ns if best.total_ns else 0)
    lines = [
        f"ncu is to profile {format_count(best.launches_needed, 'launch', 'launches')} {where}, to have {arguments.launches} of each "
        f"of {number} ({part} of the kernel time there):"
    ]
    lines += [
        f"  {format_duration(one.total_ns)} in {format_count(one.launches, 'launch', 'launches')}: {truncate(escape_name(one.name), MAX_NAME_CELLS)}"
        for one in best.kernels
    ]
    if not exact:
        lines.append(
            Message(
                "kernel_symbols_missing",
                "the recording has no symbols of kernels: every template instance of these functions is meant",
            )
        )
    if not best.all_visible:
        lines.append(
            Message(
                "kernels_on_other_threads",
                f"not all of them are launched by the thread that opened {arguments.range_name}, and ncu sees no range "
                "on another (autograd's): they are profiled wherever they run",
            )
        )
    if best.excluded:
        lines.append(
            Message(
                "nccl_kernels_excluded",
                f"{format_count(best.excluded, 'kernel')} of NCCL left out: while ncu runs kernels one at a time, they would "
                "wait for each other for ever",
            )
        )
    return lines


def _warnings(selection: ncu.Selection) -> tuple[Message, ...]:
    clocks = "clocks locked to base (--clock-control)" if selection.clocks == "base" else "clocks left alone"
    return (
        Message(
            "kernels_replayed",
            f"each of these launches is run several times over, alone on the GPU, with caches flushed and {clocks}: "
            "expect them to take 10 to 1000 times as long",
        ),
        Message(
            "gpu_not_shared", "no other profiler may use this GPU meanwhile (nsys, torch.profiler, DCGM, another ncu)"
        ),
    )


def _clocks_note(arguments: argparse.Namespace) -> tuple[Message, ...]:
    if arguments.clock_control != "base":
        return ()
    return (
        Message(
            "clocks_locked",
            "measured alone, with cold caches and clocks at base: durations are not those of a run by itself",
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
        # What a program prints is its own: the table of a run goes where the profile of `run` does.
        report.write_kernels(sys.stdout if arguments.read else sys.stderr, table, f"kernels of {source}")
    sys.stdout.flush()


def _whole(word: str) -> int:
    if not (word.isascii() and word.isdigit() and len(word) < 16):
        raise argparse.ArgumentTypeError(Message("number_invalid", f"{word[:40]!r} is no whole number of launches"))
    return int(word)
