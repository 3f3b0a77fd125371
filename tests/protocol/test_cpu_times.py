"""How long threads ran and waited for a CPU, where the kernel has it and where not."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

from traceable.protocol import cpu_times
from traceable.protocol.cpu_times import CpuTimes, read_process_times, read_thread_times


def write_times(folder: Path, **threads: str) -> None:
    for name, content in threads.items():
        (folder / name).mkdir()
        (folder / name / "schedstat").write_text(content)


@pytest.mark.skipif(read_thread_times() is None, reason="a kernel without schedstat")
def test_a_thread_that_works_has_run_for_longer() -> None:
    before, whole = read_thread_times(), read_process_times()
    start_ns = time.thread_time_ns()
    while time.thread_time_ns() < start_ns + 20_000_000:
        pass
    after = read_thread_times()
    assert after.run_ns - before.run_ns >= 15_000_000
    assert after.wait_ns >= before.wait_ns
    assert read_process_times().run_ns > whole.run_ns


@pytest.mark.skipif(read_thread_times() is None, reason="a kernel without schedstat")
def test_the_times_of_a_process_are_those_of_its_threads() -> None:
    go, is_done = threading.Event(), threading.Event()

    def work() -> None:
        end_ns = time.thread_time_ns() + 20_000_000
        while time.thread_time_ns() < end_ns:
            pass
        is_done.set()
        go.wait()

    thread = threading.Thread(target=work)
    thread.start()
    is_done.wait()
    assert read_process_times().run_ns - read_thread_times().run_ns >= 15_000_000
    go.set()
    thread.join()


def test_the_times_of_all_threads_that_can_be_read_are_summed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_times(tmp_path, a="5 3 1\n", b="10 4 2\n", ended="", odd="x y z\n")
    monkeypatch.setattr(cpu_times, "_THREADS", str(tmp_path))
    assert read_process_times() == CpuTimes(15, 7)


@pytest.mark.parametrize("content", ["0 0 0\n", "", "5\n"])
def test_a_kernel_that_does_not_measure_it_leaves_it_unknown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: str
) -> None:
    write_times(tmp_path, a=content)
    monkeypatch.setattr(cpu_times, "_THREADS", str(tmp_path))
    assert read_process_times() is None
    assert read_thread_times(str(tmp_path / "a")) is None
    monkeypatch.setattr(cpu_times, "_THREADS", str(tmp_path / "none"))
    assert read_process_times() is None
