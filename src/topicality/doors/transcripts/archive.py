"""Transcripts inside a zip: which members to read, and how much of them.

Members are streamed, never unpacked to disk. What a member says about its size is checked before it is read, and no
member can give more than it says, so that a small file cannot fill the memory or the day.
"""

from __future__ import annotations

import lzma
import re
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import BinaryIO, cast

from topicality.doors.transcripts.detect import FORMATS, detect
from topicality.doors.transcripts.slack import DAY, is_member
from topicality.doors.transcripts.source import Source
from topicality.errors import InputError

MAX_MEMBERS = 5_000
"""Text members that are looked into to find transcripts. Slack's days are known by their names and are not limited."""
MAX_BYTES = 8 << 30
"""Bytes the members that are read may have in all, unpacked: 8 GiB."""
MAX_RATIO = 200
"""Unpacked to packed, for members above 16 MiB. Real transcripts stay below 50."""
_SMALL = 16 << 20
_TEXTS = (".json", ".jsonl", ".ndjson", ".txt", ".csv", ".tsv", ".vtt", ".md", ".log")
_BROKEN = (OSError, EOFError, ValueError, RuntimeError, zlib.error, zipfile.BadZipFile, lzma.LZMAError)


class _Member:
    """A member being read; whatever is wrong with it is an InputError."""

    def __init__(self, stream: zipfile.ZipExtFile, name: str) -> None:
        self._stream = stream
        self._name = name

    def read(self, count: int) -> bytes:
        try:
            return self._stream.read(count)
        except _BROKEN as error:
            raise InputError(f"{self._name}: the archive is damaged here ({type(error).__name__})") from error


@contextmanager
def open_archive(source: Source) -> Iterator[tuple[str, list[Source]]]:
    """The format of an archive and the members to read, in order.

    Raises:
        InputError: it is not a zip, damaged, encrypted, too large, or has no transcript in it.
    """
    with source.open() as stream:
        try:
            archive = zipfile.ZipFile(stream)
        except (*_BROKEN, LookupError) as error:
            raise InputError(f"{source.label or 'the archive'} is not a usable zip: {error}") from error
        with archive:
            infos = [info for info in archive.infolist() if _is_text(info)]
            infos.sort(key=_natural)
            found = _choose(source, archive, infos)
            _check([info for info, _ in found[1]])
            yield found[0], [member for _, member in found[1]]


def _is_text(info: zipfile.ZipInfo) -> bool:
    return info.filename.lower().endswith(_TEXTS) and not info.filename.startswith("__MACOSX/")


def _natural(info: zipfile.ZipInfo) -> list[tuple[int, str]]:
    return [(int(piece[:18]), "") if piece.isdecimal() else (-1, piece) for piece in re.split(r"(\d+)", info.filename)]


def _choose(
    source: Source, archive: zipfile.ZipFile, infos: list[zipfile.ZipInfo]
) -> tuple[str, list[tuple[zipfile.ZipInfo, Source]]]:
    """The most specific format among the members, and the members that have it."""
    members = [(info, Source(info.filename, _opener(archive, info), info.file_size)) for info in infos]
    slack = [each for each in members if is_member(each[0].filename)]
    days = [each for each in slack if DAY.fullmatch(each[0].filename)]
    if any(_looks(*each) == "slack" for each in days[:MAX_MEMBERS]):
        return "slack", slack
    if len(members) > MAX_MEMBERS:
        raise InputError(f"{len(members)} text members in the archive; at most {MAX_MEMBERS} are looked into")
    formats: dict[str, list[tuple[zipfile.ZipInfo, Source]]] = {}
    for each in members:
        formats.setdefault(_looks(*each), []).append(each)
    for name in FORMATS:
        if name in formats:
            return name, formats[name]
    if "empty" in formats:
        return "empty", []
    raise InputError(
        f"{source.label or 'the archive'} has no transcript among its {len(infos)} text members; accepted: "
        + "; ".join(FORMATS.values())
    )


def _looks(info: zipfile.ZipInfo, member: Source) -> str:
    """The format of a member, "" for none."""
    _check([info])
    try:
        return detect(member.head(), info.filename)
    except InputError as error:
        if error.__cause__ is not None:  # damaged, not merely of no known format
            raise
        return ""


def _opener(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> Callable[[], AbstractContextManager[BinaryIO]]:
    @contextmanager
    def opened() -> Iterator[BinaryIO]:
        try:
            stream = cast(zipfile.ZipExtFile, archive.open(info))
        except (*_BROKEN, LookupError) as error:
            raise InputError(f"{info.filename}: cannot be unpacked ({error})") from error
        with stream:
            yield cast(BinaryIO, _Member(stream, info.filename))

    return opened


def _check(infos: list[zipfile.ZipInfo]) -> None:
    for info in infos:
        if info.file_size > _SMALL and info.file_size > MAX_RATIO * max(info.compress_size, 1):
            raise InputError(
                f"{info.filename}: {info.file_size} bytes packed into {info.compress_size}; "
                f"more than {MAX_RATIO} to 1 is not read"
            )
    total = sum(info.file_size for info in infos)
    if total > MAX_BYTES:
        raise InputError(f"the archive unpacks to {total} bytes; at most {MAX_BYTES} are read")
