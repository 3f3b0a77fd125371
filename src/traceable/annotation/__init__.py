"""In the process: a name becomes NVTX calls, for functions, methods, classes, coroutines, generators and blocks.

It is independent of steps, windows, collectors and reports: NVTX is the only bus, whichever profiler is attached.
"""
