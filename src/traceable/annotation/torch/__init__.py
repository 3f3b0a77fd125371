"""What is annotated of torch itself: modules, backward, copies, compiled code; and ranges as its profiler's records."""
