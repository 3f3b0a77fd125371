"""What `import traceable` loads into a server: next to nothing, in either form."""

from __future__ import annotations

import importlib.metadata
import os
import subprocess
import sys
from pathlib import Path

import pytest

import traceable

HEAVY = {"numpy", "torch", "rich", "psutil", "nvtx", "wrapt", "opentelemetry", "asyncio"}
ROOMS = {f"traceable.{room}" for room in ("collectors", "launch", "checks", "trace", "analysis", "report", "cli")}
ALSO_NOT = {"inspect", "dataclasses", "pathlib", "json", "logging", "threading"}
"""Of the standard library, what takes longer to import than traceable. And `threading`: a program that patches it
(gevent) does so before anything else imports it."""

LIST = """
import sys
before = set(sys.modules)
import traceable
with traceable.annotate("x", color="red"): pass
traceable.mark("y", domain="d", category="c", payload=1)
print("\\n".join(sorted(set(sys.modules) - before)))
"""


@pytest.mark.parametrize("variables", [{}, {"TRACEABLE_PURE": "1"}, {"TRACEABLE_DISABLE": "1"}], ids=str)
def test_import_loads_nothing_heavy(variables: dict[str, str]) -> None:
    kept = {k: v for k, v in os.environ.items() if not k.startswith("TRACEABLE_") and k != "NVTX_INJECTION64_PATH"}
    environment = {**kept, **variables, "PYTHONPATH": str(Path(traceable.__file__).parents[1])}
    # -S: what the site's own .pth files load is not ours.
    output = subprocess.run(
        [sys.executable, "-S", "-c", LIST], env=environment, check=True, capture_output=True, text=True
    ).stdout
    loaded = set(output.split())
    assert "traceable.annotation.ranges" in loaded
    assert not loaded & (HEAVY | ROOMS | ALSO_NOT)
    assert not [name for name in loaded if name.partition(".")[0] in HEAVY]


def test_every_public_name_is_there() -> None:
    for name in traceable.__all__:
        assert getattr(traceable, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        traceable.nothing  # type: ignore[attr-defined]  # noqa: B018


def test_without_torch_the_names_that_need_it_say_so_when_they_are_called() -> None:
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "from traceable import *\n"
        "for call in (instrument, instrument_copies):\n"
        "    try: call()\n"
        "    except ImportError as error: print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [
        f"traceable.{name} needs torch; install traceable[torch]" for name in ("instrument", "instrument_copies")
    ]


def test_the_version_is_that_of_the_installed_package():
    asked = subprocess.run([sys.executable, "-m", "traceable", "--version"], capture_output=True, text=True, check=True)
    assert traceable.__version__ == importlib.metadata.version("traceable")
    assert asked.stdout.startswith(f"traceable {traceable.__version__} (Python ")
