"""Reads the data blocks of an HTML page, independently of what wrote them."""

from __future__ import annotations

import base64
import gzip
import json
import re
import struct
from typing import Any

import numpy as np
from numpy.typing import NDArray

_ELEMENT = re.compile(r'<script type="text/plain" id="block-([A-Za-z0-9-]+)">([A-Za-z0-9+/=]*)</script>')


def read_blocks(page: str) -> dict[str, tuple[Any, dict[str, NDArray[Any]]]]:
    """Return the meta and the columns of each block of a page, by its name."""
    return {name: _decode(text) for name, text in _ELEMENT.findall(page)}


def _decode(text: str) -> tuple[Any, dict[str, NDArray[Any]]]:
    packed = gzip.decompress(base64.b64decode(text))
    (size,) = struct.unpack_from("<I", packed)
    header = json.loads(packed[4 : 4 + size])
    origin = -(-(4 + size) // 8) * 8
    columns: dict[str, NDArray[Any]] = {}
    for column in header["columns"]:
        begin = origin + column["offset"]
        dtype = "int32" if column["dtype"] == "delta32" else column["dtype"]
        values = np.frombuffer(packed[begin : begin + column["size"]], np.dtype(dtype).newbyteorder("<"))
        assert len(values) == column["length"]
        assert column["offset"] % 8 == 0
        if column["dtype"] == "delta32":
            values = np.cumsum(values.astype(np.int64)) + column["start"]
        columns[column["name"]] = values
    return header["meta"], columns
