"""The file of `traceable job`: YAML as typed, checked values; every error with file, line and column.

msgspec checks the types and makes the JSON Schema, PyYAML composes the nodes, which know their positions. Nothing is
started here.
"""

from __future__ import annotations

import difflib
import math
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias, get_args, get_origin, get_type_hints

import msgspec
import yaml
from msgspec import Meta

from traceable.errors import UsageError

PHASES = ("prefill", "decode", "aggregated")
"""The names of the phases, in the order in which they run."""

SIZES = ("isl", "osl", "concurrency")
"""The keys of a phase that may be lists: a sweep."""

_MAX_BYTES = 1 << 20
_MAX_NODES = 10_000
"""Of a file with its aliases expanded: a few lines of anchors can expand to billions."""

_MAX_DEPTH = 32
_TAGS = frozenset({"str", "timestamp", "int", "float", "bool", "null", "value", "seq", "map"})
_KINDS = {yaml.ScalarNode: "a single value", yaml.SequenceNode: "a list", yaml.MappingNode: "a mapping"}
_TAG = "tag:yaml.org,2002:"
_PLACE = re.compile(r"^(.*) - at `(?:key` in `)?\$(.*)`$", re.DOTALL)
_UNKNOWN = re.compile(r"Object contains unknown field `(.*)`", re.DOTALL)
_MISSING = re.compile(r"Object missing required field `(.*)`", re.DOTALL)
_CHOICE = re.compile(r"Invalid enum value '(.*)'", re.DOTALL)
_OPERATORS = frozenset({"&&", "||", "|", "&", ";", ">", ">>", "<", "2>&1"})
_NAME = re.compile(r"[\w-]+")

KeyPath: TypeAlias = tuple[str | int, ...]
Count: TypeAlias = Annotated[int, Meta(ge=1)]
Step: TypeAlias = Annotated[int, Meta(ge=0)]
Seconds: TypeAlias = Annotated[float, Meta(gt=0)]
Sweep: TypeAlias = Count | Annotated[list[Count], Meta(min_length=1)]


