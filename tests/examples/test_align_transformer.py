"""`examples/align_transformer.py`: the ranges by which a layer of it is found."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

from tests.conftest import REPOSITORY
from tests.skips import skip_unless_ci

import traceable
from traceable._native import find_recorder_library

SMALL = ("--steps", "2", "--width", "16", "--heads", "2", "--length", "4", "--device", "cpu")


def test_each_layer_has_a_range_with_attention_and_mlp_in_it(tmp_path: Path) -> None:
    # Not imported: that takes seconds here, and again in the program.
    if find_spec("torch") is None:
        skip_unless_ci("torch is not installed")
    if find_recorder_library() is None:
        skip_unless_ci("the embedded recorder was not built")
    program = str(REPOSITORY / "examples" / "align_transformer.py")
    words = [sys.executable, "-m", "traceable", "run", "--collector", "recorder", "-o", str(tmp_path / "run"), program]
    subprocess.run([*words, "--layers", "2", *SMALL], check=True, capture_output=True)
    paths = {tuple(path) for path in traceable.load(tmp_path / "run").ranges().column("path")}
    layers = {("step", f"layers.{number}") for number in range(2)}
    inside = {(*layer, part) for layer in layers for part in ("attention", "mlp")}
    assert paths == {("step",), ("step.wait",), *layers, *inside}
