"""Nsight Systems: finding it, what it is started with, what its reports may keep of secrets."""
