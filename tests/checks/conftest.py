"""The launchers and programs of tests/launch: what is checked and diagnosed are real runs."""

from __future__ import annotations

from tests.launch.conftest import collector as collector
from tests.launch.conftest import command as command
from tests.launch.conftest import environ as environ
from tests.launch.conftest import run as run
from tests.launch.conftest import start as start
