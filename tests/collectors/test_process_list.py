"""The processes of the machine are listed whatever may not be read of them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tests.skips import skip_unless_ci

from traceable.collectors import process_list

NOBODY = (
    "setpriv --reuid 65534 --regid 65534 --clear-groups --inh-caps +dac_read_search --ambient-caps +dac_read_search"
)
TREE = """
import subprocess, sys
from traceable.collectors.process_list import list_descendants, list_processes
code = "import subprocess, sys; child = subprocess.Popen(['cat']); print(child.pid, flush=True); child.wait()"
with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
    grandchild = int(child.stdout.readline())
    import os
    print([one.pid for one in list_descendants(os.getpid())] == [child.pid, grandchild], len(list_processes()) > 2)
    print([one.pid for one in list_descendants(child.pid)] == [grandchild])
    child.stdin.close()
"""


def test_children_and_their_children_are_descendants():
    done = subprocess.run([sys.executable, "-c", TREE], capture_output=True, text=True)
    assert done.stdout.split() == ["True", "True", "True"], done.stderr


@pytest.mark.parametrize("hidepid", [1, 2])
def test_descendants_are_found_where_other_processes_are_hidden(hidepid: int):
    """psutil's own `children` raises AccessDenied with hidepid=1."""
    mount = f'mount -t proc -o hidepid={hidepid} proc /proc && exec {NOBODY} "$@"'
    inside = ["unshare", "--mount", "--pid", "--fork", "sh", "-c", mount, "sh"]
    if not shutil.which("unshare") or subprocess.run([*inside, "true"], capture_output=True).returncode:
        skip_unless_ci("this user may not mount /proc and become another one")
    done = subprocess.run([*inside, sys.executable, "-c", TREE], capture_output=True, text=True)
    assert [done.stdout.split()[i] for i in (0, 2)] == ["True", "True"], done.stderr


def test_without_proc_there_are_no_processes():
    code = "from traceable.collectors import process_list as l; print(l.list_processes(), l.list_descendants(1))"
    inside = ["unshare", "--mount", "sh", "-c", 'umount -l /proc && exec "$@"', "sh"]
    if not shutil.which("unshare") or subprocess.run([*inside, "true"], capture_output=True).returncode:
        skip_unless_ci("this user may not unmount /proc")
    done = subprocess.run([*inside, sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout == "[] []\n", done.stderr


def test_open_files_of_a_process_that_has_ended_are_left_out(tmp_path: Path):
    ended = subprocess.Popen(["true"])
    ended.wait()
    with (tmp_path / "stream").open("wb"):
        files = process_list.list_open_files([ended.pid, os.getpid()])
    assert tmp_path / "stream" in files
