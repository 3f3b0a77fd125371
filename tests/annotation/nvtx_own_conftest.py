"""The conftest that nvtx's own tests lack in its source distribution: copied beside them by test_nvtx_own.py.

`import nvtx` is traceable in their process. What they verify of a tool's callbacks is written down here as what must be
recorded, test by test; test_nvtx_own.py compares it with the recording when the process has ended.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import traceable
from traceable.annotation import domains

WITH_TOOL = bool(os.environ.get("NVTX_INJECTION64_PATH"))
DUMMY = domains._dummy


def _module(name: str, **content: Any) -> None:
    module = types.ModuleType(name)
    module.__path__ = []
    vars(module).update(content)
    sys.modules[name] = module


# Before traceable takes its place: the names that are the package's own.
for _name in traceable._NVTX_NAMES:
    getattr(traceable, _name)
_reasons = importlib.import_module("nvtx").CounterNoValueReason
sys.modules["nvtx"] = traceable
_module("nvtx.nvtx", dummy_domain=DUMMY)
_module("nvtx._lib")
_module("nvtx._lib.counters", dummy_counter=domains._dummy_counter)
_module("nvtx._lib.profiler", Profile=traceable.Profile)
_module("nvtx.writer", PredefinedScope=traceable.PredefinedScope)


class Expected:
    """What the tests say must have been emitted: one list of rows for each test, in order."""

    def __init__(self) -> None:
        self.tests: list[dict[str, Any]] = []

    def add(self, *row: Any) -> None:
        self.tests[-1]["rows"].append(row)


_expected = Expected()


@pytest.fixture(scope="session")
def nvtx_events() -> Expected | None:
    return _expected if WITH_TOOL else None


@pytest.fixture(autouse=True)
def one_test(request: pytest.FixtureRequest) -> None:
    if WITH_TOOL:
        traceable.mark(str(len(_expected.tests)), domain="nvtx_own")
        _expected.tests.append({"test": request.node.name, "rows": []})


def pytest_sessionfinish() -> None:
    Path(os.environ["NVTX_OWN_EXPECTED"]).write_text(json.dumps(_expected.tests))


@pytest.fixture(params=[None, "süß"])
def message(request: Any) -> Any:
    return request.param


@pytest.fixture(params=[None, "red"])
def color(request: Any) -> Any:
    return request.param


@pytest.fixture(params=[None, "a domain"])
def domain(request: Any) -> Any:
    return request.param


@pytest.fixture(params=[None, "a category", 7])
def category(request: Any) -> Any:
    return request.param


@pytest.fixture(params=[None, 5, -2.5])
def payload(request: Any) -> Any:
    return request.param


def _plain(value: Any) -> Any:
    """What of a payload must be recorded: a number, or the fields."""
    if value is None or isinstance(value, int | float):
        return value
    array = value if isinstance(value, np.ndarray) else np.array(value)
    if array.nbytes == 0:
        return None
    if array.dtype.names and array.shape == ():
        return {name: _to_list(array[name]) for name in array.dtype.names}
    if array.dtype.kind == "S":
        return {"payload": [one.decode() for one in value] if array.shape else value.decode()}
    return {"payload": [_to_list(one) for one in array]}


def _to_list(value: Any) -> Any:
    if getattr(value, "dtype", None) is not None and value.dtype.names:
        return [_to_list(value[name]) for name in value.dtype.names]
    return value.tolist()


def _event(kind: str, events: Expected, domain: Any, message: Any, color: Any, category: Any, payload: Any) -> None:
    argb = {None: 0x0000FF, "red": 0xFF0000}.get(color, color)
    events.add(kind, domain, message, argb, category, _plain(payload))


def verify_push(events: Any, domain: Any, message: Any, color: Any, category: Any, payload: Any) -> None:
    _event("push", events, domain, message, color, category, payload)


def verify_mark(events: Any, domain: Any, message: Any, color: Any, category: Any, payload: Any) -> None:
    _event("mark", events, domain, message, color, category, payload)


def verify_start(events: Any, domain: Any, message: Any, color: Any, category: Any, payload: Any) -> None:
    _event("start", events, domain, message, color, category, payload)


def verify_pop(events: Any, domain: Any) -> None:
    """That the range was closed is asked of each in the recording."""


def verify_end(events: Any, domain: Any, range_id: Any) -> None:
    assert isinstance(range_id[0] if isinstance(range_id, tuple) else range_id, int)


def verify_registration_events(events: Any, *_arguments: Any, **_named: Any) -> None:
    """Strings, categories and schemas are no rows of a recording; what is registered is seen in what uses it."""


def verify_counter_register(events: Any, domain: Any, name: str, dtype: Any, **names: Any) -> Any:
    semantics, scope = names.get("semantics"), names.get("scope")
    description, time_domain = names.get("description"), names.get("time_domain")
    counter = traceable.get_domain(domain).get_counter(
        name,
        dtype,
        description=description,
        scope=scope,
        semantics=semantics,
        **({"time_domain": time_domain} if time_domain is not None else {}),
    )
    assert (counter.name, counter.description, counter.scope) == (name, description, scope)
    assert counter.semantics == semantics
    return name, np.dtype(np.int64 if dtype is int else dtype)


def verify_counter_sample_int64(events: Any, domain: Any, counter: Any, value: int) -> None:
    events.add("counter", domain, counter[0], None, None, value)


verify_counter_sample_float64 = verify_counter_sample_int64


def verify_counter_sample(events: Any, domain: Any, counter: Any, content: bytes) -> None:
    name, dtype = counter
    (sample,) = np.frombuffer(content, dtype)
    for field in dtype.names:
        events.add("counter", domain, f"{name}.{field}", None, None, sample[field].item())


_last: dict[Any, int] = {}  # the one test that samples no value has one counter a domain


def verify_counter_sample_no_value(events: Any, domain: Any, counter: Any, reason: int) -> None:
    if reason == _reasons.ZERO.value:
        _last[domain] = 0
    elif reason != _reasons.UNCHANGED.value or domain not in _last:
        return
    events.add("counter", domain, counter[0], None, None, _last[domain])


def verify_counter_batch_submit(*_arguments: Any) -> None:
    """Nothing of it is recorded, which is documented and said on stderr."""


def verify_timestamp_get(events: Any, timestamp: Any) -> None:
    assert isinstance(timestamp, int)