class Section(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A mapping of the file; another key than these is an error."""


class Server(Section, frozen=True):
    """How a server is started, for all phases or, inside a phase, in place of the same keys for all phases."""

    command: Annotated[str, Meta(description="the command line of the server, with placeholders")] | None = None
    ready: (
        Annotated[
            str | list[str],
            Meta(description="when it is ready, as --ready of `traceable serve`: by default the preset's"),
        ]
        | None
    ) = None
    ready_timeout: Annotated[float, Meta(gt=0, description="seconds until the server must be ready (120)")] | None = (
        None
    )
    env: Annotated[dict[str, str | int], Meta(description="additional environment variables of the server")] = {}
    preset: Annotated[str, Meta(description="what is known of the server, as --preset of `serve`")] | None = None
    options: (
        Annotated[str, Meta(description="further options of `traceable run` for the server, as in a shell")] | None
    ) = None


class Client(Section, frozen=True):
    """The program that sends the load: a tool with its settings, or a command."""

    tool: Literal["aiperf", "builtin"] | None = None
    command: Annotated[str, Meta(description="the command line of your own client, with placeholders")] | None = None
    env: Annotated[dict[str, str | int], Meta(description="additional environment variables of the client")] = {}
    url: (
        Annotated[
            str, Meta(description="where the load goes: by default unix:{uds} or http://127.0.0.1:{port} of the server")
        ]
        | None
    ) = None
    model: Annotated[str, Meta(description="the model's name in requests; by default the server's first")] = ""
    endpoint: Literal["completions", "chat"] = "completions"
    rate: (
        Annotated[float, Meta(gt=0, description="requests per second with Poisson arrivals; by default closed loop")]
        | None
    ) = None
    seed: Annotated[int, Meta(ge=0, description="seed of prompts and arrivals")] = 0
    streaming: Annotated[bool, Meta(description="request a stream of tokens, as TTFT and ITL need it")] = True
    tokenizer: Annotated[str, Meta(description="directory of a tokenizer")] | None = None


ClientChoice: TypeAlias = Literal["aiperf", "builtin"] | Client


class Phase(Section, frozen=True):
    """One phase: its load, and which steps of the server are recorded under it."""

    isl: Annotated[Sweep, Meta(description="input tokens of a request; a list is a sweep")] | None = None
    osl: Annotated[Sweep, Meta(description="output tokens of a request; a list is a sweep")] | None = None
    concurrency: Annotated[Sweep, Meta(description="requests at once; a list is a sweep")] | None = None
    start_step: Annotated[Step, Meta(description="the first recorded step, counted from when the load is steady")] = 0
    stop_step: Annotated[Step, Meta(description="the first step after the window")] = 50
    requests: Annotated[Count, Meta(description="number of requests after the warm-up; by default enough")] | None = (
        None
    )
    warmup_requests: (
        Annotated[Count, Meta(description="requests before the load counts as steady; by default the concurrency")]
        | None
    ) = None
    server: Server | None = None
    client: ClientChoice | None = None


class Profiling(Section, frozen=True):
    """What is recorded, and the phases; isl, osl and concurrency here are defaults of the phases."""

    type: Annotated[Literal["none", "torch", "nsys", "recorder"], Meta(description="none: only the load")] = "none"
    mode: Annotated[
        Literal["steps", "system-wide"],
        Meta(description="system-wide: by time, with nsys, for workers that no launcher can wrap"),
    ] = "steps"
    delay_s: Annotated[float, Meta(ge=0, description="system-wide: seconds from the server's start")] | None = None
    duration_s: Annotated[float, Meta(gt=0, description="system-wide: seconds that are recorded")] | None = None
    extra_nsys_args: Annotated[list[str], Meta(description="further options of `nsys profile`, with type nsys")] = []
    isl: Annotated[Sweep, Meta(description="default of the phases")] | None = None
    osl: Annotated[Sweep, Meta(description="default of the phases")] | None = None
    concurrency: Annotated[Sweep, Meta(description="default of the phases")] | None = None
    prefill: Phase | None = None
    decode: Phase | None = None
    aggregated: Phase | None = None


class Resources(Section, frozen=True):
    """The workers that the server's command starts: profiling needs one of each kind."""

    prefill_workers: Count = 1
    decode_workers: Count = 1
    agg_workers: Count = 1


class Benchmark(Section, frozen=True):
    """srt-slurm's section: a profiled job runs no benchmark."""

    type: str = "manual"


class Job(Section, frozen=True):
    """A file of `traceable job`."""

    profiling: Profiling
    server: Server = Server()
    client: ClientChoice | None = None
    name: Annotated[str, Meta(description="name of the job, without . and /; by default of the file")] | None = None
    output: Annotated[str, Meta(description="the output directory; {name} and {time} are filled in")] = (
        "logs/{name}_{time}"
    )
    resources: Resources = Resources()
    benchmark: Benchmark = Benchmark()

    @property
    def phases(self) -> dict[str, Phase]:
        """The phases of the job by name, in their order."""
        given = {name: getattr(self.profiling, name) for name in PHASES}
        return {name: phase for name, phase in given.items() if phase is not None}


_SECTIONS: dict[str | int, type[Section]] = {
    "profiling": Profiling,
    **dict.fromkeys(PHASES, Phase),
    "server": Server,
    "client": Client,
    "resources": Resources,
    "benchmark": Benchmark,
}
"""What a mapping is, by its key."""


def make_schema() -> dict[str, Any]:
    """Return the JSON Schema of the file, for editors."""
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **msgspec.json.schema(Job)}


