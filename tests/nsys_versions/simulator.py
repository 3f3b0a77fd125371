"""Simulates an nsys version that can't be installed here: it behaves as in its file, and the real one records.

The documented properties of the version are simulated: its options and their values, its error messages, the suffix of
its reports, and that `--discard-environment` keeps the environment out. Options that the real one lacks are dropped, so
their data is not in the report. Unknown properties of the version are listed in its file under `unknown`, and are those
of 2022.4.2.

By hand: `python tests/nsys_versions/simulator.py 2026.4.1 FOLDER` creates one; set TRACEABLE_NSYS to its path.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import stat
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
BASE = "2022.4.2"
"""The version whose options every real nsys supports, those that are passed on."""

NOT_PASSED_ON = ("--sample", "--cpuctxsw", "--backtrace", "--cudabacktrace", "--gpu-metrics-device")
"""They need permission or a GPU, and 2022.4.2 may hang with samples on Linux 6."""

NO_GPU = ("NVIDIA GPUs not found, feature is not available",)
USAGE = "\nusage: nsys profile [<args>] [application] [<application args>]\n"
WITHOUT = (
    'LD_PRELOAD=$(printf %s "$LD_PRELOAD" | tr ":" "\\n" | grep -Fxv "$1" | paste -sd:); export LD_PRELOAD; shift; '
)


class RefusedError(Exception):
    """nsys's error message for invalid options."""


def versions() -> list[str]:
    """The versions that have a file, the oldest first."""
    result = (path.stem for path in HERE.glob("*.json"))
    return sorted(result, key=lambda version: [int(number) for number in version.split(".")])


def read(version: str) -> dict[str, Any]:
    """The file of a version."""
    known: dict[str, Any] = json.loads((HERE / f"{version}.json").read_text(encoding="utf-8"))
    return known


def install(
    version: str,
    folder: Path,
    real: str,
    *,
    cpu: str | None = None,
    gpus: Sequence[str] = NO_GPU,
    unlisted: Sequence[str] = (),
) -> Path:
    """Make an executable `nsys` in `folder` that stands in for `version`.

    Args:
        version: one that has a file.
        folder: created if missing.
        real: the nsys that records.
        cpu: the line on samples of the CPU that `status --environment` is to print, where not the version's own.
        gpus: the lines that `--gpu-metrics-devices=help` is to print.
        unlisted: options that it takes and its help keeps to itself.
    """
    folder.mkdir(parents=True, exist_ok=True)
    made = folder / "nsys"
    # Imported here and not where it is needed: a process that imports traceable under a launcher is one of its run.
    from traceable._native import find_hide_proc_environ_library

    settings = {"version": version, "real": real, "gpus": list(gpus), "unlisted": list(unlisted)}
    settings["hide_proc_environ"] = str(find_hide_proc_environ_library())
    settings["cpu"] = cpu or read(version)["behavior"]["cpu_environment"]
    words = [sys.executable, "-I", "-S", str(HERE / "simulator.py"), json.dumps(settings)]
    made.write_text(f'#!/bin/sh\nexec {shlex.join(words)} "$@"\n', encoding="utf-8")
    made.chmod(made.stat().st_mode | stat.S_IXUSR)
    return made


def help_text(known: dict[str, Any]) -> str:
    """What `nsys profile --help` says, in the layout of 2022.4.2 and 2023.4.4, with our words and without prose."""
    parts = [USAGE.lstrip("\n")]
    for name, option in known["options"].items():
        short = f"{option['short']}, " if "short" in option else ""
        form = option.get("form", "=" if option.get("value", True) else "=[<tag>]")
        output = [f"\t{short}{name}{form}", ""]
        if values := option.get("values"):
            output.append(f"\t   Possible values are {', '.join(map(repr, values))}.")
        if modes := option.get("modes"):
            output.append(f"\t   After a colon: {', '.join(modes)}.")
        if "default" in option:
            output.append(f"\t   Default is '{option['default']}'.")
        parts.append("\n".join(output) + "\n")
    return "\n".join(parts)


