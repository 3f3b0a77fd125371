"""Colors by name, hex, tuple or number, as the ARGB number of NVTX. No matplotlib: the table is here.

The eleven names of the `nvtx` package keep its numbers, alpha 0 included, so that a changed import changes no report.
Every other color is opaque.
"""

from __future__ import annotations

BLUE = 0x0000FF
"""The default color of the `nvtx` package."""

_NVTX = {
    "green": 0x008000,
    "blue": BLUE,
    "yellow": 0xFFFF00,
    "purple": 0x800080,
    "rapids": 0x7400FF,
    "cyan": 0x00FFFF,
    "red": 0xFF0000,
    "white": 0xFFFFFF,
    "darkgreen": 0x006400,
    "orange": 0xFFA500,
}

# CSS Color Module Level 4, section 6.1; then matplotlib's one-letter names.
_CSS = """
aliceblue f0f8ff antiquewhite faebd7 aqua 00ffff aquamarine 7fffd4 azure f0ffff beige f5f5dc bisque ffe4c4 black 000000
blanchedalmond ffebcd blueviolet 8a2be2 brown a52a2a burlywood deb887 cadetblue 5f9ea0 chartreuse 7fff00
chocolate d2691e coral ff7f50 cornflowerblue 6495ed cornsilk fff8dc crimson dc143c darkblue 00008b darkcyan 008b8b
darkgoldenrod b8860b darkgray a9a9a9 darkgrey a9a9a9 darkkhaki bdb76b darkmagenta 8b008b darkolivegreen 556b2f
darkorange ff8c00 darkorchid 9932cc darkred 8b0000 darksalmon e9967a darkseagreen 8fbc8f darkslateblue 483d8b
darkslategray 2f4f4f darkslategrey 2f4f4f darkturquoise 00ced1 darkviolet 9400d3 deeppink ff1493 deepskyblue 00bfff
dimgray 696969 dimgrey 696969 dodgerblue 1e90ff firebrick b22222 floralwhite fffaf0 forestgreen 228b22 fuchsia ff00ff
gainsboro dcdcdc ghostwhite f8f8ff gold ffd700 goldenrod daa520 gray 808080 grey 808080 greenyellow adff2f
honeydew f0fff0 hotpink ff69b4 indianred cd5c5c indigo 4b0082 ivory fffff0 khaki f0e68c lavender e6e6fa
lavenderblush fff0f5 lawngreen 7cfc00 lemonchiffon fffacd lightblue add8e6 lightcoral f08080 lightcyan e0ffff
lightgoldenrodyellow fafad2 lightgray d3d3d3 lightgrey d3d3d3 lightgreen 90ee90 lightpink ffb6c1 lightsalmon ffa07a
lightseagreen 20b2aa lightskyblue 87cefa lightslategray 778899 lightslategrey 778899 lightsteelblue b0c4de
lightyellow ffffe0 lime 00ff00 limegreen 32cd32 linen faf0e6 magenta ff00ff maroon 800000 mediumaquamarine 66cdaa
mediumblue 0000cd mediumorchid ba55d3 mediumpurple 9370db mediumseagreen 3cb371 mediumslateblue 7b68ee
mediumspringgreen 00fa9a mediumturquoise 48d1cc mediumvioletred c71585 midnightblue 191970 mintcream f5fffa
mistyrose ffe4e1 moccasin ffe4b5 navajowhite ffdead navy 000080 oldlace fdf5e6 olive 808000 olivedrab 6b8e23
orangered ff4500 orchid da70d6 palegoldenrod eee8aa palegreen 98fb98 paleturquoise afeeee palevioletred db7093
papayawhip ffefd5 peachpuff ffdab9 peru cd853f pink ffc0cb plum dda0dd powderblue b0e0e6 rebeccapurple 663399
rosybrown bc8f8f royalblue 4169e1 saddlebrown 8b4513 salmon fa8072 sandybrown f4a460 seagreen 2e8b57 seashell fff5ee
sienna a0522d silver c0c0c0 skyblue 87ceeb slateblue 6a5acd slategray 708090 slategrey 708090 snow fffafa
springgreen 00ff7f steelblue 4682b4 tan d2b48c teal 008080 thistle d8bfd8 tomato ff6347 turquoise 40e0d0 violet ee82ee
wheat f5deb3 whitesmoke f5f5f5 yellowgreen 9acd32
r ff0000 g 008000 b 0000ff c 00bfbf m bf00bf y bfbf00 k 000000 w ffffff
"""

_known: dict[str, int] = {}


def _look_up(name: str) -> int | None:
    """Look a color name up, in any case. The table is parsed at the first name that needs it.

    Whole or not at all: memory may run out meanwhile, and half a table would reject names.
    """
    global _known
    if not _known:
        words = _CSS.split()
        table = {word: 0xFF000000 | int(digits, 16) for word, digits in zip(words[::2], words[1::2], strict=True)}
        _known = {**table, **_NVTX}
    return _known.get(name.strip().lower())


def _hex(text: str) -> int | None:
    """Read `#rgb`, `#rrggbb` or `#rrggbbaa` (the order of CSS and matplotlib)."""
    digits = text.strip()[1:]
    if not text.strip().startswith("#") or not digits.isalnum() or not digits.isascii():
        return None
    if len(digits) == 3:
        digits = "".join(digit * 2 for digit in digits)
    try:
        number = int(digits, 16)
    except ValueError:
        return None
    if len(digits) == 6:
        return 0xFF000000 | number
    if len(digits) == 8:
        return (number & 0xFF) << 24 | number >> 8
    return None


def _channels(parts: tuple[object, ...]) -> int | None:
    """Read (red, green, blue) or (red, green, blue, alpha), each from 0 to 1, as matplotlib does."""
    if len(parts) not in (3, 4) or not all(isinstance(part, int | float) and 0 <= part <= 1 for part in parts):
        return None
    red, green, blue, alpha = (round(255 * float(part)) for part in (*parts, 1.0)[:4])  # type: ignore[arg-type]
    return alpha << 24 | red << 16 | green << 8 | blue


def parse_color(color: object) -> int:
    """Return `color` as an ARGB number of 32 bits.

    Args:
        color: None (blue), a name, `#rgb`, `#rrggbb`, `#rrggbbaa`, an ARGB number, or a tuple of 3 or 4 channels 0-1.

    Raises:
        TypeError: `color` is of another type.
        ValueError: a string, number or tuple that is not a color.
    """
    if color is None:
        return BLUE
    if isinstance(color, int):
        argb = int(color) if 0 <= color <= 0xFFFFFFFF else None
    elif isinstance(color, str):
        argb = _hex(color) if color.strip().startswith("#") else _look_up(color)
    elif isinstance(color, tuple):
        argb = _channels(color)
    else:
        raise TypeError(f"color must be a name, a hex string, an ARGB number or a tuple, not {type(color).__name__}")
    if argb is None:
        raise ValueError(f"color {color!r} is not a color; use a CSS name, '#rrggbb', 0xAARRGGBB or (r, g, b) of 0-1")
    return argb
