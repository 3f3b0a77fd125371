"""Memory settings of traceable's own commands: freed memory is reused, and no idle threads are started.

By default glibc maps every large array for itself and gives it back at once. An analysis makes hundreds of them, and
the kernel clears each page of each: about a fifth of the time. Only for a process that is ours: never in a program that
is annotated, and never in one that uses `traceable.load`.
"""

from __future__ import annotations

import os

_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3
_M_ARENA_MAX = -8
_LARGEST_THRESHOLD = 32 << 20
"""The largest that glibc takes on 64-bit machines: arrays above it are mapped as before."""

_KEPT_BYTES = 1 << 30


def use_one_blas_thread() -> None:
    """Have numpy start no threads for linear algebra, of which there is none here. To be called before its import.

    OpenBLAS starts one for each further core as soon as it is loaded, and they spin for a tenth of a second.
    """
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")


def keep_freed_memory() -> None:
    """Have freed memory kept for the next array. Does nothing where the C library is not glibc."""
    try:
        # numpy loads it as well.
        import ctypes

        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_M_MMAP_THRESHOLD, _LARGEST_THRESHOLD)
        mallopt(_M_TRIM_THRESHOLD, _KEPT_BYTES)
        # What one thread freed is of no use to another with a heap of its own.
        mallopt(_M_ARENA_MAX, 1)
    except (ImportError, OSError, AttributeError, TypeError):
        return
