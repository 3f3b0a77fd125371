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
import re
import sys
from dataclasses import replace
from pathlib import Path

from traceable.cli import annotate
from traceable.cli.console import log, print_command
from traceable.cli.profile import (
    STDOUT,
    add_raw_argument,
    check_raw,
    has_stdout_output,
    parse_non_negative_int,
    parse_positive_int,
    write_content,
)
from traceable.cli.run import exit_with_status
from traceable.cli.run import take_program as take_program
from traceable.collectors import ncu
from traceable.errors import Message, MissingDataError, TraceableError, UsageError
from traceable.launch import launcher, target
from traceable.launch import ncu as runs
from traceable.report import OUTPUTS, Content
from traceable.trace.ncu_csv import METRICS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from traceable.analysis.table import Table
    from traceable.analysis.top_kernels import TopKernels
    from traceable.recording import Recording

DEFAULT_TOP = 3
DEFAULT_LAUNCHES = 5
MAX_NAME_CELLS = 100

_METRIC = re.compile(r"[a-zA-Z]\w*(\.\w+)*", re.ASCII)
"""The name of a metric. `regex:` and the other prefixes of ncu's --metrics stand for names that nobody knows before."""


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
        "--skip",
        metavar="N",
        type=parse_non_negative_int,
        default=0,
        help="skip the first N matching launches (default: 0)",
    )
    parser.add_argument(
        "--clock-control",
        choices=ncu.CLOCKS,
        default=ncu.CLOCKS[0],
        help="lock the GPU's clocks to base while a kernel is profiled, or don't (default: base)",
    )
    parser.add_argument(
        "--metrics",
        metavar="NAMES",
        type=_parse_metrics,
        default=(),
        help="also collect and print these metrics of ncu, separated by commas",
    )
    parser.add_argument(
        "--set",
        metavar="NAME",
        dest="section_set",
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
    for name in OUTPUTS:
        output.add_argument(
            f"--{name}", action="store_const", const=STDOUT, help=f"print the result as {name.upper()} on stdout"
        )
    add_raw_argument(group)
    annotate.add_annotate_arguments(parser)


def _parse_metrics(text: str) -> tuple[str, ...]:
    names = tuple(dict.fromkeys(name.strip() for name in text.split(",")))
    for name in names:
        if not _METRIC.fullmatch(name):
            words = f"{name[:80]!r} is not the name of a metric; `ncu --query-metrics` lists them"
            raise argparse.ArgumentTypeError(Message("metric_name_invalid", words))
    return names


def run(arguments: argparse.Namespace) -> int:
    """Profile the program and print the result, or print an existing report; return the exit code."""
    check_raw(arguments)
    if arguments.read is not None:
        if arguments.program or arguments.range_name or arguments.kernel or arguments.source or arguments.dry_run:
            remedy = "remove the program and the options that select kernels"
            raise UsageError("read_runs_nothing", "--read runs no program", remedy)
        _print(_read(arguments.read, arguments.metrics), arguments, str(arguments.read))
        return 0
    if arguments.top is not None and arguments.source is None:
        raise UsageError("top_needs_from", "--top needs --from", "add --from RUN")
    for value, option in ((arguments.range_name, "--range"), (arguments.kernel, "--kernel")):
        if value == "":
            raise UsageError("name_empty", f"the name of {option} is empty", "remove the option to select all")
    if arguments.section_set == "":
        raise UsageError("name_empty", "the name of --set is empty", "list the sets with `ncu --list-sets`")
    targets = annotate.load_option_targets(arguments)
    program = target.parse_target(arguments.program)
    selection, lines = _select_launches(arguments)
    request = runs.NcuRequest(
        target=program,
        selection=selection,
        scope=_describe_scope(arguments),
        directory=arguments.output,
        force=arguments.force,
        variables=annotate.make_annotate_environment(targets),
    )
    annotate.check_reachable(targets, program.command(target.get_interpreter_flags()))
    runs.check_ncu_request(request)
    install = None if arguments.dry_run else runs.find_ncu(request)
    for line in lines:
        log(line)
    if install is None:
        print_command(runs.format_ncu_command_line(request))
        return 0
    clocks = "locked to base (--clock-control)" if arguments.clock_control == "base" else "unchanged"
    words = (
        f"ncu replays each of these launches several times, alone on the GPU, with caches flushed and clocks {clocks}: "
        "they take 10 to 1000 times as long"
    )
    log(Message("kernels_replayed", words))
    words = "don't use another profiler on this GPU meanwhile (nsys, torch.profiler, DCGM, another ncu)"
    log(Message("gpu_not_shared", words))
    result = runs.run_ncu(request, install, log)
    for note in annotate.find_unmatched(targets, result.directory):
        log(note)
    failure: TraceableError | None = None
    try:
        _print_result(result, arguments)
    except TraceableError as error:
        failure = error
        log(error.message)
    # The program's exit code is passed through; if it succeeded, a missing result is the failure.
    return exit_with_status(result.status) or (failure.exit_code if failure is not None else 0)


def _print_result(result: runs.NcuResult, arguments: argparse.Namespace) -> None:
    if isinstance(result.csv, TraceableError):
        raise result.csv
    table = _read(result.csv, arguments.metrics)
    if arguments.clock_control == "base":
        words = "measured alone, with cold caches and clocks at base: durations differ from those without ncu"
        table = replace(table, notes=(*table.notes, Message("clocks_locked", words)))
    _print(table, arguments, launcher.format_path(result.directory))
    report = launcher.format_path(result.csv.with_suffix(ncu.SUFFIX))
    log(f"next: ncu-ui {report}, or python -m traceable ncu --read {report}")


def _describe_scope(arguments: argparse.Namespace) -> str:
    return f"inside range {arguments.range_name}" if arguments.range_name else "by the program"


def _select_launches(arguments: argparse.Namespace) -> tuple[ncu.Selection, list[str]]:
    """Return the launches to profile, and what to log about them.

    Raises:
        MissingDataError: the recorded run does not have the range, or no such kernel in it.
    """
    ranges = ncu.parse_range_option(arguments.range_name) if arguments.range_name else ()
    expression, base = ncu.convert_glob(arguments.kernel) if arguments.kernel else (None, "function")
    selection = ncu.Selection(
        includes=tuple(ncu.format_nvtx_includes(ranges)),
        kernels=None if expression is None else ncu.make_kernel_regex([expression]),
        base=base,
        skip=arguments.skip,
        count=arguments.launches,
        metrics=tuple(dict.fromkeys((*METRICS, *arguments.metrics))),
        clocks=arguments.clock_control,
        section_set=arguments.section_set,
    )
    if arguments.source is not None:
        return _select_top_kernels(arguments, selection, ranges, expression)
    kernels = f"kernels named {arguments.kernel}" if arguments.kernel else "the first kernels"
    return selection, [f"ncu will profile {arguments.launches} launches {_describe_scope(arguments)}: {kernels}"]


def _select_top_kernels(
    arguments: argparse.Namespace, selection: ncu.Selection, ranges: tuple[ncu.RangePath, ...], expression: str | None
) -> tuple[ncu.Selection, list[str]]:
    """Return the same for the most expensive kernels of the range in the recorded run."""
    from traceable.analysis.top_kernels import find_top_kernels, match_instances
    from traceable.cli.malloc_tuning import keep_freed_memory
    from traceable.cli.progress import Progress
    from traceable.recording import load

    keep_freed_memory()
    with Progress() as progress:
        # ncu matches ranges by the names that the program emits.
        recording = load(arguments.source, progress=progress, raw_names=True)
        instances, names = None, recording.trace.names
        if ranges:
            matches = [match_instances(recording.context.instances, names, one.names, one.domain) for one in ranges]
            ranges = tuple(one for one, match in zip(ranges, matches, strict=True) if match.any())
            if not ranges:
                recording.check_range(arguments.range_name)
                raise MissingDataError(
                    "range_not_found",
                    f"no range {arguments.range_name!r} in {arguments.source}",
                    "list the ranges with `traceable report RUN --view ranges`",
                )
            instances = sum(matches[1:], start=matches[0])
        top = find_top_kernels(
            recording.context,
            instances,
            pattern=expression,
            top=arguments.top or (None if expression else DEFAULT_TOP),
            launches=arguments.launches,
            skip=arguments.skip,
        )
        symbols = _load_symbols(recording, arguments.source, top)
    if symbols is None:
        expressions = [ncu.match_function(ncu.escape_regex(kernel.function)) for kernel in top.kernels]
    else:
        expressions = [ncu.escape_regex(symbol) for symbol in symbols]
    narrowed = replace(
        selection,
        includes=tuple(ncu.format_nvtx_includes(ranges)) if top.all_visible else (),
        kernels=ncu.make_kernel_regex(expressions),
        base="function" if symbols is None else "mangled",
        count=top.launches_needed,
    )
    return narrowed, _describe_kernels(arguments, top, has_symbols=symbols is not None)


def _load_symbols(recording: Recording, source: Path, top: TopKernels) -> list[str] | None:
    """Return the symbols of the kernels; None if the recording does not have them."""
    from traceable.report_files import open_report
    from traceable.trace.mangled_names import load_mangled_names

    names = [kernel.name for kernel in top.kernels]
    if not source.is_file():
        return load_mangled_names(Path(recording.trace.source.path), names)
    with open_report(source) as readable:
        return load_mangled_names(readable, names)


def _describe_kernels(arguments: argparse.Namespace, top: TopKernels, *, has_symbols: bool) -> list[str]:
    from traceable.report.text import escape_name, truncate
    from traceable.units import format_count, format_duration, format_percent

    share = sum(kernel.total_ns for kernel in top.kernels) / max(1, top.total_ns)
    lines = [
        f"ncu will profile {format_count(top.launches_needed, 'launch', 'launches')} {_describe_scope(arguments)} to "
        f"get {arguments.launches} of each of {format_count(len(top.kernels), 'kernel')} "
        f"({format_percent(share)} of the kernel time there):"
    ]
    for kernel in top.kernels:
        launches = format_count(kernel.launches, "launch", "launches")
        name = truncate(escape_name(kernel.name), MAX_NAME_CELLS)
        lines.append(f"  {format_duration(kernel.total_ns)} in {launches}: {name}")
    if not has_symbols:
        words = "the recording has no symbols of kernels: every template instance of these functions is profiled"
        lines.append(Message("kernel_symbols_missing", words))
    if not top.all_visible:
        words = (
            f"some of them are launched by another thread (autograd's) than the one that opened "
            f"{arguments.range_name}, where ncu does not see the range: they are profiled wherever they run"
        )
        lines.append(Message("kernels_on_other_threads", words))
    if top.excluded:
        number = format_count(top.excluded, "NCCL kernel")
        words = f"{number} excluded: they would deadlock, since ncu runs kernels one at a time"
        lines.append(Message("nccl_kernels_excluded", words))
    return lines


def _read(path: Path, metrics: tuple[str, ...]) -> Table:
    """Return what an ncu report, a directory with one, or a CSV file has; a note names the metrics that it lacks."""
    from traceable.analysis.ncu import summarize_launches
    from traceable.trace import ncu_csv

    report = runs.find_report(path)
    is_csv = report.suffix != ncu.SUFFIX
    launches = ncu_csv.read(report, metrics) if is_csv else ncu_csv.parse(ncu.export_csv(report), str(path), metrics)
    table = summarize_launches(launches)
    measured = table.others["metrics"].column("metric")
    missing = [name for name in metrics if not any(f"{one}.".startswith(f"{name}.") for one in measured)]
    if missing:
        note = Message("metrics_not_measured", f"not in the report: {', '.join(missing)}")
        table = replace(table, notes=(*table.notes, note))
    return table


def _print(table: Table, arguments: argparse.Namespace, source: str) -> None:
    from traceable.report import ncu as report

    content = Content(
        lambda: report.build_kernel_report(table, source), lambda: (table.rows(), table.columns), arguments.raw
    )
    write_content(content, arguments, sys.stdout)
    if not has_stdout_output(arguments):
        # stdout belongs to the program: the table of a run goes to stderr, as the profile of `run` does.
        report.write_kernels(sys.stdout if arguments.read else sys.stderr, table, f"kernels of {source}")
    sys.stdout.flush()
