"""In the process: steps are counted, and a profiler records exactly the windows of steps that were asked for.

`control` counts and decides, `gates` open and close, `spec` says which steps, `status` tells the launcher. Whether
what was asked for was recorded is judged afterwards, from the trace (`analysis/windows.py`).
"""
