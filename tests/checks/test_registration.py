"""A rule is one new file and one registration: here the files are in a temporary package."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

import traceable
from traceable.checks import diagnosis, doctor, performance
from traceable.cli.main import main

pytestmark = pytest.mark.slow

PERFORMANCE_RULE = """
from traceable.checks.performance_rules.rule import PerformanceRule, Threshold, make_finding, make_share_threshold

def find_many_ranges(evidence, values):
    count = len(evidence.context.trace.ranges)
    if count < values["count"]:
        return []
    return [make_finding(message=f"{count} ranges", fix="annotate less", potential_saving_ns=None, count=count)]

RULE = PerformanceRule(
    "many_ranges",
    "more ranges than someone can read",
    (Threshold("count", 5, "count", "fewest ranges"), make_share_threshold(0.0)),
    find_many_ranges,
    view="ranges",
    needs_gpu=False,
)
"""

DIAGNOSIS_RULE = """
from traceable.finding import POSSIBLE, WARNING, Finding, Rule, rule_out

def diagnose_short_name(case):
    if case.recording is None:
        return None
    names = [name for name in case.recording.trace.names if len(name) == 1]
    if not names:
        return rule_out("every name has several letters")
    return Finding("short_name", f"{names[0]} is a short name", "rename it", WARNING, (f"range {names[0]}",), POSSIBLE)

RULE = Rule("short_name", diagnose_short_name)
"""

CHECK = """
from traceable.finding import Rule, make_warning

def check_path(python):
    path = python.executable
    return make_warning("path_with_python", f"{path} is Python", "choose another name", path=path)

RULE = Rule("path", check_path)
"""


@pytest.fixture
def register(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, ModuleType], None]:
    """Write a rule into a file of a package, and add it to the rules of a module."""
    package = tmp_path / "packages" / "rules_of_others"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    monkeypatch.syspath_prepend(package.parent)
    monkeypatch.delitem(sys.modules, package.name, raising=False)  # of the test before

    def add(source: str, registry: ModuleType) -> None:
        name = registry.__name__.rpartition(".")[2]
        (package / f"{name}.py").write_text(source)
        rule = importlib.import_module(f"{package.name}.{name}").RULE
        monkeypatch.setattr(registry, "RULES", (*registry.RULES, rule))

    return add


@pytest.fixture
def run_dir(run, tmp_path: Path) -> Path:
    """A run directory whose recording has ten ranges."""
    code = "import traceable\nfor _ in range(10):\n    with traceable.annotate('x'): pass\n"
    done = run("recorder", code)
    assert list((tmp_path / "out").glob("*.sqlite")), done.stderr
    return tmp_path / "out"


def test_a_performance_rule(register, run_dir, capsys):
    register(PERFORMANCE_RULE, performance)
    recording = traceable.load(run_dir)
    rows = [row for row in recording.findings().rows() if row["code"] == "many_ranges"]
    assert [(row["severity"], row["message"], row["count"]) for row in rows] == [("note", "10 ranges", 10)]
    assert main(["report", str(run_dir), "--view", "findings", "--threshold", "many_ranges.count=10"]) == 0
    assert "10 ranges [many_ranges]" in capsys.readouterr().out
    assert "many_ranges" not in recording.findings(thresholds={"many_ranges.count": 11}).column("code")


def test_a_rule_of_the_diagnosis(register, run_dir, capsys):
    register(DIAGNOSIS_RULE, diagnosis)
    assert main(["doctor", "--report", str(run_dir)]) == 1
    printed = capsys.readouterr().out
    assert printed.startswith("warning  possible  short_name ")
    assert "x is a short name [short_name]" in printed
    assert main(["doctor", "--report", str(run_dir), "--json"]) == 1
    (finding,) = json.loads(capsys.readouterr().out)["findings"]
    assert (finding["check"], finding["code"], finding["certainty"]) == ("short_name", "short_name", "possible")
    assert (finding["fix"], finding["evidence"]) == ("rename it", ["range x"])


def test_a_check_of_the_machine(register, monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(doctor, "RULES", ())  # the others are slow
    register(CHECK, doctor)
    assert main(["doctor", "-o", str(tmp_path), "--json"]) == 1
    (finding,) = json.loads(capsys.readouterr().out)["findings"]
    assert (finding["check"], finding["severity"], finding["code"]) == ("path", "warning", "path_with_python")
    assert finding["data"]["path"] == doctor.machine.inspect_python().executable
