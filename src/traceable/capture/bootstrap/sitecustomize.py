"""What every Python under `traceable run --annotate` runs first: hide our traces, start `hook`, give way to the user's.

Python imports `sitecustomize` from the folder that the launcher put first on PYTHONPATH. This one 1. takes that folder
out of `sys.path`, and out of PYTHONPATH as the program sees it; 2. calls `hook`, next to it, for the requested work, if
traceable supports this Python; 3. gives way to the `sitecustomize` that the interpreter would have found without us, or
to none. A program starts any Python there is, 2.7 too: this file only uses what all of them can parse, and never prints
anything.
"""

import os
import sys

_DIRECTORY = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120 - pathlib takes 5 ms to import
_OLDEST = (3, 10)
"""Of `requires-python`."""


def _load_hook():  # type: ignore[no-untyped-def] # Python 2 has no annotations
    """Return the module `hook`; None where this Python can't read it. It gets no name among the program's modules."""
    if sys.version_info < _OLDEST:
        return None
    try:
        path = _DIRECTORY + "/hook.py"
        module = type(sys)("traceable.capture.bootstrap.hook")
        loader = type(__loader__)(module.__name__, path)  # type: ignore[name-defined]
        module.__file__, module.__loader__ = path, loader
        loader.exec_module(module)
    except Exception:  # noqa: BLE001 - the program runs on, without us; that no pattern was read is what the launcher says
        return None
    return module


def _hide_directory():  # type: ignore[no-untyped-def]
    """Take our folder out of what the program sees: `sys.path`, its cache, and `os.environ`.

    Only the mapping is changed: the C environment keeps the folder for the processes that inherit it.
    """
    sys.path[:] = [entry for entry in sys.path if entry != _DIRECTORY]
    sys.path_importer_cache.pop(_DIRECTORY, None)
    path = os.environ.get("PYTHONPATH")
    if path is None:
        return
    encoded = getattr(os, "fsencode", str)
    seen = getattr(os.environ, "_data", None) or getattr(os.environ, "data")  # noqa: B009 - of Python 3, of Python 2
    rest = [entry for entry in path.split(os.pathsep) if entry != _DIRECTORY]
    if rest:
        seen[encoded("PYTHONPATH")] = encoded(os.pathsep.join(rest))
    else:
        del seen[encoded("PYTHONPATH")]


_own_module = sys.modules.pop("sitecustomize")  # still named: Python 2 empties a module that nothing refers to
_hook = _load_hook()  # type: ignore[no-untyped-call]
try:
    _hide_directory()  # type: ignore[no-untyped-call]
except Exception:  # noqa: BLE001 - an interpreter that can't start because of us is the worst of all
    _hook = None
if _hook is not None:
    _hook.begin()

# Without one of the user's this raises what `site` expects where there is no sitecustomize, and ours is forgotten.
__import__("sitecustomize")
