"""Which ranges the engine says that it keeps: what `capture/process_record.py` tells the launcher by name."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

ASK = """
import traceable
from traceable.annotation import engine
for number in range(5000):  # more than are kept
    with traceable.annotate("twice", color="red", domain="d"): pass
    with traceable.annotate(f"name {number}"): pass
kept = engine.list_interned_ranges()
assert len(kept) == 4096, len(kept)
assert {one[1] for one in kept} >= {"twice", "name 0", "name 4000"}
assert [one[1:] for one in kept if one[1] == "twice"] == [("twice", "red", "d", None, None)]
"""


@pytest.mark.parametrize("pure", ["", "1"])
def test_each_distinct_range_is_kept_once_up_to_the_limit(pure):
    variables = {**os.environ, "TRACEABLE_PURE": pure}
    subprocess.run([sys.executable, "-c", ASK], env=variables, check=True)