def load_job(path: Path, settings: Sequence[str] = ()) -> Job:
    """Return the job of a file.

    Args:
        path: the file.
        settings: the values of `--set`, as `prefill.concurrency=64`; they replace those of the file.

    Raises:
        UsageError: the file can't be read, is not YAML, or is not a valid job; with file, line and column.
    """
    document = _read_document(path)
    for setting in settings:
        document.set_value(setting)
    try:
        job = msgspec.convert(document.content, Job)
    except msgspec.ValidationError as error:
        raise _explain_invalid_value(document, str(error)) from None
    _check_job(document, job)
    if job.name is None:
        job = msgspec.structs.replace(job, name=re.sub(r"[^\w-]", "_", path.stem))
    return job


@dataclass
class _Document:
    """The content of the file as plain values, and where each is.

    Attributes:
        content: the top mapping.
        file: as the user gave it.
        places: of each key or item, `file:line:column`, or the option `--set` that set it.
    """

    content: dict[str, Any]
    file: str
    places: dict[KeyPath, str] = field(default_factory=dict)

    def get_place(self, *path: str | int) -> str:
        """Return where the value at a path is; for an absent one, where the mapping is that lacks it."""
        while path not in self.places:
            path = path[:-1]
        return self.places[path]

    def has(self, *path: str | int) -> bool:
        """Whether the file or `--set` gives this value."""
        return path in self.places

    def set_value(self, setting: str) -> None:
        """Replace or add a value by `path=value`; the value is YAML, and keys of `profiling` need no prefix."""
        name, equals, text = setting.partition("=")
        place = f"--set {name[:80]}"
        keys = name.split(".")
        if not equals or not all(keys):
            raise UsageError(
                "setting_invalid", f"--set {setting[:80]!r} is not KEY=VALUE", "write --set prefill.concurrency=64"
            )
        if keys[0] not in Job.__struct_fields__ and keys[0] in Profiling.__struct_fields__:
            keys.insert(0, "profiling")
        holder = self.content
        for depth, key in enumerate(keys[:-1], 1):
            if not isinstance(holder.setdefault(key, {}), dict):
                problem = f"{place}: {'.'.join(keys[:depth])} is not a mapping in {self.file}"
                raise UsageError("setting_of_a_value", problem, "set the whole value, as in --set client=builtin")
            self.places.setdefault(tuple(keys[:depth]), place)
            holder = holder[key]
        for old in [one for one in self.places if one[: len(keys)] == tuple(keys)]:
            del self.places[old]
        node = _compose(text, place)
        self.places[tuple(keys)] = place
        holder[keys[-1]] = None if node is None else _Builder(place, self.places, is_file=False).build(node, (*keys,))


def _read_document(path: Path) -> _Document:
    try:
        with path.open("rb") as file:
            data = file.read(_MAX_BYTES + 1)
        text = data.decode("utf-8-sig")
    except OSError as error:
        raise UsageError("job_not_read", f"can't read {path}: {error.strerror}", "give a YAML file") from None
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise UsageError("yaml_invalid", f"{path}:{line}: not UTF-8", "save the file as UTF-8") from None
    if len(data) > _MAX_BYTES:
        raise UsageError("yaml_too_large", f"{path} is larger than {_MAX_BYTES >> 20} MiB", "give a job file")
    node = _compose(text, str(path))
    if not isinstance(node, yaml.MappingNode):
        problem = "is empty" if node is None else f"is {_KINDS[type(node)]}, not a mapping of keys"
        raise UsageError("job_not_a_mapping", f"{path}:1:1: the file {problem}", "see `traceable help jobs`")
    document = _Document({}, str(path), {(): f"{path}:1:1"})
    document.content = _Builder(str(path), document.places).build(node, ())
    return document


