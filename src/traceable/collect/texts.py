"""Reads the messages of a thread that were not registered: from its own file, or from a flight recorder's ring."""

from __future__ import annotations

import mmap

import numpy as np
from numpy.typing import NDArray

from traceable import untrusted
from traceable.collect.recording import FILE_HEADER_BYTES, TEXT_BIT, TEXT_MAGIC, ThreadRecording, decode

LOST_TEXT = "[text lost]"
"""Stands for a message whose text found no room on disk or was cut off."""


class Texts:
    """The messages of one thread that were not registered. A context manager: it holds the file mapped."""

    def __init__(self, thread: ThreadRecording) -> None:
        self._path = thread.texts
        self._in_ring = thread.pieces is not None
        self._content: mmap.mmap | bytes = b""

    def __enter__(self) -> Texts:
        if untrusted.is_regular(self._path) and self._path.stat().st_size >= FILE_HEADER_BYTES:
            with untrusted.open_regular(self._path) as file:
                self._content = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            if self._content[:8] != TEXT_MAGIC and not self._in_ring:
                self._close()
        return self

    def __exit__(self, *_: object) -> None:
        self._close()

    def _close(self) -> None:
        if isinstance(self._content, mmap.mmap):
            self._content.close()
        self._content = b""

    def lookup(self, messages: NDArray[np.uint64]) -> NDArray[np.object_]:
        """Return the text (str) of each message that has TEXT_BIT set; None for the others."""
        texts = np.full(len(messages), None, object)
        chosen = np.flatnonzero(messages & np.uint64(TEXT_BIT))
        if len(chosen):
            unique, inverse = np.unique(messages[chosen], return_inverse=True)
            values = np.empty(len(unique), object)
            values[:] = [self._text((int(message) ^ TEXT_BIT) * 8) for message in unique]
            texts[chosen] = values[inverse]
        return texts

    def _text(self, place: int) -> str:
        if place + 8 > len(self._content):
            return LOST_TEXT
        length = int.from_bytes(self._content[place : place + 8], "little")
        if place + 8 + length > len(self._content):
            return LOST_TEXT
        return decode(self._content[place + 8 : place + 8 + length])
