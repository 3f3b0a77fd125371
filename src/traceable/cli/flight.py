"""The option `--flight-recorder` of `run`, and the lines of `run` and `report` on its dumps."""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable
from pathlib import Path

from traceable import collectors
from traceable.errors import UsageError
from traceable.protocol import environment

TYPE_CHECKING = False
if TYPE_CHECKING:
    from traceable.collectors.recorder.flight import FlightRecorder

_SIGUSR2_ALONE = 0
_DUMPS_MAX = 20


def add_flight_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the option."""
    parser.add_argument(
        "--flight-recorder",
        metavar="LIMIT",
        type=_parse_limits,
        help="keep only the most recent data, as 5s, 64MB or 5s,64MB; dump on request (traceable help flight-recorder)",
    )


def _parse_limits(text: str) -> FlightRecorder:
    from traceable.collectors.recorder.flight import parse_flight_recorder

    return parse_flight_recorder(text)


def resolve_flight_options(arguments: argparse.Namespace) -> None:
    """Take the value of the environment where the option is absent, and a collector that has it where none is given.

    Raises:
        UsageError: other options conflict with a flight recorder.
    """
    text = os.environ.get(environment.FLIGHT_RECORDER)
    if arguments.flight_recorder is None and text and not environment.read_flag(environment.DISABLE):
        arguments.flight_recorder = _parse_limits(text)
    if arguments.flight_recorder is None:
        return
    names = collectors.COLLECTORS if arguments.collector == collectors.AUTO else [arguments.collector]
    collector = next((name for name in names if collectors.create_collector(name).has_flight_recorder), None)
    if collector is None:
        raise UsageError(
            "flight_recorder_needs_recorder",
            f"--flight-recorder needs the recorder, but the collector is {arguments.collector}",
            "use --collector recorder, or leave --collector out",
        )
    if arguments.steps is not None or os.environ.get(environment.STEPS):
        raise UsageError(
            "flight_recorder_with_steps",
            "--steps records some steps only, but --flight-recorder keeps the most recent data of all",
            "leave one of them out",
        )
    if arguments.control or environment.read_flag(environment.CONTROL):
        raise UsageError(
            "flight_recorder_with_control",
            "--control records only on request, but --flight-recorder records all the time",
            "leave --control out: `traceable control dump` works without it",
        )
    if arguments.gpu:
        raise UsageError(
            "flight_recorder_with_gpu",
            "--flight-recorder keeps only ranges, but --gpu records the GPU",
            "leave one of them out",
        )
    if arguments.sigusr2 not in (None, _SIGUSR2_ALONE):
        raise UsageError(
            "flight_recorder_with_step_count",
            f"--sigusr2={arguments.sigusr2} counts steps, but with --flight-recorder SIGUSR2 writes a dump",
            "write --sigusr2 without a number",
        )
    arguments.collector = collector


def report_dumps(directory: Path, log: Callable[[str], None]) -> None:
    """Log the dumps of the run in `directory`; nothing where it has none or is not a run."""
    from traceable.launch import flight

    dumps = flight.list_dumps(directory) if directory.is_dir() else []
    for dump in dumps[:_DUMPS_MAX]:
        clock = time.strftime("%H:%M:%S", time.localtime(dump.wall_ns // 10**9))
        who = f"process {dump.pids[0]}" if len(dump.pids) == 1 else f"{len(dump.pids)} processes"
        log(f"{dump.directory.name}: {who} at {clock}, by {dump.by}: python -m traceable report {dump.directory}")
    if len(dumps) > _DUMPS_MAX:
        log(f"{len(dumps) - _DUMPS_MAX} more dumps in {directory}")