def _compose(text: str, where: str) -> yaml.Node | None:
    """Return the nodes of a YAML text; None for an empty one.

    Raises:
        UsageError: it is not YAML, or has several documents.
    """
    try:
        return yaml.compose(text, Loader=yaml.SafeLoader)
    except RecursionError:
        raise UsageError(
            "yaml_too_deep", f"{where} nests values deeper than {_MAX_DEPTH}", "write fewer levels"
        ) from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        place = f"{where}:{mark.line + 1}:{mark.column + 1}" if mark is not None else where
        words = getattr(error, "problem", None) or getattr(error, "reason", None) or "it can't be parsed"
        raise UsageError(
            "yaml_invalid", f"{place}: not valid YAML: {words}", "correct the line, or quote the value"
        ) from None


@dataclass
class _Builder:
    """Makes plain values of nodes, and records where each is.

    Attributes:
        where: the file, or the option.
        places: filled with the place of each path.
        is_file: whether lines and columns are of a file.
    """

    where: str
    places: dict[KeyPath, str]
    is_file: bool = True
    _nodes: int = 0
    _depth: int = 0

    def build(self, node: yaml.Node, path: KeyPath) -> Any:
        """Return the value of a node.

        Raises:
            UsageError: it contains itself, is too large or too deep, has a key twice, or a tag that is not YAML's own.
        """
        self._nodes += 1
        place = self._get_place(node)
        self.places.setdefault(path, place)
        if self._nodes > _MAX_NODES:
            problem = f"{place}: the aliases expand to more than {_MAX_NODES} values"
            raise UsageError("yaml_too_large", problem, "write the values without anchors")
        if node.tag.removeprefix(_TAG) not in _TAGS:
            raise UsageError("yaml_tag", f"{place}: the tag {node.tag} is not supported", "remove it")
        if self._depth == _MAX_DEPTH:
            raise UsageError("yaml_too_deep", f"{place}: nested deeper than {_MAX_DEPTH}", "write fewer levels")
        if isinstance(node, yaml.ScalarNode):
            return self._build_scalar(node, place)
        self._depth += 1
        if isinstance(node, yaml.MappingNode):
            content: Any = self._build_mapping(node, path)
        else:
            content = [self.build(item, (*path, i)) for i, item in enumerate(node.value)]
        self._depth -= 1
        return content

    def _build_mapping(self, node: yaml.MappingNode, path: KeyPath) -> dict[str, Any]:
        content: dict[str, Any] = {}
        merged: list[yaml.Node] = []
        for key, value in node.value:
            if key.tag == f"{_TAG}merge":
                merged += value.value if isinstance(value, yaml.SequenceNode) else [value]
                continue
            if not isinstance(key, yaml.ScalarNode):
                problem = f"{self._get_place(key)}: a key is {_KINDS[type(key)]}, not a word"
                raise UsageError("yaml_key_invalid", problem, "write a word")
            if key.value in content:
                raise UsageError(
                    "yaml_key_twice", f"{self._get_place(key)}: the key {key.value!r} is there twice", "remove one"
                )
            self.places[(*path, key.value)] = self._get_place(key)
            content[key.value] = self.build(value, (*path, key.value))
        for other in merged:
            inherited = self.build(other, path)
            if not isinstance(inherited, dict):
                problem = f"{self._get_place(other)}: << needs a mapping, or a list of mappings"
                raise UsageError("yaml_merge_invalid", problem, "name an anchor of a mapping")
            content = {**inherited, **content}
        return content

    def _build_scalar(self, node: yaml.ScalarNode, place: str) -> Any:
        tag = node.tag.removeprefix(_TAG)
        try:
            number = {"int": _CONSTRUCTOR.construct_yaml_int, "float": _CONSTRUCTOR.construct_yaml_float}.get(tag)
            if number is not None:
                return number(node)
        except ValueError:
            raise UsageError("yaml_invalid", f"{place}: {node.value[:40]!r} is not a number", "quote it") from None
        if tag == "null":
            return None
        return _CONSTRUCTOR.construct_yaml_bool(node) if tag == "bool" else node.value

    def _get_place(self, node: yaml.Node) -> str:
        mark = node.start_mark
        return f"{self.where}:{mark.line + 1}:{mark.column + 1}" if self.is_file else self.where


