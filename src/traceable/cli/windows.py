"""The lines about the requested steps, for `run` and `report`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from traceable.errors import TraceError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from traceable.checks.windows import CaptureResult


def report_capture(windows: CaptureResult | None, log: Callable[[str], None]) -> None:
    """Print a line for the captured steps and one for each problem."""
    from traceable.report.windows import capture_to_dict, format_capture

    for line in format_capture(capture_to_dict(windows)):
        log(line)


def save_capture(windows: CaptureResult | None, run_directory: Path) -> None:
    """Write the captured steps into the manifest of the run; if that fails, the report still has them."""
    from traceable.protocol.capture_request import write_captured_windows
    from traceable.report.windows import capture_to_dict

    captured = capture_to_dict(windows)
    if captured is None:
        return
    try:
        write_captured_windows(run_directory, captured)
    except (OSError, TraceError):
        return


def evaluate_without_recording(run_directory: Path) -> CaptureResult | None:
    """Return the capture result of a run that left nothing to read; None where it has no windows.

    Raises:
        TraceError: it is not a run directory.
    """
    from traceable.checks.windows import evaluate_capture
    from traceable.protocol import run_dir
    from traceable.protocol.capture_request import load_capture_request

    request = load_capture_request(run_directory, run_dir.load_manifest(run_directory))
    return None if request is None else evaluate_capture(request, ())
