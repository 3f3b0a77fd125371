"""What `run` and `report` share: saying what became of the steps that were asked for."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from traceable.errors import TraceError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from traceable.analysis.windows import Windows


def tell(windows: Windows | None, say: Callable[[str], None]) -> None:
    """Print a line for what was captured and one for everything that went wrong."""
    from traceable.report.windows import lines, plain

    for line in lines(plain(windows)):
        say(line)


def note(windows: Windows | None, run_directory: Path) -> None:
    """Write what was captured into the manifest of the run; where that can't be, the report still has it."""
    from traceable.launch.windows import write_captured
    from traceable.report.windows import plain

    captured = plain(windows)
    if captured is None:
        return
    try:
        write_captured(run_directory, captured)
    except (OSError, TraceError):
        return


def without_recording(run_directory: Path) -> Windows | None:
    """Return what became of the windows of a run that left nothing to read; None where it was asked for none.

    Raises:
        TraceError: it is no run directory.
    """
    from traceable.analysis.windows import judged
    from traceable.launch import run_dir
    from traceable.launch.windows import asked

    wanted = asked(run_directory, run_dir.read(run_directory))
    return None if wanted is None else judged(wanted, ())
