"""Nsight Compute: finding it, which kernels it is to profile, how it is started."""
