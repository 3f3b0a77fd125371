"""A document as JSON: one line of ASCII."""

from __future__ import annotations

import json
from typing import Any

from traceable.report import Content


def render(content: Content) -> str:
    """Return the document as JSON text."""
    return to_json(content.document())


def to_json(document: dict[str, Any]) -> str:
    """Return the document as JSON text."""
    return json.dumps(document, allow_nan=False) + "\n"
