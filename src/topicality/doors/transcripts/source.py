"""Where a transcript comes from: a file, a stream or a member of an archive, opened as often as needed."""

from __future__ import annotations

import codecs
import io
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from tempfile import SpooledTemporaryFile
from typing import Any, BinaryIO, TextIO, cast

from topicality.doors.transcripts.record import Report
from topicality.errors import InputError

CHUNK = 1 << 18
HEAD = 1 << 18
MAX_RECORD = 1 << 26
"""Characters that one line or one JSON record may have: 64 Mi."""
_IN_MEMORY = 1 << 24

Progress = Callable[[int, int | None], None]


class Meter:
    """Adds up the bytes read and tells whoever wants to know."""

    def __init__(self, progress: Progress | None, total: int | None) -> None:
        self.total = total
        self._progress = progress
        self._done = 0

    def add(self, count: int) -> None:
        """Note `count` more bytes."""
        self._done += count
        if self._progress is not None:
            self._progress(self._done, self.total)


class Source:
    """Bytes that can be opened several times.

    Attributes:
        label: what to call it in an error; "" for a stream.
        size: bytes, if known.
        meter: who counts what is read.
        memo: what a reader learned in an earlier pass.
        close: lets go of what was made to read it.
    """

    def __init__(
        self,
        label: str,
        opener: Callable[[], AbstractContextManager[BinaryIO]],
        size: int | None,
        close: Callable[[], None] | None = None,
    ) -> None:
        self.close = close or _nothing
        self.label = label
        self.size = size
        self.meter: Meter | None = None
        self.memo: dict[str, Any] = {}
        self._opener = opener
        self._head: bytes | None = None

    def open(self) -> AbstractContextManager[BinaryIO]:
        """The bytes from their start."""
        return self._opener()

    def head(self) -> bytes:
        """The first `HEAD` bytes."""
        if self._head is None:
            with self.open() as stream:
                self._head = _fill(stream, HEAD)
        return self._head

    @property
    def head_text(self) -> str:
        """The first `HEAD` bytes as text, whatever is in them."""
        return decode_head(self.head())

    @contextmanager
    def text(self, report: Report) -> Iterator[Text]:
        """The text from its start, counted by the meter."""
        with self.open() as stream:
            yield Text(stream, encoding_of(self.head()), report, self.meter)

    @contextmanager
    def glance(self) -> Iterator[Text]:
        """The text from its start, for learning about it beforehand: not counted, no problem is raised."""
        with self.open() as stream:
            yield Text(stream, encoding_of(self.head()), Report(keep_going=True), None)


class Text:
    """Decoded text, by chunk or by line. Lines end in a line feed; a byte order mark is gone."""

    def __init__(self, stream: BinaryIO, encoding: str, report: Report, meter: Meter | None) -> None:
        self._stream = stream
        self._encoding = encoding
        self._decoder = codecs.getincrementaldecoder(encoding)("strict")
        self._lines = io.IncrementalNewlineDecoder(self._decoder, translate=True)
        self._report = report
        self._meter = meter
        self._ended = False

    def chunk(self) -> str:
        """The next piece; "" at the end.

        Raises:
            InputError: bytes that are not text in the encoding, unless the report keeps going.
        """
        while not self._ended:
            data = read_bytes(self._stream, CHUNK)
            self._ended = not data
            if data and self._meter is not None:
                self._meter.add(len(data))
            text = self._decode(data)
            if text:
                return text
        return ""

    def _decode(self, data: bytes) -> str:
        try:
            return self._lines.decode(data, final=not data)
        except UnicodeDecodeError as error:
            what = f"bytes that are not {self._encoding.removesuffix('-sig')} ({error.reason}); save the file as UTF-8"
            self._report("the document", what)
            self._decoder.errors = "replace"
            return self._lines.decode(data, final=not data)

    def lines(self) -> Iterator[tuple[int, str]]:
        """Numbered lines, from 1, without their line end. Only a line feed ends a line.

        Raises:
            InputError: a line is longer than `MAX_RECORD`.
        """
        number = 0
        rest = ""
        while chunk := self.chunk():
            parts = (rest + chunk).split("\n")
            rest = parts.pop()
            for part in parts:
                number += 1
                yield number, part
            if len(rest) > MAX_RECORD:
                raise InputError(f"line {number + 1}: longer than {MAX_RECORD} characters")
        if rest:
            yield number + 1, rest


