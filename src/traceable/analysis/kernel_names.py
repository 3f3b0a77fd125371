"""The names by which kernels are counted, and their families. No arithmetic on times."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from traceable.analysis.grouping import numbered
from traceable.analysis.kernel_families import OTHER, Family, family_of
from traceable.trace import model
from traceable.trace.model import Int64, Trace

NAMES = ("demangled", "short", "base")
"""Which name of a kernel counts; see `kernel_names`."""

_TOKEN = re.compile(r"<unnamed>|\(anonymous namespace\)|operator ?\(\)|[<>()\s]")


@dataclass(frozen=True)
class Kinds:
    """Kernels of equal name, geometry and place: of a million kernels some hundreds, by which all are then counted.

    Attributes:
        of_kernel: the kind of each kernel, from 0.
        columns: of each kind one of its kernels; all but the times, the correlation and the node are those of all.
    """

    of_kernel: Int64
    columns: model.Kernels

    def __len__(self) -> int:
        return len(self.columns)


def kinds_of(kernels: model.Kernels) -> Kinds:
    """Return the kinds of kernels, ordered by name."""
    of_kernel, first = numbered(
        *(kernels.name, kernels.short_name, kernels.geometry),
        *(kernels.process, kernels.device, kernels.context, kernels.stream),
    )
    return Kinds(of_kernel, model.Kernels(**kernels.take(first)))


@dataclass(frozen=True)
class KernelNames:
    """What the kinds of kernels are called.

    Attributes:
        label: index into `texts`, one value a kind.
        texts: every distinct name; None for kernels whose name was not recorded.
        family: index into `families`, one value a kind.
        families: every family that occurs.
    """

    label: Int64
    texts: Sequence[str | None]
    family: Int64
    families: Sequence[str]


def kernel_names(trace: Trace, kinds: Kinds, names: str, families: Iterable[Family]) -> KernelNames:
    """Return name and family of each kind of kernel.

    Args:
        names: `demangled`, the whole name with template arguments and parameters; `short`, what the file holds as the
            bare function (nsys's `:base`); `base`, the function with its namespaces (see `base_name`).
        families: tried in order on the demangled name.

    Two kernels of one demangled name share their family; of one short name they need not.
    """
    kernels = kinds.columns
    of_name, first = numbered(kernels.name)
    demangled = [trace.names[name] if name >= 0 else None for name in kernels.name[first].tolist()]
    words, family = _coded([OTHER if name is None else family_of(name, families) for name in demangled])
    if names == "short":
        short = np.where(kernels.short_name >= 0, kernels.short_name, kernels.name)
        label, first = numbered(short)
        texts = [trace.names[name] if name >= 0 else None for name in short[first].tolist()]
    elif names == "base":
        texts, codes = _coded([None if name is None else base_name(name) for name in demangled])
        label = codes[of_name]
    else:
        texts, label = demangled, of_name
    return KernelNames(label, texts, family[of_name], [word or OTHER for word in words])


def base_name(name: str) -> str:
    """Return the function of a demangled name with its namespaces, without result, template arguments and parameters.

    Examples:
        >>> base_name("void at::native::reduce_kernel<(int)512, (int)1, Op<float, long>>(T3)")
        'at::native::reduce_kernel'
        >>> base_name("void <unnamed>::indexing_backward_kernel<float, (int)4>(const long *, T1 *)")
        '<unnamed>::indexing_backward_kernel'
        >>> base_name("ampere_sgemm_128x64_tn")
        'ampere_sgemm_128x64_tn'
    """
    kept: list[str] = []
    at = depth = brackets = 0
    for token in _TOKEN.finditer(name):
        mark = token.group()
        if not depth:
            kept.append(name[at : token.start()])
        at = token.end()
        if depth and mark in "()":
            # In brackets, `>` may be a comparison.
            brackets += 1 if mark == "(" else -1
        elif mark == "<":
            depth += not brackets
        elif mark == ">":
            depth -= not brackets
        elif depth:
            continue
        elif mark == "(":
            return "".join(kept) or name
        elif mark.isspace():
            # What stood before is the result's type.
            kept.clear()
        elif len(mark) > 1:
            kept.append(mark)
    return name.partition("<")[0] or name


def _coded(texts: Sequence[str | None]) -> tuple[list[str | None], Int64]:
    """Return the distinct texts in order of appearance, and the index of each."""
    index = {text: i for i, text in enumerate(dict.fromkeys(texts))}
    return list(index), np.array([index[text] for text in texts], np.int64)
