"""Run a program under a collector and print its profile.

    traceable run [options] app.py [arguments]
    traceable run [options] -m module [arguments]
    traceable run [options] -c code [arguments]
    traceable run [options] -- command [arguments]

What follows the program belongs to the program. Its exit code is the exit code. Options of Python's own stand where
Python wants them: `python -X dev -m traceable run app.py`.
"""

from __future__ import annotations

import argparse
import difflib
import os
import resource
import signal
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from traceable import collect, environment
from traceable.cli import again, annotate, conditions, contract, diagnosis, flight, gpu, nsys, overhead, profile, ranks
from traceable.cli.lines import answer_command, say
from traceable.errors import Message, TraceableError, UsageError, one_line
from traceable.launch import launcher, target
from traceable.launch.overhead import NotComparableError
from traceable.launch.worker import DiedError, Worker

TYPE_CHECKING = False
if TYPE_CHECKING:
    from traceable.analysis.completeness import Completeness
    from traceable.analysis.contract import Verdict
    from traceable.analysis.windows import Windows
    from traceable.annotation.patterns import Target
    from traceable.capture.spec import Spec

PYTHON_FLAGS = "bBdEiIOPqsSuvWxX"
NOTHING_RECORDED = "none"
SIGUSR2_STEPS = 20
LOOP_PAUSE_MS = 100.0
"""From when on a callback blocks the event loop, if not said otherwise: asyncio's own `slow_callback_duration`."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options that may stand before the program."""
    parser.usage = "traceable run [options] (app.py | -m module | -c code | -- command) [arguments]"
    parser.add_argument(
        "--collector",
        metavar="NAME",
        choices=[collect.AUTO, *collect.COLLECTORS],
        default=collect.AUTO,
        help="auto (nsys where it works and a GPU is, else the recorder; default), nsys, recorder, torch or none",
    )
    parser.add_argument(
        "-o", "--output", metavar="DIR", type=Path, help="the run directory (default: traceable-runs/NAME-TIME)"
    )
    parser.add_argument("--name", metavar="N", help="name of the run and its files (default: after the program)")
    parser.add_argument(
        "--force",
        action="store_true",
        help="take a directory that is not empty; an earlier run in it is renamed, never deleted",
    )
    parser.add_argument(
        "--dry-run", action="store_true", help="print the environment and the command line; run nothing, create nothing"
    )
    parser.add_argument(
        "--steps",
        metavar="SPEC",
        type=_steps,
        help="record these steps only: 10:30, 10:30,50:52 or every:1000:5 (traceable help windows)",
    )
    parser.add_argument(
        "--control",
        action="store_true",
        help="record only when requested: by `traceable control`, or by the program (traceable help control)",
    )
    parser.add_argument(
        "--sigusr2",
        metavar="STEPS",
        nargs="?",
        const=0,
        type=_steps_number,
        help=f"--control, and record =STEPS steps ({SIGUSR2_STEPS}) at each SIGUSR2; a dump with --flight-recorder",
    )
    again.add_again_arguments(parser)
    flight.add_flight_arguments(parser)
    parser.add_argument("--record-gc", action="store_true", help="record garbage collections as ranges")
    parser.add_argument(
        "--record-loop-pauses",
        metavar="MS",
        nargs="?",
        const=LOOP_PAUSE_MS,
        type=_milliseconds,
        help=f"record what blocks the asyncio event loop for =MS milliseconds or longer ({LOOP_PAUSE_MS:g})",
    )
    gpu.add_gpu_arguments(parser)
    nsys.add_nsys_arguments(parser)
    ranks.add_ranks_arguments(parser)
    overhead.add_overhead_arguments(parser)
    conditions.add_condition_arguments(parser)
    annotate.add_annotate_arguments(parser)
    contract.add_contract_arguments(parser)
    profile.add_view_arguments(parser)


