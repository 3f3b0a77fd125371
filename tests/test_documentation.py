"""What the documentation shows is true: its examples run, and give what they say.

Examples are doctests in docstrings, and in `pycon` blocks of the Markdown files, which share one namespace a file.
"""

from __future__ import annotations

import doctest
import importlib
import re
from pathlib import Path

import pytest

import traceable

pytestmark = pytest.mark.slow

REPOSITORY = Path(__file__).resolve().parents[1]
MARKDOWN = [REPOSITORY / "README.md", *sorted((REPOSITORY / "docs").rglob("*.md"))]
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\((?!\w+:)([^)#]+)")


def modules() -> list[str]:
    """Name the modules whose docstrings hold examples; importing all of them would run the entry points."""
    package = Path(traceable.__path__[0])
    shown = [path for path in package.rglob("*.py") if ">>> " in path.read_text()]
    return sorted(".".join(path.relative_to(package.parent).with_suffix("").parts) for path in shown)


def run(test: doctest.DocTest) -> None:
    says: list[str] = []
    outcome = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(test, out=says.append)
    assert outcome.failed == 0, "".join(says)


@pytest.mark.parametrize("name", modules())
def test_the_examples_of_docstrings_are_true(name: str) -> None:
    for test in doctest.DocTestFinder().find(importlib.import_module(name.removesuffix(".__init__"))):
        run(test)


@pytest.mark.parametrize("path", MARKDOWN, ids=lambda path: path.name)
def test_the_examples_of_the_documents_are_true(path: Path) -> None:
    text = path.read_text()
    source = "\n".join(code for language, code in BLOCK.findall(text) if language == "pycon")
    run(doctest.DocTestParser().get_doctest(source, {}, path.name, str(path), 0))
    for language, code in BLOCK.findall(text):
        if language == "python":
            compile(code, str(path), "exec")


@pytest.mark.parametrize("path", MARKDOWN, ids=lambda path: path.name)
def test_the_links_of_the_documents_lead_to_files(path: Path) -> None:
    assert [link for link in LINK.findall(path.read_text()) if not (path.parent / link).exists()] == []
