"""In the process: steps are counted, and a profiler records exactly the requested windows of steps.

`control` counts steps and opens windows through `gates`, `schedule` lists the windows, `status` writes the state for
the launcher. `analysis/windows.py` verifies afterwards, from the trace, that the request was recorded.
"""
