"""What a test needs and this machine lacks."""

from __future__ import annotations

import os
from typing import NoReturn

import pytest


def lacking(what: str) -> NoReturn:
    """Skip the test, and fail it in CI, where all of it must be there.

    Args:
        what: what is missing, as a sentence.
    """
    (pytest.fail if os.environ.get("CI") == "true" else pytest.skip)(what)
    raise AssertionError
