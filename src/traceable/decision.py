"""Whether this process is recorded, decided in it: at the start of its interpreter, after a fork, when it gets a name.

The launcher puts no collector into the environment of the program. It names the variables that a process is to have if
it is recorded (`TRACEABLE_CHOSEN`), and this module sets them, or takes them away, in each Python that starts:

- A process whose rank is not asked for has none of them: it is as without traceable.
- Where names are asked for, one that is not chosen may fork one that is, and NVTX finds its listener once in a process.
  So it has them, with the recorder's gate closed. A forked child opens it, or closes it, before its own code runs.
- nsys records whole trees of processes, so under it a chosen process becomes `traceable run` of itself.

`annotation/bootstrap/hook.py` loads this file before traceable is imported, because what a process loads
depends on what is decided here. It imports nothing that is not imported already.
"""

import os
import sys

# Loaded before this one: as it is in `sys.modules`, this imports no package.
from traceable.selection import (
    LAUNCHER,
    NAME,
    SCHEMA,
    from_text,
    name_asked,
    name_while_started,
    program_of,
    rank_asked,
    rank_of,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, MutableMapping
    from typing import Any

RANKS = "TRACEABLE_RANKS"
PROCESSES = "TRACEABLE_PROCESSES"
CHOSEN = "TRACEABLE_CHOSEN"
PART_OF = "TRACEABLE_PART_OF"
RUN_DIR = "TRACEABLE_RUN_DIR"
COLLECTOR = "TRACEABLE_COLLECTOR"
RECORDING_GATED = "TRACEABLE_RECORDING_GATED"
INJECTION = "NVTX_INJECTION64_PATH"
"""The names of `environment.py`, which would load the whole package."""

_OPTION = "traceable-process"
"""`-X` option with which multiprocessing's `spawn` is told its name: the child hears of it only after it has begun."""

_FORKSERVER = "from multiprocessing.forkserver import"
_HELPERS = ("from multiprocessing.resource_tracker import", _FORKSERVER)
_SPAWNED = "from multiprocessing.spawn import"


class Selection:
    """What is asked for, and whether this process is of it.

    Attributes:
        name: what this process is called; None while that is not known.
        chosen: whether it is recorded.
        start: how it came to be: `main`, `spawn`, `fork` or `forkserver`.
        changed: called when a process that ran already learns that it is chosen, or not. A forked child that knows at
            once does not: what else is to be done in it comes after this, in the order in which it was registered.
    """

    def __init__(self, environ: "MutableMapping[str, str]", run_dir: str = "") -> None:
        self._environ = environ
        self._ranks = environ.get(RANKS, "")
        self._names = environ.get(PROCESSES, "")
        self._given = from_text(environ.get(CHOSEN, ""))
        self._launcher = self._given.pop(LAUNCHER, "")
        self._called = self._given.pop(NAME, "")
        self.run_dir = self._given.get(RUN_DIR, run_dir)
        self.nsys = self._given.get(COLLECTOR) == "nsys"
        self.rank = rank_of(environ)
        self.program, code = program_of(sys.orig_argv)
        self._helper = code.startswith(_HELPERS)
        self._forkserver = code.startswith(_FORKSERVER)
        self.start = "spawn" if code.startswith(_SPAWNED) else "main"
        self.name: str | None = self.program
        if self.start == "spawn":
            program, _, name = str(sys._xoptions.pop(_OPTION, "")).partition("/")
            self.program, self.name = program or self.program, name or None
        self.lost = ""
        self.forks = 0
        self.changed: list[Callable[[], None]] = []
        self._gate: Callable[[int], Any] | None = None
        self.chosen = self._judge()

    @property
    def label(self) -> str:
        """Role or program with the rank, where this is a rank; else the name."""
        own = self.name if self.name and self.name != self.program else ""
        if self.rank is None:
            return own or self.program
        of_rank = f"{self._called or self.rank.role or self.program}_{self.rank.rank}"
        return f"{of_rank}-{own}" if own else of_rank

    def begin(self) -> None:
        """At the start of the interpreter: take on what is decided."""
        if not self._helper:
            self.tell()
        if self.chosen and self.nsys:
            self._become_run()
        if self._of_ranks() and not self.nsys:
            self._environ.update(self._given)
            if not self.chosen or RECORDING_GATED in self._given:
                self._close_gate_of_children()
            else:
                self._environ.pop(RECORDING_GATED, None)
        else:
            for name, value in self._given.items():
                # A value that is not ours is somebody else's profiler.
                if self._environ.get(name) == value:
                    del self._environ[name]
        if self._of_ranks():
            os.register_at_fork(
                before=self._before_fork, after_in_parent=self._after_in_parent, after_in_child=self._after_in_child
            )
            if self._names:
                sys.meta_path.insert(0, _Multiprocessing(self))

    def named(self, name: str) -> None:
        """Take a name that was not known before, and what follows from it."""
        if name == self.name:
            return
        before, self.name = self.chosen, name
        self._decide()
        self.tell()
        if self.chosen != before:
            for heard in self.changed:
                heard()

    def tell(self) -> None:
        """Write into the run directory what this process is, and whether it is recorded."""
        if not self.run_dir:
            return
        try:
            content: dict[str, str | int | None] = {
                "schema": SCHEMA,
                "pid": os.getpid(),
                "parent_pid": os.getppid(),
                "name": self.name,
                "label": self.label,
                "program": self.program,
                "start": self.start,
                "rank": self.rank.rank if self.rank else None,
                "chosen": self.chosen,
                "lost": self.lost or None,
            }
            path = f"{self.run_dir}/process.{os.getpid()}.json"
            with open(path + ".part", "w", encoding="ascii") as file:  # noqa: PTH123 - pathlib takes 5 ms to import
                file.write(json_of(content))
            os.replace(path + ".part", path)  # noqa: PTH105
        except Exception:  # noqa: BLE001 - a run directory that is gone or full: the program goes on
            return

    # ---- deciding

    def _of_ranks(self) -> bool:
        """Whether its rank is asked for, or none is."""
        if not self._ranks:
            return True
        return self.rank is not None and rank_asked(self._ranks, self.rank.rank)

    def _judge(self) -> bool:
        if self._helper or self.name is None or not self._of_ranks():
            return False
        return not self._names or name_asked(self._names, self.name)

    def _decide(self) -> None:
        self.chosen = self._judge()
        if self.chosen and self.nsys:
            self.lost = "forked" if self.start in ("fork", "forkserver") else "named too late"
        if self._gate is not None and not (self.chosen and RECORDING_GATED in self._given):
            self._gate(int(self.chosen))

    # ---- the recorder's gate

    def _close_gate_of_children(self) -> None:
        if self._given.get(INJECTION):
            self._environ[RECORDING_GATED] = "1"

    def _load_gate(self) -> None:
        if self._gate is None and self._names and self._given.get(INJECTION):
            import ctypes

            # NVTX has loaded it, or will: the same file is the same library.
            self._gate = ctypes.CDLL(self._given[INJECTION]).traceable_recorder_gate

    # ---- forks

    def _before_fork(self) -> None:
        try:
            # Not in the child, where another thread's lock may be held for ever.
            self._load_gate()
        except Exception as error:  # noqa: BLE001 - the program forks, its children unselected
            say("fork_not_selected", f"forked processes can't be chosen: {error}")

    def _after_in_parent(self) -> None:
        self.forks += 1

    def _after_in_child(self) -> None:
        try:
            frame = sys._getframe(1)
            if frame.f_globals.get("__name__") == "subprocess":
                return  # about to become another program
            self.start = "forkserver" if self._forkserver else "fork"
            self._helper = False
            own = name_while_started(frame)
            self.name = own or (None if self._forkserver else f"{self.name or self.program}-fork-{self.forks + 1}")
            self._forkserver, self.forks = False, 0
            self._decide()
            self.tell()
        except Exception as error:  # noqa: BLE001 - the child is the user's
            say("fork_not_selected", f"a forked process can't be chosen: {error}")

    # ---- nsys

    def _become_run(self) -> None:
        """Become `traceable run` of what this process was to be. The process id stays, and with it who waits for it."""
        if not sys.executable:
            self.lost = "its interpreter does not say where it lies"
            self.tell()
            return
        python, root, *options = self._launcher.split("\n")
        name = "".join(c if c.isalnum() or c in "._-" else "_" for c in self.label).lstrip(".") or "process"
        directory = self._part_directory(name)
        command = [sys.executable, *_without_option(sys.orig_argv[1:])]
        code = f"import sys; sys.path.append({root!r}); from traceable.cli.main import main; sys.exit(main())"
        options += ["--name", name, "-o", directory]
        environ = {name: value for name, value in self._environ.items() if name not in (RANKS, PROCESSES)}
        environ[PART_OF] = self.run_dir
        try:
            os.execve(python, [python, "-c", code, "run", *options, "--", *command], environ)
        except OSError as error:
            self.lost = f"{python} can't be executed: {error.strerror}"
            self.tell()

    def _part_directory(self, name: str) -> str:
        """Make a directory for this process. A name may come again: of a worker that took the place of another."""
        number = 1
        while True:
            directory = f"{self.run_dir}/{name}" + (f"-{number}" if number > 1 else "")
            try:
                os.mkdir(directory)  # noqa: PTH102
            except FileExistsError:
                number += 1
            else:
                return directory


def json_of(value: "Any") -> str:
    """Return a value as JSON in ASCII.

    Importing `json` would double what the start of an interpreter costs, and load into the program what it did not ask
    for: with patterns from outside, what it would do there is annotated.

    Args:
        value: mappings and lists of strings, numbers, bool and None. nan and infinity become null.
    """
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json_of(key)}: {json_of(one)}" for key, one in value.items()) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(json_of, value)) + "]"
    if value is None or isinstance(value, int):
        return "null" if value is None else str(value).lower()
    if isinstance(value, float):
        return repr(value) if value - value == 0 else "null"
    units = value.encode("utf-16-be", "surrogatepass")
    numbers = [units[at] << 8 | units[at + 1] for at in range(0, len(units), 2)]
    return '"' + "".join(chr(n) if 31 < n < 127 and n not in b'"\\' else f"\\u{n:04x}" for n in numbers) + '"'


