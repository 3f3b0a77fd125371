"""The performance rules, one file a rule; `checks.performance` lists them.

What they share: `rule` has the form of a rule and its findings, `evidence` the time that bounds are of and the GPUs in
it, `places` the names of ranges and GPUs, `copies` the copies between host and GPU, `call_savings` the bound on calls.
"""