def open_source(source: str | Path | TextIO | BinaryIO) -> Source:
    """A source for a path or a stream.

    A stream that cannot be rewound, or that gives text, is copied first: into memory up to 16 MiB, else into an unnamed
    temporary file that goes away with it. A stream is read from where it stands and is not closed.

    Raises:
        InputError: the file cannot be read.
    """
    if isinstance(source, str | Path):
        path = Path(source)
        try:
            if path.is_dir():
                raise InputError(f"{path} is a directory; give a file, or the archive as it was exported")
            return Source(str(path), lambda: _open_path(path), path.stat().st_size)
        except (OSError, ValueError) as error:
            if isinstance(error, InputError):
                raise
            raise InputError(f"cannot read {path!s}: {_reason(error)}") from error
    return _stream_source(source)


def _stream_source(source: TextIO | BinaryIO) -> Source:
    seekable = getattr(source, "seekable", None)
    binary = not isinstance(source, io.TextIOBase) and isinstance(source.read(0), bytes)
    if binary and seekable is not None and seekable():
        stream = cast(BinaryIO, source)
        start = stream.tell()
        close = _nothing
    else:
        stream = _copy(source)
        start = 0
        close = stream.close
    size = stream.seek(0, io.SEEK_END) - start

    @contextmanager
    def rewind() -> Iterator[BinaryIO]:
        stream.seek(start)
        yield stream

    return Source("", rewind, size, close)


def _nothing() -> None:
    """The stream belongs to somebody else."""


def _copy(source: TextIO | BinaryIO) -> BinaryIO:
    target = cast(BinaryIO, SpooledTemporaryFile(max_size=_IN_MEMORY))  # noqa: SIM115 - lives as long as the source
    while True:
        try:
            data = source.read(CHUNK)
        except (OSError, ValueError) as error:
            raise InputError(f"cannot read the stream: {_reason(error)}") from error
        if not data:
            break
        target.write(data.encode("utf-8", "replace") if isinstance(data, str) else data)
    return target


@contextmanager
def _open_path(path: Path) -> Iterator[BinaryIO]:
    try:
        stream = path.open("rb")
    except OSError as error:
        raise InputError(f"cannot read {path!s}: {_reason(error)}") from error
    with stream:
        yield stream


def read_bytes(stream: BinaryIO, count: int) -> bytes:
    """`stream.read`, with a failing disk as InputError."""
    try:
        return stream.read(count)
    except OSError as error:
        raise InputError(f"cannot read on: {_reason(error)}") from error


def _fill(stream: BinaryIO, count: int) -> bytes:
    data = b""
    while len(data) < count and (more := read_bytes(stream, count - len(data))):
        data += more
    return data


def _reason(error: Exception) -> str:
    return getattr(error, "strerror", None) or str(error)


def encoding_of(head: bytes) -> str:
    """The encoding of a text that starts so: by its byte order mark, by where its zero bytes are, else UTF-8."""
    for mark, name in (
        (codecs.BOM_UTF32_LE, "utf-32"),
        (codecs.BOM_UTF32_BE, "utf-32"),
        (codecs.BOM_UTF8, "utf-8-sig"),
        (codecs.BOM_UTF16_LE, "utf-16"),
        (codecs.BOM_UTF16_BE, "utf-16"),
    ):
        if head.startswith(mark):
            return name
    sample = head[:4096]
    even, odd = sample[0::2].count(0), sample[1::2].count(0)
    half = len(sample) // 2
    if half >= 2 and max(even, odd) > 0.4 * half and min(even, odd) < 0.1 * half:
        return "utf-16-le" if odd > even else "utf-16-be"
    return "utf-8"


def decode_head(head: bytes) -> str:
    """The start of a text, for looking at; broken bytes are replaced."""
    text = head.decode(encoding_of(head), "replace").lstrip("\ufeff")
    return text.replace("\r\n", "\n").replace("\r", "\n")