def parse_words(words: Sequence[str], options: dict[str, Any]) -> tuple[list[tuple[str, str]], list[str]]:
    """Split the words after `profile` into options and the program.

    Raises:
        RefusedError: as nsys refuses.
    """
    by_name = {short: name for name, option in options.items() for short in (name, option.get("short")) if short}
    options_given: list[tuple[str, str]] = []
    rest = list(words)
    while rest and rest[0].startswith("-"):
        word = rest.pop(0)
        if word == "--":
            break
        typed, joined, value = word.partition("=") if word.startswith("--") else (word[:2], word[2:], word[2:])
        near = [name for name in by_name if name.startswith(typed)] if typed.startswith("--") else []
        name = by_name.get(typed) or (near[0] if len(near) == 1 else None)
        if name is None:
            raise RefusedError(f"unrecognised option '{word}'")
        if not joined and options[name].get("value", True):
            if not rest:
                raise RefusedError(f"the required argument for option '{name}' is missing")
            value = rest.pop(0)
        if name in dict(options_given):
            raise RefusedError(f"option '{name}' cannot be specified more than once")
        options_given.append((name, value))
    return options_given, rest


def check(options_given: Sequence[tuple[str, str]], options: dict[str, Any]) -> None:
    """Refuse a value that the version does not list, where it lists its values.

    Raises:
        RefusedError: as nsys refuses.
    """
    for name, value in options_given:
        option = options[name]
        listed = [re.split(r"[\[:]", one)[0] for one in option.get("values", ())]
        first, *modes = value.split(":")
        unknown = [one for one in first.split(",") if one not in listed]
        if name in ("--kill", "--nvtx-capture") or not listed:
            continue
        if unknown:
            quote = f"argument '{unknown[0]}'" if name == "--trace" else f"argument: {unknown[0]}."
            raise RefusedError(f"Illegal {name} {quote}")
        if wrong := [mode for mode in modes if not mode.isdigit() and mode not in option.get("modes", ())]:
            raise RefusedError(f"Illegal {name} argument: {wrong[0]}.")


def translate_options(options_given: Sequence[tuple[str, str]], options: dict[str, Any]) -> list[str]:
    """The options as the real one takes them."""
    base = read(BASE)["options"]
    words = ["--sample=none", "--cpuctxsw=none"]
    for name, value in options_given:
        old = name if name in base else options[name].get("replaces")
        if old not in base or old in NOT_PASSED_ON:
            continue
        supported = ":".join(part for part in value.split(":") if part not in options[name].get("modes", ()))
        if old == "--trace":
            supported = ",".join(api for api in supported.split(",") if api in base[old]["values"])
        words.append(f"{old}={supported}")
    return words


def profile(settings: dict[str, Any], known: dict[str, Any], words: Sequence[str]) -> int:
    """Answer `nsys profile`, or have the real one record."""
    result, command = parse_words(words, known["options"] | {name: {} for name in settings["unlisted"]})
    given = dict(result)
    if "--help" in given:
        print(help_text(known))
        return 0
    for name in ("--gpu-metrics-devices", "--gpu-metrics-device"):
        if given.get(name) == "help":
            print(f"Possible {name} values are:", *settings["gpus"], sep="\n\t")
            return 0
    check(result, known["options"])
    if given.get("--discard-environment") == "true":
        library = settings["hide_proc_environ"]
        os.environ["LD_PRELOAD"] = ":".join(filter(None, (os.environ.get("LD_PRELOAD"), library)))
        command = ["sh", "-c", WITHOUT + 'exec "$@"', "sh", library, *command]
    words = [settings["real"], "profile", *translate_options(result, known["options"]), *command]
    suffix = known["behavior"]["report_suffix"]
    if suffix == ".nsys-rep":
        os.execv(words[0], words)
    # The launcher hands over descriptors.
    code = subprocess.run(words, check=False, close_fds=False).returncode
    stem = Path(given["--output"].replace("%%", "%"))
    for report in [*stem.parent.glob(f"{stem.name}.nsys-rep"), *stem.parent.glob(f"{stem.name}.*.nsys-rep")]:
        report.rename(report.with_suffix(suffix))
    return code


def main(settings: dict[str, Any], words: Sequence[str]) -> int:
    """Do what `nsys WORDS` does."""
    known = read(settings["version"])
    if list(words) == ["--version"]:
        print(f"NVIDIA Nsight Systems version {known['prints']}")
        return 0
    if list(words[:1]) == ["status"]:
        print(f"CPU Profiling Environment Check\n{settings['cpu']}")
        return 0
    if list(words[:1]) == ["profile"]:
        try:
            return profile(settings, known, words[1:])
        except RefusedError as refused:
            print(f"{refused}\n{USAGE}Try 'nsys profile --help' for more information.", file=sys.stderr)
            return 1
    os.execv(settings["real"], [settings["real"], *words])


if __name__ == "__main__":
    if sys.argv[1].startswith("{"):
        sys.exit(main(json.loads(sys.argv[1]), sys.argv[2:]))
    print(install(sys.argv[1], Path(sys.argv[2]), shutil.which("nsys") or sys.exit("nsys is not on PATH")))
