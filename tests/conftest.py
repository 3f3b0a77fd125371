"""What all tests share: where real nsys is, and where the real captures lie."""

from __future__ import annotations

import os
import shutil
import signal
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[1]


# A shell that starts the suite in the background, or under nohup, makes it ignore signals; its children inherit that,
# and a launched program then rightly ignores them too. The tests are about programs that don't.
for _number in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2):
    if signal.getsignal(_number) is signal.SIG_IGN:
        signal.signal(_number, signal.default_int_handler if _number == signal.SIGINT else signal.SIG_DFL)


def pytest_sessionstart() -> None:
    """On a CI machine the extensions must have been built: without them most tests would skip, saying why to no one."""
    if os.environ.get("CI") != "true":
        return
    for extension in ("_core", "_recorder", "_pages", "_discreet"):
        if not any((REPOSITORY / "src/traceable/_native").glob(f"{extension}.*.so")):
            pytest.exit(f"traceable._native.{extension} is not built, and CI builds it", returncode=1)


def absent(what: str) -> None:
    """Skip the test that needs `what`; on a CI machine, where everything is installed, fail it instead."""
    if os.environ.get("CI") == "true":
        pytest.fail(f"{what} is missing, and CI installs it")
    pytest.skip(f"{what} is missing")


@pytest.fixture(scope="session")
def nsys() -> str:
    """Path of a real nsys; scripts/install-nsys.sh installs one."""
    found = os.environ.get("TRACEABLE_NSYS") or shutil.which("nsys")
    if found is None:
        absent("nsys")
    assert found is not None
    return found


@pytest.fixture(scope="session")
def captures() -> Path:
    """The folder of real captures beside the checkout; they are not part of the repository."""
    folder = REPOSITORY.parent / "shared" / "data"
    if not folder.is_dir():
        pytest.skip(f"the real captures are not at {folder}")
    return folder
