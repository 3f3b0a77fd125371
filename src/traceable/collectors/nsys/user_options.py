"""What nsys is asked to record: what it offers, the presets (`--trace-preset`), the user's own options (`--nsys-args`).

Options come, go and are renamed from one nsys to the next, so `nsys profile --help` of the one that is installed is
read. A preset is what is wished for; what that nsys does not offer, or the machine does not permit, is left out and
named. The user's own options always win. Some of them break what traceable promises: those that can't be had with it
are refused, of the others it is said what comes of them.

Nothing here starts nsys; what is asked of the machine comes in as `Machine`.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from traceable.collectors.base import NSYS_LOG
from traceable.errors import Message, UsageError
from traceable.protocol import environment

_HEADER = re.compile(
    r"^[ \t]+(?:(?P<short>-\w), )?--(?P<name>[a-z][a-z0-9-]*)(?:\[(?P<either>[a-z|-]+)\])?"
    r"(?P<value>=(?:[<\[].*)?)?[ \t]*$",
    re.MULTILINE,
)
"""The line that begins an option: `-t, --trace=`, `--help=[<tag>]`, `--nvtx-domain-[include|exclude]=`. A line of prose
that happens to begin with an option goes on after it."""

_POSSIBLE = re.compile(r"Possible values(?: for <[^>]*>)? are:?\s+(?P<list>.*?)\.(?=\s|$)", re.DOTALL)
_QUOTED = re.compile(r"['`]([^'`\s]+)'")
_PLAIN = re.compile(r"[\w-]+")

DEFAULT_PRESET = "default"

ALWAYS = (
    # By default nsys ends a program that outlives the collection; nothing of ours may do that.
    ("--kill", "none"),
    # `all` also waits for daemons that the program left behind (16 s instead of 1 s in a measured case).
    ("--wait", "primary"),
)
"""Options that nsys is given where its --help names them with this value, whatever the preset."""

NO_CPU_SAMPLING = (
    # Both need perf_event_paranoid <= 2, which containers seldom have, and neither feeds a number of ours.
    ("--sample", "none"),
    ("--cpuctxsw", "none"),
)
"""What a preset without samples of the CPU has in their place: nsys takes them by default."""

TRACE = "--trace"
GPU_METRICS = ("--gpu-metrics-devices", "--gpu-metrics-device")
"""The option has had two names; the newer first."""

_REFUSED = {
    "--output": (
        Message("nsys_output_reserved", "where the report lies is for traceable to say"),
        "name the run directory with `traceable run -o`",
    ),
    "--help": (Message("nsys_starts_no_program", "it starts no program"), "type `nsys profile --help`"),
}
"""Options that can't be had, with the reason and what to do."""

_GATES = ("--capture-range", "--capture-range-end", "--nvtx-capture")


@dataclass(frozen=True)
class Option:
    """One option of `nsys profile`.

    Attributes:
        name: its long name, `--trace`.
        short: its short one, `-t`; None for none.
        takes_value: whether something must follow it.
        values: what the help lists as possible, as it writes it (`repeat[:N]`); empty where it lists nothing. nsys
            accepts more than it lists, so what is not here is not refused.
        text: what the help says of it.
    """

    name: str
    short: str | None
    takes_value: bool
    values: tuple[str, ...]
    text: str

    def offers(self, value: str) -> bool:
        """Whether the help lists `value`, what may be appended to it left aside."""
        return any(re.split(r"[\[:]", listed)[0] == value for listed in self.values)

    def takes(self, value: str) -> bool:
        """Whether nothing in the help speaks against `value`, or a list of values: it lists none, or each of them."""
        return not self.values or all(self.offers(part.partition(":")[0]) for part in value.split(","))

    def mentions(self, word: str) -> bool:
        """Whether the help speaks of `word` anywhere."""
        return re.search(rf"(?<![\w-]){re.escape(word)}(?![\w-])", self.text) is not None


class Options:
    """The options of one nsys, by name.

    Args:
        options: all of them.
    """

    def __init__(self, options: Iterable[Option]) -> None:
        self._by_name = {name: one for one in options for name in (one.name, one.short) if name}

    def __contains__(self, name: str) -> bool:
        return name in self._by_name

    def get(self, name: str) -> Option | None:
        """Return the option that nsys takes `name` for: so called, or the only one whose long name begins so."""
        if name in self._by_name:
            return self._by_name[name]
        near = [one for one in self._by_name if one.startswith(name)] if name.startswith("--") and name != "--" else []
        return self._by_name[near[0]] if len(near) == 1 else None

    def offers(self, name: str, value: str) -> bool:
        """Whether there is an option `name` that lists `value`."""
        return name in self._by_name and self._by_name[name].offers(value)

    def takes(self, name: str, value: str) -> bool:
        """Whether there is an option `name`, and nothing in the help speaks against `value`."""
        return name in self._by_name and self._by_name[name].takes(value)

    def find_nearest(self, name: str) -> str | None:
        """Return the option whose name is most like `name`; None where none is."""
        near = difflib.get_close_matches(name, [one for one in self._by_name if one.startswith("--")], n=1)
        return near[0] if near else None


