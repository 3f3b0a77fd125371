"""What the tests of the diagnosis share."""

from __future__ import annotations

from pathlib import Path

from traceable.checks import diagnosis
from traceable.checks.case import open_case
from traceable.finding import Finding

STEPS = "import traceable\nfor _ in traceable.steps(range(6)):\n    with traceable.annotate('work'): pass\n"


def diagnosed(path: Path) -> diagnosis.Diagnosis:
    with open_case(path) as case:
        result = diagnosis.diagnose(case)
    assert result.failed_rules == ()
    return result


def first(path: Path) -> Finding:
    return diagnosed(path).findings[0]