_CONSTRUCTOR = yaml.constructor.SafeConstructor()


def _explain_invalid_value(document: _Document, text: str) -> UsageError:
    """Return the error of msgspec with the place in the file, and the nearest name for an unknown key."""
    match = _PLACE.match(text)
    words, place_text = match.groups() if match else (text, "")
    path = _parse_path(place_text)
    name = ".".join(map(str, path))
    of = f" of {name}" if name else ""
    if unknown := _UNKNOWN.fullmatch(words):
        key = unknown.group(1)
        known = (_SECTIONS[path[-1]] if path else Job).__struct_fields__
        nearest = difflib.get_close_matches(key, known, n=1)
        remedy = f"did you mean {nearest[0]}?" if nearest else f"keys{of} are {', '.join(known)}"
        return UsageError("job_key_unknown", f"{document.get_place(*path, key)}: unknown key {key!r}{of}", remedy)
    if missing := _MISSING.fullmatch(words):
        key = missing.group(1)
        return UsageError(
            "job_key_missing", f"{document.get_place(*path)}: the key {key!r}{of} is missing", f"add {key}"
        )
    place = document.get_place(*path)
    if choice := _CHOICE.fullmatch(words):
        known = _list_choices(path)
        nearest = difflib.get_close_matches(choice.group(1), known, n=1)
        remedy = f"did you mean {nearest[0]}?" if nearest else f"write one of {', '.join(known)}"
        return UsageError("job_value_unknown", f"{place}: {name} can't be {choice.group(1)!r}", remedy)
    expectation = words[:1].lower() + words[1:].replace("`", "").replace("object", "mapping").replace("array", "list")
    return UsageError("job_value_invalid", f"{place}: {name or 'the file'}: {expectation}", "correct the value")


def _list_choices(path: KeyPath) -> tuple[str, ...]:
    """Return the words that the key at a path may have."""
    section = _SECTIONS[path[-2]] if len(path) > 1 else Job
    pending: list[Any] = [get_type_hints(section)[str(path[-1])]]
    words: list[str] = []
    while pending:
        one = pending.pop()
        words += get_args(one) if get_origin(one) is Literal else []
        pending += [] if get_origin(one) is Literal else get_args(one)
    return tuple(words)


def _parse_path(text: str) -> KeyPath:
    """Return the path of msgspec's `.profiling.prefill[0]`; it ends where msgspec names no key (`[...]`)."""
    path: list[str | int] = []
    for name, index in re.findall(r"\.([^.\[\]]+)|\[([^\]]*)\]", text):
        if index and not index.isdigit():
            break
        path.append(int(index) if index else name)
    return tuple(path)


def _check_job(document: _Document, job: Job) -> None:
    """Check what types can't.

    Raises:
        UsageError: the first problem.
    """
    if job.name is not None and not _NAME.fullmatch(job.name):
        raise UsageError(
            "job_name_invalid",
            f"{document.get_place('name')}: {job.name[:60]!r} can't be a part of file names",
            "use letters, digits, - and _",
        )
    if unknown := re.findall(r"\{[^{}]*\}", re.sub(r"\{(name|time)\}", "", job.output)):
        problem = f"{document.get_place('output')}: {unknown[0]} is not filled in for the output directory"
        raise UsageError("output_invalid", problem, "use {name} and {time}")
    profiling = job.profiling
    if not job.phases:
        place = document.get_place("profiling")
        raise UsageError("job_without_phases", f"{place}: there is no phase", f"add one of {', '.join(PHASES)}")
    if job.benchmark.type != "manual":
        place = document.get_place("benchmark", "type")
        if profiling.type != "none":
            raise UsageError(
                "benchmark_with_profiling",
                f"{place}: a job with profiling of type {profiling.type} can't run the benchmark "
                f"{job.benchmark.type!r}",
                "write type: manual, or profiling.type: none for the load alone",
            )
        raise UsageError(
            "benchmark_unknown",
            f"{place}: traceable has no benchmark {job.benchmark.type!r}",
            "remove it: with profiling.type none the load of each phase is the benchmark",
        )
    for key in Resources.__struct_fields__:
        workers = getattr(job.resources, key)
        if workers > 1 and profiling.type != "none":
            raise UsageError(
                "several_workers",
                f"{document.get_place('resources', key)}: {key} is {workers}, but profiling needs one worker",
                "write 1; ranks of one worker are all recorded",
            )
    _check_system_wide(document, job)
    _check_server(document, job.server, "server")
    _check_client(document, job.client, "client")
    for name, phase in job.phases.items():
        _check_phase(document, job, name, phase)


