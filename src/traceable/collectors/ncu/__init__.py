"""Nsight Compute: how it is found, its filters of kernels, its command line."""
