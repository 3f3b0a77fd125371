"""What is said while a collector writes its report."""

from __future__ import annotations

import os

from traceable.launch import patience


def test_a_heartbeat_says_how_much_is_written(tmp_path, monkeypatch):
    monkeypatch.setattr(patience, "HEARTBEAT_SECONDS", 0.0)
    said: list[str] = []
    writing = patience.Writing("nsys", lambda _: [os.getpid()], tmp_path, said.append)
    (tmp_path / "app.nsys-rep").write_bytes(b"x" * 2048)
    assert writing.goes_on()
    # What is still in nsys's own folder counts, by the descriptor that it has open; the same file counts once.
    (tmp_path / "elsewhere").mkdir()
    with (tmp_path / "elsewhere" / "nsys-report-1.qdstrm").open("wb") as stream, (tmp_path / "app.nsys-rep").open("rb"):
        stream.write(b"x" * 1024)
        stream.flush()
        assert writing.goes_on()
    assert said == [
        "nsys is writing the report, 2.000 KiB, for 0 s now",
        "nsys is writing the report, 3.000 KiB, for 0 s now",
    ]
