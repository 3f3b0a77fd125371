"""A process that records itself, with the embedded recorder: for the pytest plugin, notebooks and metrics."""
