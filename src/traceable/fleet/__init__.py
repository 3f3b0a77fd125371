"""Many recordings as one profile: each is reduced to rank profiles, in a process of its own or on a Dask cluster, and
`analysis.fleet` merges these (docs/fleet.md).
"""
