"""Annotation of torch: modules, backward, copies, compiled code; and ranges as records of torch.profiler."""
