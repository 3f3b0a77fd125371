"""What is called once a module has been imported, and not when a program merely looks for it."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from pathlib import Path

import pytest

from traceable.annotation import import_hooks


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "watched_module.py").write_text("import sys\nloaded = list(sys.modules['watched_calls'])\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    monkeypatch.delitem(sys.modules, "watched_module", raising=False)
    return "watched_module"


def test_it_is_called_once_after_the_modules_own_code_and_leaves_no_finder(
    module: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []
    monkeypatch.setitem(sys.modules, "watched_calls", calls)  # type: ignore[arg-type]
    before = list(sys.meta_path)
    import_hooks.register_post_import_hook(module, lambda: calls.append("called"))
    for _ in range(2):
        spec = importlib.util.find_spec(module)
        assert spec is not None
        assert spec.origin is not None
    assert calls == []
    imported = importlib.import_module(module)
    assert imported.loaded == []
    assert calls == ["called"]
    assert sys.meta_path == before
    assert "exec_module" not in vars(imported.__loader__)
    importlib.reload(imported)
    assert calls == ["called"]


def test_what_is_imported_already_is_called_for_at_once() -> None:
    calls: list[str] = []
    before = list(sys.meta_path)
    import_hooks.register_post_import_hook("sys", lambda: calls.append("called"))
    assert calls == ["called"]
    assert sys.meta_path == before


def test_a_finder_that_goes_through_the_finders_again_ends(module: str, monkeypatch: pytest.MonkeyPatch) -> None:
    class Again:
        def find_spec(self, name: str, path: object = None, target: object = None) -> None:
            for finder in sys.meta_path:
                if finder is not self and hasattr(finder, "find_spec"):
                    finder.find_spec(name, path, target)  # type: ignore[arg-type]

    calls: list[str] = []
    monkeypatch.setitem(sys.modules, "watched_calls", calls)  # type: ignore[arg-type]
    sys.meta_path.insert(0, Again())  # type: ignore[arg-type]
    import_hooks.register_post_import_hook(module, lambda: calls.append("called"))
    importlib.import_module(module)
    assert calls == ["called"]
