"""What the user asks of nsys: a preset (`--trace-preset`) and options of nsys's own (`--nsys-args`), which always win.

Some of them break what traceable promises. Those that can't be had with it are refused; of the others it is said what
comes of them. Whether nsys has an option is not decided here.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from traceable import environment
from traceable.collect import nsys_presets
from traceable.collect.base import NSYS_LOG
from traceable.collect.nsys_options import Given
from traceable.errors import Message, UsageError


@dataclass(frozen=True)
class Asked:
    """What the command line asks of nsys; `str` gives it as one would type it.

    Attributes:
        preset: a name of `nsys_presets.PRESETS`; None for the default one.
        words: nsys's own options, as a shell would split them.
    """

    preset: str | None = None
    words: tuple[str, ...] = ()

    def __str__(self) -> str:
        preset = f"--trace-preset {self.preset}" if self.preset else ""
        return " and ".join(filter(None, (preset, "--nsys-args" if self.words else "")))

    @property
    def wished(self) -> nsys_presets.Preset:
        """The preset itself."""
        return nsys_presets.PRESETS[self.preset or nsys_presets.DEFAULT]


_REFUSED = {
    "--output": (
        Message("nsys_output_reserved", "where the report lies is for traceable to say"),
        "name the run directory with `traceable run -o`",
    ),
    "--help": (Message("nsys_starts_no_program", "it starts no program"), "type `nsys profile --help`"),
}
"""Options that can't be had, with the reason and what to do."""

_GATES = ("--capture-range", "--capture-range-end", "--nvtx-capture")


def check(given: Iterable[Given]) -> None:
    """Refuse what can't be had.

    Raises:
        UsageError: naming the first of them.
    """
    for one in given:
        if one.name in _REFUSED:
            why, remedy = _REFUSED[one.name]
            raise UsageError(why.code, f"{one} can't be in --nsys-args: {why}", remedy)
        if one.value == "help":
            found = f"{one} can't be in --nsys-args: it starts no program"
            raise UsageError("nsys_starts_no_program", found, f"type `nsys profile {one}`")
        if one.name == "--inherit-environment" and one.value == "false":
            raise UsageError(
                "nsys_passes_no_environment",
                f"{one} can't be in --nsys-args: the program's environment does not come by nsys",
                "start traceable with `env -i`",
            )


def check_gated(given: Iterable[Given]) -> None:
    """Refuse what can't be had where windows are recorded.

    Raises:
        UsageError: naming the first of them.
    """
    domain = environment.WINDOW_DOMAIN
    for one in given:
        values = (one.value or "").split(",")
        if one.name in _GATES:
            raise UsageError(
                "nsys_capture_range_reserved",
                f"{one} can't be in --nsys-args: what nsys records is decided by the windows asked for",
                "leave it out, or --steps, --control and --sigusr2",
            )
        if one.name == "--trace" and "nvtx" not in values:
            raise UsageError(
                "windows_need_nvtx", f"{one} can't record windows, which are NVTX ranges", "add nvtx to it"
            )
        if (one.name == "--nvtx-domain-include" and domain not in values) or (
            one.name == "--nvtx-domain-exclude" and domain in values
        ):
            found = f"{one} leaves out the domain that the windows are known by"
            raise UsageError("window_domain_excluded", found, f"let {domain} in")


def merged(ours: Sequence[tuple[str, str]], given: Sequence[Given]) -> list[str]:
    """Return the words for both: nsys takes an option once, so of ours those that the user gives too are left out."""
    theirs = {one.name for one in given}
    words = [f"{name}={value}" for name, value in ours if name not in theirs]
    return [*words, *(word for one in given for word in one.words)]


def notes(given: Iterable[Given], hangs_with_samples: Message | None = None) -> tuple[Message, ...]:
    """Return a note for each option that changes what traceable otherwise promises.

    Args:
        given: the user's options.
        hangs_with_samples: why this nsys may not end when it samples the CPU; None where it does.
    """
    return tuple(note for one in given if (note := _note(one, hangs_with_samples)))


def _note(one: Given, hangs_with_samples: Message | None) -> Message | None:
    if hangs_with_samples and one.name in ("--sample", "--cpuctxsw") and one.value != "none":
        return Message(
            hangs_with_samples.code,
            f"{one}: {hangs_with_samples}; Ctrl+C twice then ends the run, and nsys is left to be killed",
        )
    if one.name == "--trace" and "nvtx" not in (one.value or "").split(","):
        return Message("nvtx_not_traced", f"{one}: without nvtx no range is recorded")
    if one.name == "--trace" and "python-gil" in (one.value or "").split(","):
        return Message(
            "gil_recorded_as_ranges",
            f"{one}: the GIL is recorded as ranges, in the profile too, where they enclose the program's own",
        )
    if one.name == "--kill" and one.value != "none":
        return Message("nsys_may_end_program", f"{one}: nsys may end the program when it stops recording")
    if one.name == "--wait" and one.value == "all":
        return Message(
            "report_waits_for_processes",
            f"{one}: the report is there when every process that the program left behind has ended",
        )
    if one.name == "--duration":
        return Message(
            "recording_limited",
            f"{one}: what comes after {one.value} s is not recorded, and a range open then looks shorter than it is",
        )
    if one.name == "--stop-on-exit" and one.value == "false":
        return Message("run_lasts_until_duration", f"{one}: the run lasts until nsys's --duration is over")
    if one.name == "--stats" and one.value == "true":
        return Message("nsys_tables_in_log", f"{one}: its tables are in {NSYS_LOG} in the run directory")
    if one.name == "--export" and one.value != "none":
        return Message("nsys_exports_too", f"{one}: nsys writes these files too; traceable makes its .sqlite by itself")
    if one.name == "--command-file":
        return Message(
            "nsys_command_file",
            f"{one}: of what it says, that counts which traceable says nothing about; see --dry-run",
        )
    return None
