"""Calls a function once a module's own code has run, without importing the module.

The support of torch.compile and greenlet is enabled here, when they are imported.
"""

from __future__ import annotations

import sys
from _thread import get_ident

from traceable.protocol import environment

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from importlib.machinery import ModuleSpec
    from typing import Any


def register_post_import_hook(name: str, call: Callable[[], None]) -> None:
    """Call `call` as soon as the module `name` is imported, at once if it is already.

    Args:
        name: the module's full name.
        call: must not raise: the import would.
    """
    if name in sys.modules:
        call()
    else:
        sys.meta_path.insert(0, PostImportFinder(name, call))


def register_import_hooks() -> None:
    """Support torch.compile and greenlet from their import on. Called at the end of `import traceable`."""
    from traceable.annotation import engine

    register_post_import_hook("torch._dynamo", _torch_compiles)
    if engine.can_emit():
        register_post_import_hook("greenlet", _greenlets_switch)


def _torch_compiles() -> None:
    try:
        from traceable.annotation.torch import compile as torch_compile

        torch_compile.patch_dynamo()
    except Exception as error:  # noqa: BLE001 - another torch: it compiles as it would without us
        from traceable.annotation import engine

        if engine.can_emit():
            environment.warn_once("compile_graph_breaks", f"torch.compile breaks its graphs at ranges: {error}")


def _greenlets_switch() -> None:
    try:
        from traceable.annotation import greenlets

        greenlets.enable_greenlet_ranges()
    except Exception as error:  # noqa: BLE001 - another greenlet, no descriptor: the program goes on
        environment.warn_once(
            "greenlets_not_followed", f"ranges do not follow greenlets: {type(error).__name__}: {error}"
        )


class PostImportFinder:
    """A finder of one module alone, which it finds by the other finders. It stays until that module's code has run.

    Programs look for modules that they don't import (`importlib.util.find_spec`), so being found is not an import yet.
    """

    __slots__ = ("_call", "_name", "_searching")

    def __init__(self, name: str, call: Callable[[], None]) -> None:
        self._name = name
        self._call = call
        self._searching: set[int] = set()

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if fullname != self._name:
            return None
        thread = get_ident()
        if thread in self._searching:  # other finders, wrapt's among them, go through sys.meta_path again
            return None
        self._searching.add(thread)
        try:
            spec = self._spec_of_others(path, target)
        finally:
            self._searching.discard(thread)
        if spec is not None:
            self._watch(spec.loader)
        return spec

    def _spec_of_others(self, path: Any, target: Any) -> ModuleSpec | None:
        for finder in list(sys.meta_path):
            find = None if finder is self else getattr(finder, "find_spec", None)
            spec: ModuleSpec | None = find(self._name, path, target) if find else None
            if spec is not None:
                return spec
        return None

    def _watch(self, loader: Any) -> None:
        execute = getattr(loader, "exec_module", None)
        if execute is None:
            return

        def exec_module(module: Any) -> None:
            del loader.exec_module
            execute(module)
            if self in sys.meta_path:
                sys.meta_path.remove(self)
                self._call()

        try:
            loader.exec_module = exec_module
        except AttributeError:
            message = f"{self._name} is loaded in an unknown way: traceable can't detect its import"
            environment.warn_once("import_not_seen", message, key=self._name)
