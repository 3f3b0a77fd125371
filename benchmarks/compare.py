"""What a comparison of two large recordings costs, against a report of one of them.

    python benchmarks/compare.py [--kernels 1000000] [--rounds 3] [--folder DIRECTORY]

Prints Markdown: wall and CPU seconds and peak memory of each command, in a process of its own with its output thrown
away, in turn, as medians of the rounds; and `compare` as a multiple of each report. The files are generated once and
kept in DIRECTORY.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from analysis import Run, describe_machine, ensure_generated, make_compile_environ, run, take_medians

COMMANDS = {
    "report": ("report", "{first}"),
    "report --view all": ("report", "{first}", "--view", "all"),
    "compare": ("compare", "{first}", "{second}"),
}
"""The measured commands of traceable, by how they are called in the table."""


def measure(folder: Path, kernels: int, rounds: int) -> dict[str, Run]:
    """Return the medians of each command; one round before the first compiles modules and is not measured."""
    paths = {word: str(ensure_generated(folder, kernels, seed)) for seed, word in enumerate(("first", "second"))}
    compiled = make_compile_environ(folder)
    runs: dict[str, list[Run]] = {name: [] for name in COMMANDS}
    for number in range(rounds + 1):
        for name, words in COMMANDS.items():
            argv = [sys.executable, "-m", "traceable", *(word.format(**paths) for word in words)]
            one = run(argv, environment=compiled)
            runs[name] += [one] if number else []
    return {name: take_medians(each) for name, each in runs.items()}


def render_markdown(medians: dict[str, Run], kernels: int, rounds: int) -> str:
    """Render everything as Markdown."""
    facts = ", ".join(f"{name} {value}" for name, value in describe_machine(None).items() if name != "nsys")
    lines = [
        f"{facts}. Medians of {rounds} rounds, {kernels:,} kernels a file.",
        "",
        "| command | wall s | CPU s | peak MB | compare / this, wall | CPU |",
        "| --- | ---: | ---: | ---: | ---: | ---: |",
    ]
    compare = medians["compare"]
    for name, one in medians.items():
        ratios = f"{compare.seconds / one.seconds:.2f} | {compare.cpu_seconds / one.cpu_seconds:.2f}"
        lines.append(
            f"| `{name}` | {one.seconds:.2f} | {one.cpu_seconds:.2f} | {one.peak_bytes / 1e6:.0f} | {ratios} |"
        )
    return "\n".join(lines)


def main() -> int:
    """Measure and print; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kernels", type=int, default=1_000_000, help="of each file (default: 1000000)")
    parser.add_argument("--rounds", type=int, default=3, help="(default: 3)")
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()) / "traceable-benchmark")
    arguments = parser.parse_args()
    if arguments.kernels < 1 or arguments.rounds < 1:
        parser.error("--kernels and --rounds must be positive")
    arguments.folder.mkdir(parents=True, exist_ok=True)
    medians = measure(arguments.folder, arguments.kernels, arguments.rounds)
    print(render_markdown(medians, arguments.kernels, arguments.rounds))
    return 0


if __name__ == "__main__":
    sys.exit(main())
