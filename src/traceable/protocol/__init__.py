"""Below all rooms: what the process, the launcher and the readers of a run agree on. Standard library only."""