def _check_system_wide(document: _Document, job: Job) -> None:
    profiling = job.profiling
    if profiling.mode == "steps":
        for key in ("delay_s", "duration_s"):
            if document.has("profiling", key):
                raise UsageError(
                    "time_without_system_wide",
                    f"{document.get_place('profiling', key)}: {key} is for mode: system-wide; here steps are recorded",
                    "remove it, or write mode: system-wide",
                )
        return
    place = document.get_place("profiling", "mode")
    if profiling.type != "nsys":
        raise UsageError(
            "system_wide_needs_nsys", f"{place}: mode system-wide needs type: nsys, not {profiling.type}", "change one"
        )
    if profiling.duration_s is None:
        problem = f"{place}: mode system-wide needs a duration_s"
        raise UsageError("job_key_missing", problem, "add profiling.duration_s in seconds, and profiling.delay_s")
    for name, phase in job.phases.items():
        if phase.requests is None:
            raise UsageError(
                "job_key_missing",
                f"{document.get_place('profiling', name)}: mode system-wide needs requests of {name}: without steps "
                "it is not known how many last as long as delay_s and duration_s",
                "add requests",
            )
        for key in ("start_step", "stop_step"):
            if document.has("profiling", name, key):
                raise UsageError(
                    "steps_with_system_wide",
                    f"{document.get_place('profiling', name, key)}: mode system-wide records by time, not by steps",
                    f"remove {key}, or write mode: steps",
                )


def _check_client(document: _Document, client: ClientChoice | None, *path: str) -> None:
    if not isinstance(client, Client):
        return
    if client.tool is not None and client.command is not None:
        problem = f"{document.get_place(*path)}: the client has both a tool and a command"
        raise UsageError("client_invalid", problem, "give one of them")
    if client.rate is not None and not math.isfinite(client.rate):
        place = document.get_place(*path, "rate")
        raise UsageError("job_value_invalid", f"{place}: the rate {client.rate} is not finite", "correct the value")
    _check_environment(document, client.env, *path, "env")
    _check_command(document, client.command, *path, "command")


def _check_server(document: _Document, server: Server, *path: str) -> None:
    _check_environment(document, server.env, *path, "env")
    _check_command(document, server.command, *path, "command")
    _split_words(document, server.options or "", *path, "options")


def _check_environment(document: _Document, env: Mapping[str, str | int], *path: str) -> None:
    """Reject variables with which no process can be started."""
    for key, value in env.items():
        if not key or "=" in key or "\0" in f"{key}{value}":
            problem = f"{document.get_place(*path, key)}: {key[:40]!r} can't be an environment variable"
            raise UsageError("variable_invalid", problem, "write a name without =, and a value without null bytes")


def _split_words(document: _Document, text: str, *path: str) -> list[str]:
    """Return the words of a command or of options, as a shell splits them."""
    try:
        return shlex.split(text)
    except ValueError as error:
        problem = f"{document.get_place(*path)}: {str(error).lower()} in the {path[-1]}"
        raise UsageError("command_not_split", problem, "close it") from None


