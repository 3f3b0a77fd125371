"""A Chrome trace in JSON, read event by event: a file of hundreds of megabytes is never a tree in memory.

The standard library's scanner, called for one event at a time, takes 0.26 s for 35 MB and 109 000 events, and memory
for 1 MB at a time. For the whole tree json.loads takes 0.47 s and 106 MB, orjson 0.37 s and 166 MB, msgspec 0.42 s and
91 MB; ijson takes 0.41 s for the events (CPU time, Python 3.11). Both orjson and msgspec also make doubles of numbers
with a fraction, which hold microseconds since 1970 to a quarter of one only. What the events mean is in
`kineto_events`.
"""

from __future__ import annotations

import codecs
import gzip
import json
import re
import zlib
from collections.abc import Iterator
from decimal import ROUND_HALF_EVEN, Decimal
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO

from traceable.errors import Message, TraceError
from traceable.protocol import untrusted

_GZIP_MAGIC = b"\x1f\x8b"
_BYTES_AT_ONCE = 1 << 20
_NEAR_THE_END = 64
"""The distance from the end of the text read so far within which an error may be due to missing text."""

_BLANK_CHARACTERS = 16 << 20
_VALUE_CHARACTERS = 64 << 20
_UNPACKED_BYTES = 32 << 20
_TIMES_PACKED = 100
"""Limits of a trace, scaled by `untrusted.scale_limit`: blanks between two values, the size of one event or value, and,
for gzip, the ratio of unpacked to packed bytes once so many bytes are unpacked. Real traces unpack to 13 to 21 times
their size, and gzip can't do more than 1032."""

_LATEST_NS = 1 << 62

_SPACE = re.compile(r"[\s\0]*")
_BETWEEN = re.compile(r"[\s,]*")
_BEGUN = re.compile(r"[\w.+-]*\s*")
"""The begin of a word, a number or an escape."""

_ESCAPE = re.compile(r'\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4})?')
"""An escape; only the backslash where none of JSON's escapes follows."""

_NO_NUMBER = re.compile(r"-?(?:inf|nan)\b", re.IGNORECASE)
"""NaN as C++ prints it: Kineto before 2023 did so, in the occupancy of kernels."""

_STRING_OR_NO_NUMBER = re.compile(
    rf'"[^"\\]*(?:\\.[^"\\]*)*(?:"|\\?\Z)|{_NO_NUMBER.pattern}', re.IGNORECASE | re.DOTALL
)

_DECODER = json.JSONDecoder(parse_float=str, strict=False)
"""Leaves numbers with a fraction as their text, and takes control characters in names."""

TRUNCATED_HINT = "record again and let the profiler finish: a process that dies while writing leaves a truncated trace"
DAMAGED_HINT = "copy the file again from where it was written"