def take_program(parser: argparse.ArgumentParser, words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Split `words` where the program begins, and complete both by the run that --again names.

    Raises:
        UsageError: an option that we don't have stands before the program, or that run can't be run again.
        TraceError: there is no such run.
    """
    split = partial(_split, parser)
    options, program = again.completed(parser, *split(words), split)
    ours = [word for option in options for word in option]
    parser.set_defaults(words=(*ours, *program))
    return nsys.joined(ours), program


def _split(parser: argparse.ArgumentParser, words: Sequence[str]) -> tuple[list[list[str]], list[str]]:
    """Split `words` at the first that is neither an option of ours nor its value; return each option with its value."""
    position = 0
    options: list[list[str]] = []
    while position < len(words):
        word = words[position]
        if word in ("-", "--") or not word.startswith("-") or (word[:2] in ("-m", "-c") and word[:2] != "--"):
            break
        after = position + 1 + _values(parser, word)
        options.append(list(words[position:after]))
        position = after
    return options, list(words[position:])


def _steps(word: str) -> Spec:
    from traceable.capture.spec import parse

    return parse(word)


def _steps_number(word: str) -> int:
    if not (word.isascii() and word.isdigit() and 0 < int(word[:17]) <= 10**15):
        raise argparse.ArgumentTypeError(Message("number_invalid", f"{word!r} is no number of steps from 1 on"))
    return int(word)


def _milliseconds(word: str) -> float:
    try:
        number = float(word)
    except ValueError:
        number = -1.0
    if not 0 <= number < 1e9:
        refused = Message("milliseconds_invalid", f"{word!r} is no number of milliseconds from 0 to below 1e9")
        raise argparse.ArgumentTypeError(refused)
    return number


def _variables(arguments: argparse.Namespace) -> dict[str, str]:
    """What the options set in the program's environment."""
    asked = {environment.GC: "1"} if arguments.record_gc else {}
    if arguments.record_loop_pauses is not None:
        asked[environment.LOOP_PAUSES] = str(arguments.record_loop_pauses)
    if asked:
        from traceable.annotation.bootstrap import bootstrap_path

        # So that a program that never imports traceable is heard too.
        asked["PYTHONPATH"] = bootstrap_path(os.environ)
    if _controlled(arguments):
        asked[environment.CONTROL] = "1"
    if arguments.sigusr2 is not None:
        asked[environment.CONTROL_SIGNAL] = str(arguments.sigusr2 or SIGUSR2_STEPS)
    return {**asked, **flight.variables(arguments)}


def _controlled(arguments: argparse.Namespace) -> bool:
    """Whether windows may be asked for while it runs: what the program reads, its collector must be told."""
    if arguments.flight_recorder is not None:
        return False
    return arguments.control or arguments.sigusr2 is not None or environment.flag(environment.CONTROL)


def _steps_of_environment() -> Spec | None:
    """Return what TRACEABLE_STEPS asks for: what the program reads, its collector must be told."""
    asked = os.environ.get(environment.STEPS)
    return _steps(asked) if asked and not environment.flag(environment.DISABLE) else None


def _values(parser: argparse.ArgumentParser, word: str) -> int:
    """How many words after the option `word` are its value."""
    options = parser._option_string_actions  # argparse offers no public way to ask
    name, equals, _ = word.partition("=")
    if action := options.get(name):
        return 1 if action.nargs is None and not equals else 0
    if options.get(word[:2]) and not word.startswith("--"):
        return 0  # -oDIR
    if word[1] in PYTHON_FLAGS and not word.startswith("--"):
        raise UsageError(
            "option_of_python",
            f"{word} is an option of Python's, not of traceable's",
            f"write it before: python {word} -m traceable run",
        )
    near = difflib.get_close_matches(name, options, n=1)
    raise UsageError(
        "no_such_option",
        f"there is no option {name}",
        f"did you mean {near[0]}?" if near else f"type `{parser.prog} --help`; the program's own follow its name",
    )


def run(arguments: argparse.Namespace) -> int:
    """Run the program, print its profile, and return its exit code or die of its signal."""
    profile.check_output_files(arguments)
    if arguments.again is not None:
        _take_up(arguments)
    if ranks.step_aside(arguments):
        return 0
    gpu.check(arguments)
    flight.settle(arguments)
    targets = annotate.targets(arguments)
    steps = arguments.steps or _steps_of_environment()
    stepping = conditions.step_targets(arguments)
    held = conditions.asked(arguments, steps=steps is not None, controlled=_controlled(arguments))
    request = launcher.Request(
        target=target.parse(arguments.program),
        argv=(sys.argv[0], "run", *arguments.words),
        collector=arguments.collector,
        directory=arguments.output,
        name=arguments.name,
        force=arguments.force,
        expect=tuple(dict.fromkeys(arguments.expect)),
        variables={
            **_variables(arguments),
            **conditions.variables(held, steps=steps is not None),
            **conditions.step_variables(stepping),
            **annotate.variables(targets),
        },
        steps=str(steps) if steps else None,
        control=_controlled(arguments),
        windows=None if steps is None or steps.every else tuple(steps.windows),
        conditions=held,
        measure_overhead=arguments.measure_overhead,
        quiet=arguments.quiet,
        gpu=arguments.gpu,
        settings=nsys.settings(arguments),
    )
    request = ranks.placed(request, arguments, say)
    if request.grouped and profile.output_file(arguments) is not None:
        raise UsageError(
            "output_file_shared",
            f"every rank would write {profile.output_file(arguments)}",
            "run without it, then `traceable report --json=FILE`",
        )
    if arguments.collector == NOTHING_RECORDED and (request.expect or arguments.strict):
        raise UsageError(
            "expectation_without_recording",
            "without a recording no expectation can be judged",
            "use another --collector than none",
        )
    annotate.check((*targets, *stepping), request.target.command(target.interpreter_flags()))
    if arguments.dry_run:
        answer_command(launcher.describe(request, say))
        return 0
    with Worker(_prepare) as worker:
        try:
            profile.remove_output_file(arguments)
            finished = launcher.launch(request, say, worker)
        except NotComparableError as error:
            say(error.message)
            return end_like(error.status) or (contract.UNMET if arguments.strict else 0)
        directory = launcher.short(finished.run_dir)
        outcome = Outcome()
        try:
            if finished.readable:
                outcome = worker.call(_conclude, finished, arguments, (*targets, *stepping))
            elif finished.problem is not None:
                say(finished.problem)
        except DiedError as error:
            say(
                Message(
                    "profile_process_died",
                    f"making the profile {error}; the recording is kept: read it where there is more memory, with "
                    f"`python -m traceable report {directory}`",
                )
            )
        except KeyboardInterrupt:
            say(Message("profile_interrupted", f"the profile is not shown; the recording is kept in {directory}"))
        except Exception as error:  # noqa: BLE001 - a fault of ours: said, but it must not change the exit code either
            say(Message("profile_failed", f"the profile could not be made ({one_line(error)}); the recording is kept"))
    strict = _strict_code(finished, outcome, steps, arguments.gpu) if arguments.strict else 0
    return end_like(finished.status) or strict


def _prepare() -> None:
    """Set what holds for a process with large arrays, before numpy is loaded there."""
    from traceable.cli.allocation import keep_freed_memory, use_one_blas_thread

    use_one_blas_thread()
    keep_freed_memory()


def _conclude(finished: launcher.Finished, arguments: argparse.Namespace, targets: Sequence[Target]) -> Outcome:
    """Print what there is to see and to say after the program's end, and return what was asked for came to."""
    outcome = Outcome()
    try:
        if arguments.measure_overhead:
            overhead.measure(finished.run_dir, say)
        for note in annotate.unmatched(targets, finished.run_dir):
            say(note)
        if arguments.part_of is None:
            outcome = _show(finished, arguments)
            ranks.tell(finished.run_dir, say)
            if not arguments.quiet:
                flight.tell_dumps(finished.run_dir, say)
        elif finished.problem:
            say(finished.problem)
    except TraceableError as error:
        # The program has ended as it has; what we make of it changes neither its exit code nor the recording.
        say(error.message)
    except BrokenPipeError:
        sys.stdout = None
    return outcome


def _take_up(arguments: argparse.Namespace) -> None:
    """Go where the earlier run was, and say what is not as it was."""
    if arguments.output is not None:
        arguments.output = arguments.output.absolute()
    arguments.again = arguments.again.absolute()
    for line in again.enter(arguments.again):
        say(line)


@dataclass(frozen=True)
class Outcome:
    """What became of the ranges that were expected, the steps, and all that was emitted; None for not known."""

    judged: tuple[Verdict, ...] | None = None
    windows: Windows | None = None
    completeness: Completeness | None = None


def _strict_code(finished: launcher.Finished, outcome: Outcome, steps: Spec | None, with_gpu: bool) -> int:
    """Return what --strict makes the exit code of a program that succeeded, and say why where nothing else has."""
    if with_gpu and not gpu.operations(finished.recorded):
        say(Message("no_gpu_operations", "no GPU operation was recorded, and --gpu asks for them"))
        return contract.UNMET
    if finished.problem:
        say(Message("completeness_unknown", "what was emitted could not be compared with what was recorded"))
        return contract.UNMET
    counted = outcome.completeness is not None and outcome.completeness.state != "unknown"
    if not finished.expected and steps is None and outcome.windows is None and not with_gpu and not counted:
        error = contract.nothing_expected(outcome.completeness)
        say(error.message)
        return error.exit_code
    if (finished.expected and outcome.judged is None) or (steps is not None and outcome.windows is None):
        say(Message("expectations_not_judged", "what was expected could not be judged"))
        return contract.UNMET
    if outcome.windows is not None and not outcome.windows.met:
        return contract.UNMET
    return contract.strict_code(outcome.judged or (), outcome.completeness)


def _show(finished: launcher.Finished, arguments: argparse.Namespace) -> Outcome:
    """Print the profile and what became of what was asked for, and return that."""
    from traceable.cli import windows

    for note in finished.recorded.notes if finished.recorded else ():
        say(note)
    if finished.problem:
        say(finished.problem)
    database = finished.recorded.database if finished.recorded else None
    directory = launcher.short(finished.run_dir)
    shown = database is not None and profile.prints_tables(arguments)
    if arguments.measure_overhead and not shown and not arguments.quiet:
        overhead.tell(finished.run_dir, say)
    why = diagnosis.Why(finished.run_dir, say)
    if database is not None:
        judged, found, complete = profile.show(
            database,
            arguments,
            title=f"profile of {directory}",
            stream=sys.stdout if profile.on_stdout(arguments) else sys.stderr,
            save_to=finished.run_dir / "report.json",
            expected=finished.expected,
            run_directory=finished.run_dir,
            diagnose=why,
        )
        if not shown and not (arguments.quiet and (found is None or found.met)):
            windows.tell(found, say)
        windows.note(found, finished.run_dir)
        contract.tell(judged, say, quiet=arguments.quiet)
        if not shown:
            contract.tell_lost(complete, say)
        why.tell()
        if not arguments.quiet:
            say(f"next: python -m traceable report {directory}")
        return Outcome(judged, found, complete)
    if not finished.run_dir.is_dir():
        return Outcome()
    if arguments.collector != NOTHING_RECORDED:
        why(None, finished.problem)
    if finished.problem:
        why.tell()
        say(f"next: python -m traceable report {directory}, when that is mended")
        return Outcome()
    if arguments.collector == NOTHING_RECORDED:
        return Outcome()
    found = windows.without_recording(finished.run_dir)
    windows.tell(found, say)
    windows.note(found, finished.run_dir)
    from traceable.analysis.contract import verdicts

    judged = verdicts(finished.expected, None)
    contract.tell(judged, say, quiet=arguments.quiet)
    complete = contract.unrecorded(finished.run_dir)
    contract.tell_lost(complete, say)
    why.tell()
    return Outcome(judged, found, complete)


def end_like(status: int) -> int:
    """Return the exit code of a wait status, or die of its signal as the program did, leaving no core file."""
    code = os.waitstatus_to_exitcode(status)
    if code >= 0:
        return code
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.flush()
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    if -code not in (signal.SIGKILL, signal.SIGSTOP):
        signal.signal(-code, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [-code])
    os.kill(os.getpid(), -code)
    return 128 - code
