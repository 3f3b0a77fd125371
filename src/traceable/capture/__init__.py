"""In the process: steps are counted, and a profiler records exactly the requested windows of steps.

`steps` counts steps, `windows` opens windows through `gates` and writes the state for the launcher, `schedule` lists
the windows. `checks/windows.py` verifies afterwards, from the trace, that the request was recorded.
"""
