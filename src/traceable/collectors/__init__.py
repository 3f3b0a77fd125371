"""Around the process: one module a collector behind the interface of `base`, registered here.

A collector is imported when it is asked for: looking for nsys must not cost what the recorder's reader imports.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass

from traceable.collectors import gpu_device
from traceable.collectors.base import Collector
from traceable.errors import CollectorError, Message, UsageError

AUTO = "auto"

COLLECTORS = {
    "nsys": ("traceable.collectors.nsys.collector", "NsysCollector"),
    "recorder": ("traceable.collectors.recorder.collector", "RecorderCollector"),
    "torch": ("traceable.collectors.torch.collector", "TorchCollector"),
    "none": ("traceable.collectors.none", "NoneCollector"),
}
"""Each collector's name, with the module and the class that satisfy `base.Collector`."""

_WITH_GPU, _WITHOUT_GPU = ("nsys", "recorder"), ("recorder", "nsys")
"""What `auto` tries, in this order. nsys also sees the GPU; of ranges the recorder sees more: it follows forks, loses
nothing when a process is killed, and takes a second less."""

_WITHOUT_RECORDING = "run with --collector none to run without recording"


@dataclass(frozen=True)
class Choice:
    """The collector that will be used, and a clause that says why."""

    collector: Collector
    reason: str


def create_collector(name: str, settings: Mapping[str, object] | None = None) -> Collector:
    """Return the collector called `name`.

    Args:
        name: a key of `COLLECTORS`.
        settings: what the user asks of single collectors, by their names; only their own classes know what it is.

    Raises:
        UsageError: there is none of that name.
    """
    if name not in COLLECTORS:
        raise UsageError(
            "no_such_collector", f"there is no collector named {name!r}", f"use one of {', '.join(COLLECTORS)}"
        )
    module, attribute = COLLECTORS[name]
    asked = [settings[name]] if settings and name in settings else []
    collector: Collector = getattr(importlib.import_module(module), attribute)(*asked)
    return collector


def choose_collector(
    asked: str, unusable: Mapping[str, Message] | None = None, settings: Mapping[str, object] | None = None
) -> Choice:
    """Return the collector to use for `asked`: a name, or `auto`.

    Args:
        asked: what the user said.
        unusable: collectors found not to work in this run after all, by name, with the reason.
        settings: what the user asks of single collectors, as for `create_collector`.

    Raises:
        UsageError: there is no such collector.
        CollectorError: the one asked for, or every one that `auto` may take, does not work here.
    """
    refused = dict(unusable or {})
    # Options for nsys ask for nsys.
    without_gpu = gpu_device.explain_no_gpu() if asked == AUTO and "nsys" not in (settings or {}) else None
    remedy = ""
    names = (_WITHOUT_GPU if without_gpu else _WITH_GPU) if asked == AUTO else (asked,)
    for name in names:
        if name in refused:
            continue
        collector = create_collector(name, settings)
        found = collector.availability()
        if found.available:
            if name == "recorder" and without_gpu:
                refused.setdefault("nsys", without_gpu)
            passed_over = "".join(f"; {other} is not used: {reason.printed}" for other, reason in refused.items())
            return Choice(collector, found.reason + passed_over)
        refused[name] = Message(found.code, found.reason)
        remedy = found.remedy
    if asked == AUTO:
        said = "; ".join(f"{name}: {reason.printed}" for name, reason in refused.items())
        raise CollectorError("no_collector", f"nothing can record here ({said})", _WITHOUT_RECORDING)
    why = refused[asked]
    raise CollectorError(why.code, f"the collector {asked}: {why}", remedy or _WITHOUT_RECORDING)


def with_gpu(choice: Choice) -> Choice:
    """Return a choice that records the GPU's work too: nsys does anyhow, the recorder with the help of torch.

    Raises:
        CollectorError: this runs under nsys, which has the GPU's events to itself.
    """
    if choice.collector.name != "recorder":
        return choice
    from traceable.collectors.recorder import collector as recorder
    from traceable.collectors.torch import collector as torch

    torch.reject_under_nsys()
    return Choice(recorder.RecorderCollector(gpu=True), f"{choice.reason}, and the GPU by the program's own torch")
