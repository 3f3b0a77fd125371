"""Print docs/messages.md: every code with its text, read from the sources.

    python scripts/messages.py > docs/messages.md

A code is the first argument of what makes a message: a class of traceable's errors, `Message`, `warn_once`, or one of
the doctor's states. What a text is made of while the program runs stands in braces.
"""

from __future__ import annotations

import ast
import re
import sys
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

SOURCES = Path(__file__).parent.parent / "src" / "traceable"
CODE = re.compile(r"[a-z][a-z0-9]*(_[a-z0-9]+)*")

_ROOT = "TraceableError"
_MAKERS = {"Message", "warn_once"}
_DOCTOR = {"ok", "note", "warning", "problem"}
_DOCTOR_FILES = "doctor*.py"

_HEAD = """\
# Messages and their codes

Each message, note and error ends with its code in brackets on the terminal, has it as `code` in JSON (`--json`,
`run.json`, `report.json`) and as the attribute `code` of the error. A code stays what it is while its words change.
Performance findings are known by their rule ([findings.md](findings.md)), causes of a loss by their name
([diagnosis.md](diagnosis.md)), windows by their outcome ([windows.md](windows.md)).

What stands in braces is filled in. This page is printed by `python scripts/messages.py`.

| code | message | what to do |
| --- | --- | --- |
"""


@dataclass(frozen=True)
class Site:
    """One place that makes a message.

    Attributes:
        place: `file:line`.
        code: its code; empty where the source has none that can be read.
        text, remedy: in words, with what is filled in as its source, in braces; a remedy only of errors.
    """

    place: str
    code: str
    text: str
    remedy: str = ""


def sites(sources: Path = SOURCES) -> list[Site]:
    """Return every place that makes a message, in the order of the files."""
    trees = {path: ast.parse(path.read_text(encoding="utf-8")) for path in sorted(sources.rglob("*.py"))}
    errors = _errors(trees.values())
    return [
        site
        for path, tree in trees.items()
        for site in _in(tree, path, errors, errors | _MAKERS | (_DOCTOR if path.match(_DOCTOR_FILES) else set()))
    ]


def _errors(trees: Iterator[ast.Module] | object) -> set[str]:
    """Return the names of all classes below the root of our errors."""
    bases: dict[str, set[str]] = {}
    for tree in trees:  # type: ignore[attr-defined]
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                bases[node.name] = {ast.unparse(base).rpartition(".")[2] for base in node.bases}
    known = {_ROOT}
    while more := {name for name, of in bases.items() if of & known} - known:
        known |= more
    return known


def _in(tree: ast.Module, path: Path, errors: set[str], makers: set[str]) -> Iterator[Site]:
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        name = ast.unparse(node.func).rpartition(".")[2]
        if name not in makers or not node.args:
            continue
        code, *words = node.args
        if _is_passed_on(code):
            continue
        texts = [_words(word) for word in words[:2]]
        yield Site(
            f"{path.relative_to(SOURCES.parent)}:{node.lineno}",
            code.value if isinstance(code, ast.Constant) and isinstance(code.value, str) else "",
            texts[0] if texts else "",
            texts[1] if len(texts) > 1 and (name in errors or name in _DOCTOR) else "",
        )


def _is_passed_on(code: ast.expr) -> bool:
    """Whether it is the code of a message that was made elsewhere."""
    return (isinstance(code, ast.Attribute) and code.attr == "code") or (
        isinstance(code, ast.Name) and code.id == "code"
    )


def _words(node: ast.expr) -> str:
    """Return a text as it is written, with what is filled in as its source, in braces."""
    if isinstance(node, ast.Constant):
        return str(node.value)
    if isinstance(node, ast.JoinedStr):
        return "".join(
            f"{{{ast.unparse(part.value)}}}" if isinstance(part, ast.FormattedValue) else _words(part)
            for part in node.values
        )
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return _words(node.left) + _words(node.right)
    if isinstance(node, ast.IfExp):
        return f"{_words(node.body)} / {_words(node.orelse)}"
    return f"{{{ast.unparse(node)}}}"


def page(found: list[Site]) -> str:
    """Return docs/messages.md."""
    rows: dict[str, dict[tuple[str, str], None]] = defaultdict(dict)
    for site in found:
        rows[site.code][site.text, site.remedy] = None
    lines = [f"| `{code}` | {_cell(text)} | {_cell(remedy)} |" for code in sorted(rows) for text, remedy in rows[code]]
    return _HEAD + "\n".join(lines) + "\n"


def _cell(text: str) -> str:
    return text.replace("\\", "\\\\").replace("|", "\\|").replace("\n", " ")


if __name__ == "__main__":
    sys.stdout.write(page(sites()))
