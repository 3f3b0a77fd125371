"""The peak of the link that a memory operation goes over, where it is known. Absent is never replaced by a guess.

A trace does not tell the generation and width of the PCIe link. What the name of the GPU says for certain is taken
from the table below: NVIDIA's data sheets of GPUs that are sold with one host interface only. Its numbers are of one
direction, from the transfer rate, 16 lanes and the 128b/130b encoding, before the protocol's own cost (of which some
10 to 20 % go in practice); a board in a narrower slot has less. Laptops and desktop cards are left out, because their
links differ, and so are links between GPUs.
"""

from __future__ import annotations

import re

import numpy as np

from traceable.trace.model import Device, Float64, Int64, Trace

_PCIE_LANES = 16
_PCIE_GIGATRANSFERS = {3: 8.0, 4: 16.0, 5: 32.0}

_GENERATIONS = (
    (re.compile(r"\b(T4|V100S?-PCIE)\b", re.IGNORECASE), 3),
    (re.compile(r"\b(A100|A800|A30|A40|A10|L4|L40S?)\b", re.IGNORECASE), 4),
    (re.compile(r"\b(H100|H800|H200)\b", re.IGNORECASE), 5),
)
"""Which generation of PCIe x16 the GPUs of a name have. `GH200` is another GPU than `H200`, with another link."""

HOST, OWN_MEMORY, OWN_MEMORY_TWICE, UNKNOWN = range(4)
"""What a memory operation goes over: the link to the host, the GPU's memory once (a set writes), or twice (a copy
within the GPU reads and writes every byte), or what has no known peak."""


def host_link_gb_per_s(name: str) -> float | None:
    """Return the peak of one direction of a GPU's link to the host, in 10**9 bytes a second; None where unknown.

    Examples:
        >>> round(host_link_gb_per_s("NVIDIA A100-SXM4-80GB"), 1), round(host_link_gb_per_s("NVIDIA H100 PCIe"), 1)
        (31.5, 63.0)
        >>> host_link_gb_per_s("NVIDIA RTX 5000 Ada Generation Laptop GPU")
    """
    if "laptop" in name.lower():
        return None
    for pattern, generation in _GENERATIONS:
        if pattern.search(name):
            return _PCIE_GIGATRANSFERS[generation] * _PCIE_LANES / 8 * 128 / 130
    return None


def peaks_gb_per_s(trace: Trace, gpu: Int64, link: Int64) -> Float64:
    """Return the peak that each operation could reach, in 10**9 bytes a second; NaN where it is not known.

    Args:
        gpu: nsys's number of the GPU of each operation; negative where unknown.
        link: of each operation HOST, OWN_MEMORY, OWN_MEMORY_TWICE or UNKNOWN.
    """
    peaks = np.full(len(gpu), np.nan)
    for device in trace.devices:
        here = gpu == device.number
        peaks[here] = np.array(_peaks(device))[link[here]]
    return peaks


def _peaks(device: Device) -> list[float]:
    host = host_link_gb_per_s(device.name)
    # Adapters without CUDA come with a bandwidth of 0.
    own = device.memory_bytes_per_s / 1e9 if device.memory_bytes_per_s else np.nan
    return [np.nan if host is None else host, own, own / 2, np.nan]
