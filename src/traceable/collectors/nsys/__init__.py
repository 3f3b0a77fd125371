"""Nsight Systems: how it is found, its command line, and the secrets that its reports may hold."""