def parse_help(text: str) -> Options:
    """Read the output of `nsys profile --help`; what is no option in it is passed over."""
    headers = list(_HEADER.finditer(text))
    ends = [header.start() for header in headers[1:]] + [len(text)]
    found = []
    for header, end in zip(headers, ends, strict=False):
        said = text[header.end() : end]
        takes_value = header["value"] is not None and not header["value"].startswith("=[")
        for last in (header["either"] or "").split("|"):
            name = f"--{header['name']}{last}"
            found.append(Option(name, header["short"], takes_value, _values(said), said))
    return Options(found)


def _values(said: str) -> tuple[str, ...]:
    match = _POSSIBLE.search(said)
    if match is None or "for example" in match["list"]:
        return ()
    quoted = _QUOTED.findall(match["list"])
    if quoted:
        return tuple(dict.fromkeys(quoted))
    words = re.split(r",\s*(?:or\s+)?|\s+or\s+", match["list"])
    return tuple(words) if all(_PLAIN.fullmatch(word) for word in words) else ()


@dataclass(frozen=True)
class Preset:
    """What to record.

    Attributes:
        trace: the APIs, of which `cuda` and `nvtx` are in all of them.
        options: further options with their values.
        sampling_options: options that need samples of the CPU, and are left out where it can't be sampled.
        gpu_metrics: sample the GPU's own counters.
    """

    trace: tuple[str, ...] = ("cuda", "nvtx")
    options: tuple[tuple[str, str], ...] = ()
    sampling_options: tuple[tuple[str, str], ...] = ()
    gpu_metrics: bool = False


# The default, `graph` with a driver of CUDA 11.7 or newer, leaves the kernels of a CUDA graph out of the report.
_GRAPH_NODES = ("--cuda-graph-trace", "node")
_PYTHON = (("--python-sampling", "true"),)
_BACKTRACES = (
    ("--sample", "process-tree"),
    # The threshold in ns from which on a call gets a backtrace; its default went from 80000 to 1000.
    ("--cudabacktrace", "all:80000"),
    ("--python-backtrace", "cuda"),
)

# Not `python-gil`: 2023.4.4 records the GIL as NVTX ranges (domain `GIL Trace`), which enclose the program's own.
PRESETS = {
    "light": Preset(),
    DEFAULT_PRESET: Preset(options=(_GRAPH_NODES,)),
    "python": Preset(options=(_GRAPH_NODES, *_PYTHON), sampling_options=_BACKTRACES),
    "full": Preset(
        ("cuda", "nvtx", "osrt", "cublas", "cusparse", "cusolver", "cudnn", "nccl", "mpi", "ucx"),
        (_GRAPH_NODES, ("--cuda-memory-usage", "true"), *_PYTHON),
        (*_BACKTRACES, ("--cpuctxsw", "process-tree")),
        gpu_metrics=True,
    ),
}
"""Each preset by its name. docs/nsys.md says what it records and costs."""


class Machine(Protocol):
    """What is asked of the machine, and only where a preset wishes for it."""

    def explain_no_sampling(self) -> Message | None:
        """Return why the CPU can't be sampled; None where it can."""
        ...

    def select_gpu_metrics_devices(self, option: str) -> tuple[str | None, str]:
        """Return the value that selects the GPUs whose counters may be sampled, or None and why there is none."""
        ...


@dataclass(frozen=True)
class ResolvedPreset:
    """What a preset comes to with one nsys on one machine.

    Attributes:
        options: in order, with their values.
        missing: what this nsys does not have, as one would type it.
        not_permitted: what the machine does not permit, each with the reason.
    """

    options: tuple[tuple[str, str], ...]
    missing: tuple[str, ...] = ()
    not_permitted: tuple[Message, ...] = ()


