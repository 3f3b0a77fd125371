"""Skips of tests on a machine that lacks what they need."""

from __future__ import annotations

import os
from typing import NoReturn

import pytest


def skip_unless_ci(reason: str) -> NoReturn:
    """Skip the test; in CI, where everything is installed, fail it.

    Args:
        reason: what is missing, as a sentence.
    """
    if os.environ.get("CI") == "true":
        pytest.fail(reason)
    pytest.skip(reason, allow_module_level=True)
