"""The option `--flight-recorder` of `run`, and what `run` and `report` say of its dumps."""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable
from pathlib import Path

from traceable import collectors
from traceable.collectors.recorder.flight import parse_flight_recorder
from traceable.errors import UsageError
from traceable.launch import flight
from traceable.protocol import environment

RECORDER = "recorder"
_SIGUSR2_ALONE = 0
_DUMPS_MAX = 20


def add_flight_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the option."""
    parser.add_argument(
        "--flight-recorder",
        metavar="HOW-MUCH",
        type=parse_flight_recorder,
        help="keep the last 5s, 64MB or 5s,64MB of each process; dumped on request (traceable help flight-recorder)",
    )


def resolve_flight_options(arguments: argparse.Namespace) -> None:
    """Take what the environment asks for where the option is absent, and the recorder where any collector will do.

    Raises:
        UsageError: other options ask for what a flight recorder can't do.
    """
    asked = os.environ.get(environment.FLIGHT_RECORDER)
    if arguments.flight_recorder is None and asked and not environment.read_flag(environment.DISABLE):
        arguments.flight_recorder = parse_flight_recorder(asked)
    if arguments.flight_recorder is None:
        return
    if arguments.collector not in (collectors.AUTO, RECORDER):
        raise UsageError(
            "flight_recorder_needs_recorder",
            f"--flight-recorder is the embedded recorder's, and the collector is {arguments.collector}",
            "use --collector recorder, or leave --collector out",
        )
    if arguments.steps is not None or os.environ.get(environment.STEPS):
        raise UsageError(
            "flight_recorder_with_steps",
            "--steps records some steps only, and --flight-recorder keeps what came last of all",
            "leave one of them out",
        )
    if arguments.control or environment.read_flag(environment.CONTROL):
        raise UsageError(
            "flight_recorder_with_control",
            "--control records nothing until it is asked to, and --flight-recorder all the time",
            "leave --control out: `traceable control dump` works without it",
        )
    if arguments.gpu:
        raise UsageError(
            "flight_recorder_with_gpu",
            "--flight-recorder keeps ranges, and --gpu all that the GPU does",
            "leave one of them out",
        )
    if arguments.sigusr2 not in (None, _SIGUSR2_ALONE):
        raise UsageError(
            "flight_recorder_with_step_count",
            f"--sigusr2={arguments.sigusr2} counts steps, and with --flight-recorder SIGUSR2 writes a dump",
            "write --sigusr2 without a number",
        )
    arguments.collector = RECORDER


def make_flight_environment(arguments: argparse.Namespace) -> dict[str, str]:
    """Return what a flight recorder sets in the program's environment."""
    if arguments.flight_recorder is None:
        return {}
    asked = {environment.FLIGHT_RECORDER: arguments.flight_recorder.variable, environment.CONTROL: "1"}
    return asked | ({environment.CONTROL_SIGNAL: "dump"} if arguments.sigusr2 is not None else {})


def report_dumps(directory: Path, say: Callable[[str], None]) -> None:
    """Say which dumps the run in `directory` has; nothing where it has none or is no run."""
    found = flight.list_dumps(directory) if directory.is_dir() else []
    for dump in found[:_DUMPS_MAX]:
        clock = time.strftime("%H:%M:%S", time.localtime(dump.wall_ns // 10**9))
        who = f"process {dump.pids[0]}" if len(dump.pids) == 1 else f"{len(dump.pids)} processes"
        say(f"{dump.directory.name}: {who} at {clock}, by {dump.by}: python -m traceable report {dump.directory}")
    if len(found) > _DUMPS_MAX:
        say(f"{len(found) - _DUMPS_MAX} more dumps in {directory}")