def _without_option(words: "list[str]") -> "list[str]":
    found: list[str] = []
    for word in words:
        if word.startswith(_OPTION + "="):
            found.pop()  # its -X
        else:
            found.append(word)
    return found


class _Multiprocessing:
    """A finder that finds nothing: it watches the two modules by which a process learns what it is called."""

    def __init__(self, selection: Selection) -> None:
        self._selection = selection
        self._waiting = {"multiprocessing.spawn": self._spawn, "multiprocessing.util": self._util}

    def find_spec(self, fullname: str, path: "Any" = None, target: "Any" = None) -> "Any":
        done = self._waiting.pop(fullname, None)
        if done is None:
            return None
        for finder in list(sys.meta_path):
            find = None if finder is self else getattr(finder, "find_spec", None)
            spec = find(fullname, path, target) if find else None
            if spec is not None:
                _after(spec.loader, done)
                return spec
        return None

    def _spawn(self, module: "Any") -> None:
        """Have `spawn` tell its child the name."""
        original = module.get_command_line

        def get_command_line(**named: "Any") -> "Any":
            words = original(**named)
            try:
                name = name_while_started(sys._getframe(1))
            except Exception:  # noqa: BLE001 - the child learns its name a little later
                name = None
            if name is None:
                return words
            return [words[0], "-X", f"{_OPTION}={self._selection.program}/{name}", *words[1:]]

        get_command_line.__wrapped__ = original  # type: ignore[attr-defined]
        module.get_command_line = get_command_line

    def _util(self, module: "Any") -> None:
        """Hear of the name that a child of the forkserver is given."""
        module.register_after_fork(self._selection, _take_name)


def _take_name(selection: Selection) -> None:
    process = sys.modules["multiprocessing.process"]
    selection.named(process.current_process().name)


def _after(loader: "Any", done: "Callable[[Any], None]") -> None:
    execute = loader.exec_module

    def exec_module(module: "Any") -> None:
        del loader.exec_module
        execute(module)
        try:
            done(module)
        except Exception as error:  # noqa: BLE001 - the program goes on; what it starts can't be told apart
            say("process_names_unknown", f"processes of {module.__name__} are not known by name: {error}")

    try:
        loader.exec_module = exec_module
    except AttributeError:  # frozen into the interpreter
        return


def say(code: str, message: str) -> None:
    """Print one line of ours with its code, where there is a stderr."""
    try:
        line = "".join(c if c.isprintable() else "?" for c in f"traceable: {message} [{code}]")
        sys.stderr.write(f"{line}\n")
    except Exception:  # noqa: BLE001
        return


current: "Selection | None" = None
"""That of this process; None where nothing is selected."""


def begin() -> None:
    """Decide what this process is, and take it on. Does not return where it becomes another program."""
    global current
    current = Selection(os.environ)
    current.begin()
