"""Draw a Mermaid flowchart of plain arrows (`a --> b`) as SVG, without Mermaid, which is 3 MB of JavaScript.

Each node is in a row above everything that it leads to. An arrow that a way of other arrows implies is faint.
"""

from __future__ import annotations

import functools
import html
import re
from collections.abc import Iterable

BOX_WIDTH, BOX_HEIGHT, GAP, ROW = 116, 34, 24, 92
"""Sizes in pixels: of a box, of the space between two boxes of a row, and from one row to the next."""

_ARROW = re.compile(r"^\s*(\w+) (?:-->|-\.->) (\w+)$", re.MULTILINE)


def draw_flowchart(source: str, label: str) -> str:
    """Return the drawing as an element `svg` in the color of the text around it.

    Args:
        source: the flowchart, `a --> b` a line.
        label: what it shows, for those who can't see it.
    """
    arrows = sorted(set(_ARROW.findall(source)))
    places = _place_nodes(arrows)
    width = max(x for x, _ in places.values()) + BOX_WIDTH + 2
    height = max(y for _, y in places.values()) + BOX_HEIGHT + 2
    implied = _find_implied_arrows(arrows)
    lines = [_draw_arrow(places[a], places[b], (a, b) in implied) for a, b in arrows]
    boxes = [_draw_box(name, *place) for name, place in places.items()]
    return "\n".join(
        [
            f'<svg role="img" aria-label="{html.escape(label)}" viewBox="-1 -1 {width} {height}"',
            'style="max-width: 36rem" font-family="sans-serif" font-size="14" fill="none" stroke="currentColor">',
            *lines,
            *boxes,
            "</svg>",
        ]
    )


def _place_nodes(arrows: Iterable[tuple[str, str]]) -> dict[str, tuple[int, int]]:
    """Return the upper left corner of each node's box."""
    targets: dict[str, list[str]] = {}
    for source, target in arrows:
        targets.setdefault(source, []).append(target)
        targets.setdefault(target, [])

    @functools.cache
    def measure_depth(name: str) -> int:
        return max((1 + measure_depth(target) for target in targets[name]), default=0)

    rows: dict[int, list[str]] = {}
    for name in sorted(targets):
        rows.setdefault(measure_depth(name), []).append(name)
    widest = max(map(len, rows.values()))
    return {
        name: ((BOX_WIDTH + GAP) * (2 * place + widest - len(row)) // 2, (max(rows) - depth) * ROW)
        for depth, row in rows.items()
        for place, name in enumerate(row)
    }


def _find_implied_arrows(arrows: list[tuple[str, str]]) -> set[tuple[str, str]]:
    """Return the arrows from whose begin a way of two or more others leads to their end."""

    def reaches(begin: str, end: str) -> bool:
        return any(target == end or reaches(target, end) for source, target in arrows if source == begin)

    return {(a, b) for a, b in arrows if any(source == a and reaches(target, b) for source, target in arrows)}


def _draw_arrow(begin: tuple[int, int], end: tuple[int, int], is_implied: bool) -> str:
    x1, y1 = begin[0] + BOX_WIDTH // 2, begin[1] + BOX_HEIGHT
    x2, y2 = end[0] + BOX_WIDTH // 2, end[1]
    middle = (y1 + y2) // 2
    curve = f"M{x1} {y1}C{x1} {middle} {x2} {middle} {x2} {y2 - 5}m-4 -3l4 8l4 -8"
    return f'<path d="{curve}" opacity="{0.2 if is_implied else 0.8}"/>'


def _draw_box(name: str, x: int, y: int) -> str:
    size = f'width="{BOX_WIDTH}" height="{BOX_HEIGHT}" rx="5"'
    box = f'<rect x="{x}" y="{y}" {size} fill="var(--color-background-primary)"/>'
    middle = f'x="{x + BOX_WIDTH // 2}" y="{y + BOX_HEIGHT // 2 + 5}"'
    return f'{box}<text {middle} text-anchor="middle" fill="currentColor" stroke="none">{html.escape(name)}</text>'