def _check_command(document: _Document, command: str | None, *path: str) -> None:
    """Reject a command that only a shell can run."""
    if command is None:
        return
    place = document.get_place(*path)
    words = _split_words(document, command, *path)
    if not words:
        raise UsageError("command_empty", f"{place}: the command is empty", "give the words of a command")
    operator = next((word for word in words if word in _OPERATORS), None)
    if operator is None and re.match(r"\w+=", words[0]):
        operator = words[0]
    if operator is not None:
        raise UsageError(
            "command_needs_shell",
            f"{place}: {operator[:40]!r} in the command is for a shell, but none runs it",
            "use `env` for variables, or write sh -c '...'",
        )


def _check_phase(document: _Document, job: Job, name: str, phase: Phase) -> None:
    path = ("profiling", name)
    for key in SIZES:
        values = getattr(phase, key) or getattr(job.profiling, key)
        if values is None:
            raise UsageError(
                "job_key_missing",
                f"{document.get_place(*path)}: the key {key!r} of profiling.{name} is missing",
                f"add {key}",
            )
        if isinstance(values, list) and (twice := [one for one in values if values.count(one) > 1]):
            owner = path if document.has(*path, key) else path[:1]
            problem = f"{document.get_place(*owner, key)}: {twice[0]} is twice in {key}"
            raise UsageError("sweep_value_twice", problem, "remove one")
    if phase.stop_step <= phase.start_step:
        key = "stop_step" if document.has(*path, "stop_step") else "start_step"
        raise UsageError(
            "steps_empty",
            f"{document.get_place(*path, key)}: stop_step {phase.stop_step} of {name} is not after start_step "
            f"{phase.start_step}: it is the first step that is not recorded",
            f"write a stop_step from {phase.start_step + 1}",
        )
    most = max(list_values(get_sizes(job, phase)["concurrency"]))
    if phase.warmup_requests is not None and phase.warmup_requests < most:
        raise UsageError(
            "warmup_too_short",
            f"{document.get_place(*path, 'warmup_requests')}: {phase.warmup_requests} warm-up requests can't reach a "
            f"concurrency of {most}",
            f"write {most} or more, or remove it",
        )
    if job.server.command is None and (phase.server is None or phase.server.command is None):
        raise UsageError(
            "job_key_missing",
            f"{document.get_place(*path)}: there is no server.command for {name}",
            "add server.command",
        )
    _check_client(document, phase.client, *path, "client")
    if phase.server is not None:
        _check_server(document, phase.server, *path, "server")


def get_sizes(job: Job, phase: Phase) -> dict[str, int | list[int]]:
    """Return isl, osl and concurrency of a phase: its own, or those of all phases."""
    sizes = {key: getattr(phase, key) or getattr(job.profiling, key) for key in SIZES}
    return {key: value for key, value in sizes.items() if value is not None}


def list_values(value: int | list[int]) -> list[int]:
    """Return the values of a sweep; of a single number, that."""
    return value if isinstance(value, list) else [value]


def merge_server(job: Job, phase: Phase) -> Server:
    """Return the server of a phase: its own keys in place of those for all phases; `env` is joined."""
    if phase.server is None:
        return job.server
    own = {key: value for key, value in _iterate_fields(phase.server) if value is not None}
    return msgspec.structs.replace(job.server, **own, env={**job.server.env, **phase.server.env})


def _iterate_fields(section: Section) -> Iterator[tuple[str, Any]]:
    return ((key, getattr(section, key)) for key in section.__struct_fields__ if key != "env")


def fill_placeholders(text: str, values: Mapping[str, object]) -> str:
    """Return a text with `{name}` replaced for the names in `values`; any other brace stays as it is.

    Examples:
        >>> fill_placeholders('serve --isl {isl} --config {"a": {}}', {"isl": 8})
        'serve --isl 8 --config {"a": {}}'
    """
    names = "|".join(map(re.escape, values))
    return re.sub(rf"\{{({names})\}}", lambda match: str(values[match.group(1)]), text) if values else text