class Document:
    """The JSON of one trace file. A context manager: it holds the file open.

    Args:
        path: plain or gzip, detected by its content.

    Attributes:
        path: the file.
        metadata: the members other than the events; complete once all events are read.
        events_read: how many were read so far.
        has_events: whether the file has a list of events, known when `read_events` has yielded or returned.

    Raises:
        TraceError: the file can't be opened or read.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.metadata: dict[str, Any] = {}
        self.events_read = 0
        self.has_events = False
        self._text = ""
        self._at = self._before = 0
        self._ended = False
        self._decode = codecs.getincrementaldecoder("utf-8")("surrogateescape")
        try:
            self._opened = untrusted.open_regular(path, follow=True)
            packed = self._opened.read(len(_GZIP_MAGIC)) == _GZIP_MAGIC
            self._opened.seek(0)
        except OSError as error:
            raise _make_unreadable_error(path, error) from None
        self._file: BinaryIO | gzip.GzipFile = gzip.GzipFile(fileobj=self._opened) if packed else self._opened
        self._packed = packed
        self._unpacked_bytes = 0
        self._blanks_max, self._value_max = map(untrusted.scale_limit, (_BLANK_CHARACTERS, _VALUE_CHARACTERS))
        self._unpacked_min, self._times_max = map(untrusted.scale_limit, (_UNPACKED_BYTES, _TIMES_PACKED))

    def __enter__(self) -> Document:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._file.close()
        self._opened.close()

    def is_trace(self) -> bool:
        """Return whether it is JSON in which a list of events begins, or is cut off or damaged before one can."""
        try:
            if self._skip_to_next(_SPACE) not in ("{", "[", "\ufeff"):
                return False
            next(self.read_events(), None)
        except TraceError:
            return True
        return self.has_events

    def read_events(self) -> Iterator[dict[str, Any]]:
        """Yield the events in the order of the file; numbers with a fraction are str.

        Raises:
            TraceError: it is not JSON, or is truncated or damaged.
        """
        opening = self._skip_to_next(_SPACE)
        if opening == "\ufeff":
            self._at += 1
            opening = self._skip_to_next(_SPACE)
        if opening == "[":
            yield from self._read_list()
        elif opening == "{":
            self._at += 1
            yield from self._read_members()
        else:
            raise TraceError("not_json", f"{self.path} is not JSON", "give a trace that torch.profiler exported")
        if self._skip_to_next(_SPACE):
            raise self._make_damage_error(Message("trailing_data", "data follows its end"))

    def _read_members(self) -> Iterator[dict[str, Any]]:
        while (mark := self._skip_to_next(_BETWEEN)) != "}":
            name = self._read_value()
            colon = self._skip_to_next(_SPACE)
            if not colon:
                raise self._make_truncated_error()
            if mark != '"' or colon != ":":
                raise self._make_damage_error(Message("json_member_malformed", "a name and a colon are expected here"))
            self._at += 1
            if self._skip_to_next(_SPACE) == "[" and name == "traceEvents":
                yield from self._read_list()
            else:
                self.metadata[name] = self._read_value()
        self._at += 1

    def _read_list(self) -> Iterator[dict[str, Any]]:
        self.has_events = True
        self._at += 1
        while self._skip_to_next(_BETWEEN) != "]":
            event = self._read_value()
            self.events_read += 1
            if type(event) is dict:
                yield event
        self._at += 1

    def _skip_to_next(self, passing: re.Pattern[str]) -> str:
        """Skip these characters and return the next one; nothing at the end of the file."""
        passed = 0
        while True:
            match = passing.match(self._text, self._at)
            assert match is not None, "both patterns match nothing too"
            passed += match.end() - self._at
            self._at = match.end()
            if passed > self._blanks_max:
                problem = f"{passed} blank characters between two values"
                raise self._make_rejected_error(Message("blanks_too_long", problem))
            if self._at < len(self._text):
                return self._text[self._at]
            if not self._read_more():
                return ""

    def _read_value(self) -> Any:
        """Read the value that begins here."""
        while True:
            decoded = None
            try:
                decoded = _DECODER.raw_decode(self._text, self._at)
            except json.JSONDecodeError as error:
                self._repair(error)
            except RecursionError:
                raise self._make_damage_error(
                    Message("json_nested_too_deep", "its values are nested without end")
                ) from None
            except ValueError as error:  # A whole number of thousands of digits.
                raise self._make_damage_error(Message("json_number_too_long", str(error).partition(";")[0])) from None
            if decoded is None and len(self._text) - self._at > self._value_max:
                problem = f"one value has more than {self._value_max} characters"
                raise self._make_rejected_error(Message("value_too_large", problem))
            # A number may continue in text that was not read yet.
            if decoded is not None and (decoded[1] < len(self._text) or not self._read_more()):
                self._at = decoded[1]
                return decoded[0]

    def _repair(self, error: json.JSONDecodeError) -> None:
        """Read on if the text ends too early, and repair what Kineto is known to write wrongly; or raise."""
        at = error.pos
        wrong = _NO_NUMBER.match(self._text, at)
        # All that follow are repaired at once: one by one takes quadratic time.
        sure = len(self._text) if self._ended else len(self._text) - _NEAR_THE_END
        if wrong is not None and wrong.end() < len(self._text):

            def replace_number(match: re.Match[str]) -> str:
                return match[0] if match[0][0] == '"' or match.end() == len(self._text) else "null"

            self._text = self._text[:at] + _STRING_OR_NO_NUMBER.sub(replace_number, self._text[at:])
        elif error.msg.startswith("Invalid \\") and at <= sure:
            # Paths of Windows; of `\users` the error is at the letter.
            at -= self._text[at] != "\\"
            before, rest = self._text[:at], self._text[at:]

            def escape(match: re.Match[str]) -> str:
                return "\\\\" if len(match[0]) == 1 and at + match.start() <= sure else match[0]

            self._text = before + _ESCAPE.sub(escape, rest)
        elif error.msg.startswith("Unterminated string") or at + _NEAR_THE_END > len(self._text):
            if not self._read_more():
                raise (
                    self._make_truncated_error()
                    if self._is_at_end_of_text(error)
                    else self._make_damage_error(_make_malformed_message(error), at)
                ) from None
        else:
            raise self._make_damage_error(_make_malformed_message(error), at) from None

    def _is_at_end_of_text(self, error: json.JSONDecodeError) -> bool:
        """Return whether an error only means that the text ends there."""
        return error.msg.startswith("Unterminated") or _BEGUN.fullmatch(self._text, error.pos) is not None

    def _read_more(self) -> bool:
        """Read on; False at the end of the file. The chunk grows with the pending text, so that no value is slow."""
        if self._ended:
            return False
        self._text = self._text[self._at :]
        self._before += self._at
        self._at = 0
        try:
            content = self._file.read(max(_BYTES_AT_ONCE, len(self._text)))
        except EOFError:
            raise self._make_truncated_error() from None
        except (gzip.BadGzipFile, zlib.error):
            raise TraceError("file_damaged", f"{self.path} is damaged: gzip can't unpack it", DAMAGED_HINT) from None
        except OSError as error:
            raise _make_unreadable_error(self.path, error) from None
        self._ended = not content
        self._unpacked_bytes += len(content)
        many = self._packed and self._unpacked_bytes > self._unpacked_min
        if many and self._unpacked_bytes > self._times_max * self._opened.tell():
            problem = f"it unpacks to more than {self._times_max} times its size"
            raise self._make_rejected_error(Message("unpacks_too_large", problem))
        self._text += self._decode.decode(content, final=self._ended)
        return True

    def _make_truncated_error(self) -> TraceError:
        return TraceError("file_cut_off", f"{self.path} is truncated after {self.events_read} events", TRUNCATED_HINT)

    def _make_rejected_error(self, problem: Message) -> TraceError:
        problem_text = f"{self.path} is not a valid profiler trace: {problem}"
        return TraceError(problem.code, problem_text, untrusted.format_limit_remedy())

    def _make_damage_error(self, problem: Message, at: int | None = None) -> TraceError:
        place = self._before + (self._at if at is None else at)
        where = f"after {self.events_read} events, at character {place}"
        return TraceError(problem.code, f"{self.path} is damaged {where}: {problem.lower()}", DAMAGED_HINT)


def _make_malformed_message(error: json.JSONDecodeError) -> Message:
    return Message("file_damaged", error.msg)


def to_nanoseconds(microseconds: Any) -> int | None:
    """Return a time in ns, to the nearest, from a number of us as `Document` yields it; None for anything else.

    Examples:
        >>> to_nanoseconds("1711964646123456.789"), to_nanoseconds(3), to_nanoseconds("1e-1"), to_nanoseconds("NaN")
        (1711964646123456789, 3000, 100, None)
    """
    if type(microseconds) is int:
        ns = microseconds * 1000
    elif type(microseconds) is str:
        if microseconds[-4:-3] == "." and microseconds[-3:].isdigit():
            # All that Kineto writes: three digits behind the point.
            try:
                ns = int(microseconds[:-4] + microseconds[-3:])
            except ValueError:
                return None
        else:
            return _convert_any_number(microseconds)
    else:
        return None
    return ns if -_LATEST_NS < ns < _LATEST_NS else None


def _convert_any_number(microseconds: str) -> int | None:
    try:
        value = Decimal(microseconds)
    except ArithmeticError:
        return None
    # An exponent of a million would make a number of a million digits.
    if not value.is_finite() or value.adjusted() > 20:
        return None
    ns = int((value * 1000).to_integral_value(ROUND_HALF_EVEN))
    return ns if -_LATEST_NS < ns < _LATEST_NS else None


def _make_unreadable_error(path: Path, error: OSError) -> TraceError:
    return TraceError("file_unreadable", f"{path} can't be read: {error.strerror or error}", "check its permissions")
