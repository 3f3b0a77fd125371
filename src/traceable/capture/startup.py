"""Starts what the launcher requests of this process, when the program imports traceable."""

from __future__ import annotations

import os
import sys

from traceable.annotation import engine
from traceable.protocol import environment
from traceable.protocol.python_command import MODULE, parse_python_command


def start_timed_capture() -> None:
    """Record the program once the launcher's conditions are met, even if it takes no steps."""
    if engine.disabled or is_our_command():
        return
    from traceable.capture.windows import timed_window

    timed_window.start()


def listen_from_environment() -> None:
    """Listen on the control socket and for the signal, if the launcher requests it."""
    from traceable.capture.triggers import DUMP, on_signal

    if engine.disabled or is_our_command():
        return
    run_dir = os.environ.get(environment.RUN_DIR, "")
    if environment.read_flag(environment.CONTROL):
        if run_dir:
            from traceable.capture import control_server

            control_server.serve(run_dir)
        else:
            environment.warn_once("no_run_dir", f"{environment.CONTROL} needs a run directory; ignored")
    steps = os.environ.get(environment.CONTROL_SIGNAL, "").strip()
    if steps.isascii() and steps.isdigit() and int(steps[:16]) > 0:
        on_signal(int(steps[:16]))
    elif steps == DUMP:
        on_signal(None)
    elif steps:
        environment.warn_once(
            "variable_invalid",
            f"{environment.CONTROL_SIGNAL}={steps[:40]!r} is not a number of steps; ignored",
            key=environment.CONTROL_SIGNAL,
        )


def is_our_command() -> bool:
    """Whether this process is `traceable` itself, started by a program of the run."""
    words: list[str] = getattr(sys, "argv", None) or [""]
    if words[0] == "-m":  # until Python has found the module
        command = parse_python_command(sys.orig_argv)
        return (command.kind, command.program) == (MODULE, "traceable")
    return os.path.basename(words[0]) == "traceable"  # noqa: PTH119
