"""torch.profiler: the program's own torch records, and leaves one Kineto trace a process."""
