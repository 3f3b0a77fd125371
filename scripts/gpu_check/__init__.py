"""`make gpu-check`: everything that only a GPU can show, as one table (docs/gpu-check.md)."""