def resolve_preset(preset: Preset, options: Options, machine: Machine) -> ResolvedPreset:
    """Return what of `preset` this nsys offers and this machine permits."""
    missing: list[str] = []
    refused: list[Message] = []
    trace = [api for api in preset.trace if api in ("cuda", "nvtx") or options.offers(TRACE, api)]
    missing += [f"{TRACE}={api}" for api in preset.trace if api not in trace]
    chosen = [(TRACE, ",".join(trace)), *_there(ALWAYS, options)]
    wished = preset.options
    if preset.sampling_options and (reason := machine.explain_no_sampling()):
        refused.append(Message(reason.code, f"samples and backtraces of the CPU ({reason})"))
    else:
        wished += preset.sampling_options
    chosen += _there([one for one in NO_CPU_SAMPLING if one[0] not in dict(wished)], options)
    chosen += _there(wished, options)
    missing += [_named(name, value, options) for name, value in wished if not options.takes(name, value)]
    if preset.gpu_metrics:
        name = next((one for one in GPU_METRICS if one in options), None)
        value, why = machine.select_gpu_metrics_devices(name) if name else (None, "this nsys has none")
        if name and value:
            chosen.append((name, value))
        else:
            refused.append(Message("gpu_counters_unavailable", f"the GPU's counters ({why})"))
    return ResolvedPreset(tuple(chosen), tuple(missing), tuple(refused))


def _there(wished: Iterable[tuple[str, str]], options: Options) -> list[tuple[str, str]]:
    return [(name, value) for name, value in wished if options.takes(name, value)]


def _named(name: str, value: str, options: Options) -> str:
    """Return what is missing as one would type it: the option, or this value of it."""
    return f"{name}={value}" if name in options else name


@dataclass(frozen=True)
class NsysRequest:
    """What the command line asks of nsys; `str` gives it as one would type it.

    Attributes:
        preset: a name of `PRESETS`; None for the default one.
        words: nsys's own options, as a shell would split them.
    """

    preset: str | None = None
    words: tuple[str, ...] = ()

    def __str__(self) -> str:
        preset = f"--trace-preset {self.preset}" if self.preset else ""
        return " and ".join(filter(None, (preset, "--nsys-args" if self.words else "")))

    @property
    def effective_preset(self) -> Preset:
        """The preset itself."""
        return PRESETS[self.preset or DEFAULT_PRESET]


@dataclass(frozen=True)
class UserOption:
    """One option of the user's.

    Attributes:
        name: the long name by which this nsys lists it; as it was typed where it lists none.
        value: what was given to it; None for nothing.
        words: as it was typed.
        known: whether this nsys lists it. There are some that it doesn't.
    """

    name: str
    value: str | None
    words: tuple[str, ...]
    known: bool

    def __str__(self) -> str:
        return " ".join(self.words)


def parse_user_options(words: Sequence[str], options: Options) -> tuple[UserOption, ...]:
    """Read the user's own options as nsys does: `--opt=value`, `--opt value`, `-ovalue`, `-o value`, shortened names.

    Raises:
        UsageError: a word is neither an option nor the value of one, or a value is missing.
    """
    found: list[UserOption] = []
    position = 0
    while position < len(words):
        word = words[position]
        if not word.startswith("-") or word in ("-", "--"):
            raise UsageError(
                "nsys_args_not_an_option",
                f"{word!r} in --nsys-args is no option of nsys's",
                "the program follows traceable's own options",
            )
        typed, joined, value = _split(word)
        option = options.get(typed)
        taken = 1
        if not joined and (option is None or option.takes_value):
            if position + 1 == len(words):
                raise UsageError("value_missing", f"{typed} in --nsys-args needs a value", f"write {typed}=VALUE")
            value, taken = words[position + 1], 2
        name = option.name if option else typed
        found.append(UserOption(name, value, tuple(words[position : position + taken]), option is not None))
        position += taken
    return tuple(found)


def _split(word: str) -> tuple[str, bool, str | None]:
    """Split a word into an option, whether its value is joined to it, and that."""
    if word.startswith("--"):
        name, joined, value = word.partition("=")
        return name, bool(joined), value if joined else None
    return word[:2], len(word) > 2, word[2:] or None


def check_user_options(given: Iterable[UserOption]) -> None:
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


def check_window_options(given: Iterable[UserOption]) -> None:
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


def merge_options(ours: Sequence[tuple[str, str]], given: Sequence[UserOption]) -> list[str]:
    """Return the words for both: nsys takes an option once, so of ours those that the user gives too are left out."""
    theirs = {one.name for one in given}
    words = [f"{name}={value}" for name, value in ours if name not in theirs]
    return [*words, *(word for one in given for word in one.words)]


def list_option_notes(given: Iterable[UserOption], hangs_with_samples: Message | None = None) -> tuple[Message, ...]:
    """Return a note for each option that changes what traceable otherwise promises.

    Args:
        given: the user's options.
        hangs_with_samples: why this nsys may not end when it samples the CPU; None where it does.
    """
    return tuple(note for one in given if (note := _note(one, hangs_with_samples)))


def _note(one: UserOption, hangs_with_samples: Message | None) -> Message | None:
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
