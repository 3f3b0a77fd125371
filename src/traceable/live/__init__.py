"""A process that records itself, with the embedded recorder: for the pytest plugin and for notebooks."""
