"""The performance rules, one file a rule; `checks.performance` lists them.

Shared by them: `rule` has the form of a rule and its findings, `evidence` the time to which bounds refer, the GPUs in
it and the bound on calls, `places` the names of ranges and GPUs, `copies` the copies between host and GPU.
"""
