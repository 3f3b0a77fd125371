"""The peak of the link that a memory operation goes over, where it is known. Absent is never replaced by a guess.

A trace does not hold the generation and width of the PCIe link. The table below has them by the name of the GPU, for
GPUs that are sold with one host interface only. Its peaks are of one direction, from the transfer rate, the lanes and
the 128b/130b encoding, before the protocol's own cost (of which some 10 to 20 % go in practice). They are the most that
the GPU itself can do: in a slot of an older generation or with fewer lanes it does less, so that a bound computed with
them stays a bound. Not in the table, and so without a peak: laptops, whose makers choose the lanes; V100 and P100 in
SXM form, which POWER servers connect by NVLink; Grace's GPUs (GH200, GB200), connected by NVLink-C2C; B300, whose link
goes through a network card of PCIe 6; and links between GPUs.
"""

from __future__ import annotations

import re

import numpy as np

from traceable.trace.model import Device, Float64, Int64, Trace

_PCIE_GIGATRANSFERS = {3: 8.0, 4: 16.0, 5: 32.0}

_HOST_LINKS = (
    # P100 PCIe, P4, P40, V100 PCIe and V100S, T4, TITAN V and TITAN RTX. Not looked up.
    (r"P100-PCIE|P40|P4|V100S?-PCIE|T4|TITAN (V|RTX)", 3, 16),
    # Turing's and Pascal's desktop boards. Not looked up.
    (r"(GeForce )?RTX 20[678]0( SUPER| Ti)?|(GeForce )?GTX (10[678]0( Ti)?|16[56]0( SUPER| Ti)?)", 3, 16),
    (r"Quadro RTX [4568]000", 3, 16),
    # A100, A800, A30, A40, A10, A16, L4, L40 and L40S; A2 and RTX A1000 have 8 lanes. Not looked up.
    (r"A100|A800|A30|A40|A10|A16|L4|L40S?", 4, 16),
    (r"A2", 4, 8),
    (r"RTX A(2000|4000|4500|5000|5500|6000)", 4, 16),
    # Ada's workstation boards, RTX 4000 to 6000; RTX 2000 Ada has 8 lanes. Not looked up.
    (r"RTX (4000|4500|5000|5880|6000)( SFF)? Ada Generation", 4, 16),
    # Desktop GeForce 30 and 40. AD106 and AD107 (RTX 4060 and 4060 Ti) have 8 lanes, as GA107 has; TechPowerUp, "RTX
    # 5060 Ti PCI-Express x8 Scaling" (2025), compares them: 3060 Ti 4.0 x16, 4060 Ti 4.0 x8, 5060 Ti 5.0 x8.
    (r"(GeForce )?RTX 30[6789]0( Ti)?", 4, 16),
    (r"(GeForce )?RTX (3050|4060)( Ti)?", 4, 8),
    (r"(GeForce )?RTX 40[789]0( D| SUPER| Ti| Ti SUPER)?", 4, 16),
    (r"(GeForce )?RTX 50(50|60)( Ti)?", 5, 8),
    (r"(GeForce )?RTX 50[789]0( D| Ti)?", 5, 16),
    # H100, H800, H20, H200, PCIe and SXM alike: not looked up. B200: Xeon 8570 with PCIe 5, by the DGX B200 User Guide.
    (r"H100|H800|H20|H200|B200", 5, 16),
    (r"RTX PRO 6000 Blackwell( (Workstation|Server|Max-Q Workstation) Edition)?", 5, 16),
)
"""Of GPUs by their name: the generation of PCIe, and its lanes."""

_BEFORE = r"(NVIDIA |Tesla )*"
_BEHIND = r"([- ](PCIe?|SXM\d|NVL|OEM|\d+ ?GB|HBM\d\w*|MIG \d+g\.\d+gb)\b)*"
"""What a name may have besides the model: form and memory, as in `A100-SXM4-80GB`; never another model's."""

_BY_NAME = tuple(
    (re.compile(f"{_BEFORE}({pattern}){_BEHIND}", re.IGNORECASE), generation, lanes)
    for pattern, generation, lanes in _HOST_LINKS
)

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
    for pattern, generation, lanes in _BY_NAME:
        if pattern.fullmatch(name.strip()):
            return _PCIE_GIGATRANSFERS[generation] * lanes / 8 * 128 / 130
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
