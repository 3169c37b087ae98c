"""The times a question names: dates, months, years, weekdays, "last week", "three days ago". All in UTC."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

Range = tuple[float, float]

YEARS_BACK = 3  # how many years a month or a day without a year may lie back
_MONTHS = "january february march april may june july august september october november december".split()
_WEEKDAYS = "monday tuesday wednesday thursday friday saturday sunday".split()
_SEASONS = {"spring": 3, "summer": 6, "fall": 9, "autumn": 9, "winter": 12}
_NUMBERS = {word: n for n, word in enumerate("a two three four five six seven eight nine ten eleven twelve".split(), 1)}
_NUMBERS |= {"an": 1, "one": 1, "couple of": 2, "a couple of": 2, "few": 3, "a few": 3}
_DAYS = {"day": 1, "week": 7, "month": 30, "year": 365}
_SLACK = {"day": 0, "week": 3, "month": 15, "year": 150}  # days by which "two weeks ago" may be meant otherwise
_DAY = timedelta(days=1)

_MONTH = "|".join(m if m == "may" else f"{m}|{m[:3]}|sept" if m == "september" else f"{m}|{m[:3]}" for m in _MONTHS)
_YEAR = r"((?:19|20)\d\d)"
_ISO = re.compile(rf"\b{_YEAR}-(\d\d)(?:-(\d\d))?\b")
_SLASHED = re.compile(rf"\b(\d{{1,2}})[/.](\d{{1,2}})[/.]{_YEAR}\b")
_DAY_FIRST = re.compile(rf"\b(\d{{1,2}})(?:st|nd|rd|th)?(?:\s+of)?\s+({_MONTH})\b\.?(?:,?\s+{_YEAR})?", re.IGNORECASE)
_MONTH_FIRST = re.compile(rf"\b({_MONTH})\b\.?(?:\s+(\d{{1,2}})(?:st|nd|rd|th)?\b)?(?:,?\s+{_YEAR}\b)?", re.IGNORECASE)
_IN_YEAR = re.compile(rf"\b(?:in|during|of|since|throughout)\s+{_YEAR}\b", re.IGNORECASE)
_COUNT = r"(\d{1,3}|" + "|".join(sorted(_NUMBERS, key=len, reverse=True)) + ")"
_AGO = re.compile(rf"\b{_COUNT}\s+(day|week|month|year)s?\s+ago\b", re.IGNORECASE)
_PAST = re.compile(rf"\b(?:last|past|previous)\s+{_COUNT}\s+(day|week|month|year)s\b", re.IGNORECASE)
_RELATIVE = re.compile(
    r"\b(the day before yesterday|yesterday|last night|tonight|today|this morning"
    r"|(?:last|this|past|previous)\s+(?:week(?:end)?|month|year|spring|summer|fall|autumn|winter)"
    r"|(?:last|this|past|on|previous)\s+(?:(?:mon|tues|wednes|thurs|fri|satur|sun)day))\b",
    re.IGNORECASE,
)
# Words that are months only where something else says so.
_DOUBTFUL = frozenset("may mar march sep dec jan jun".split())


def time_ranges(question: str, now: float) -> tuple[Range, ...]:
    """The times a question names, as ranges [start, end) of seconds since the epoch, in no particular order.

    A month or day without a year is any of the last few that are not in the future. "last Tuesday" is the latest one
    before today, "on Tuesday" too. A week starts on Monday. "two weeks ago" leaves some days on both sides.

    Args:
        now: seconds since the epoch, which relative times count from.
    Returns:
        Empty when no time is named, or only one that the calendar does not have.
    """
    moment = _moment(now)
    if moment is None:
        return ()
    found: list[tuple[datetime, datetime]] = []
    rest = question
    for pattern, read in (
        (_ISO, _iso), (_SLASHED, _slashed), (_DAY_FIRST, _day_first), (_MONTH_FIRST, _month_first), (_IN_YEAR, _year),
        (_AGO, _ago), (_PAST, _past), (_RELATIVE, _relative),
    ):  # fmt: skip
        for match in pattern.finditer(rest):
            try:
                found.extend(read(match, moment))
            except (ValueError, OverflowError):  # a day that the calendar does not have
                continue
        if pattern is not _MONTH_FIRST:
            rest = pattern.sub(" ", rest)
    ranges = ((start.timestamp(), end.timestamp()) for start, end in found)
    return tuple(dict.fromkeys(ranges))


def _moment(now: float) -> datetime | None:
    try:
        moment = datetime.fromtimestamp(now, UTC)
    except (ValueError, OverflowError, OSError):
        return None
    return moment if 1000 < moment.year < 9000 else None


def _of(year: int | None, month: int, day: int | None, now: datetime) -> Iterator[tuple[datetime, datetime]]:
    for each in [year] if year else range(now.year, now.year - YEARS_BACK - 1, -1):
        try:
            start = datetime(each, month, day or 1, tzinfo=UTC)
        except ValueError:
            continue
        if year or start <= now:
            yield start, start + _DAY if day else _month_after(start)


def _month_after(start: datetime, months: int = 1) -> datetime:
    ahead = start.month - 1 + months
    return datetime(start.year + ahead // 12, ahead % 12 + 1, 1, tzinfo=UTC)


def _number(name: str) -> int:
    return next(n for n, month in enumerate(_MONTHS, 1) if month.startswith(name.casefold()[:3]))


def _iso(match: re.Match[str], now: datetime) -> Iterator[tuple[datetime, datetime]]:
    year, month, day = match.groups()
    return _of(int(year), int(month), int(day) if day else None, now)


def _slashed(match: re.Match[str], now: datetime) -> Iterator[tuple[datetime, datetime]]:
    one, two, year = (int(part) for part in match.groups())
    for month, day in {(one, two), (two, one)} if "/" in match.group() else {(two, one)}:  # 3/4 is both in the world
        if 1 <= month <= 12:
            yield from _of(year, month, day, now)


def _day_first(match: re.Match[str], now: datetime) -> Iterator[tuple[datetime, datetime]]:
    day, month, year = match.groups()
    return _of(int(year) if year else None, _number(month), int(day), now)


def _month_first(match: re.Match[str], now: datetime) -> Iterator[tuple[datetime, datetime]]:
    month, day, year = match.groups()
    doubtful = month.casefold() in _DOUBTFUL and not (day or year)
    if doubtful and not (month[0].isupper() and match.start() > 0):  # "may I", "march on"
        before = match.string[: match.start()].casefold().split()
        if not before or before[-1] not in ("in", "since", "during", "last", "until", "of", "early", "late"):
            return iter(())
    return _of(int(year) if year else None, _number(month), int(day) if day else None, now)


def _year(match: re.Match[str], now: datetime) -> Iterator[tuple[datetime, datetime]]:
    start = datetime(int(match.group(1)), 1, 1, tzinfo=UTC)
    yield start, datetime(start.year + 1, 1, 1, tzinfo=UTC)


def _ago(match: re.Match[str], now: datetime) -> Iterator[tuple[datetime, datetime]]:
    unit = match.group(2).casefold()
    about = _midnight(now) - _count(match.group(1)) * _DAYS[unit] * _DAY
    yield about - _SLACK[unit] * _DAY, about + (1 + _SLACK[unit]) * _DAY


def _past(match: re.Match[str], now: datetime) -> Iterator[tuple[datetime, datetime]]:
    yield _midnight(now) - _count(match.group(1)) * _DAYS[match.group(2).casefold()] * _DAY, _midnight(now) + _DAY


def _relative(match: re.Match[str], now: datetime) -> Iterator[tuple[datetime, datetime]]:
    phrase = " ".join(match.group().casefold().split())
    today = _midnight(now)
    this, what = phrase.startswith("this "), phrase.split()[-1]
    if phrase in ("today", "tonight", "this morning"):
        yield today, today + _DAY
    elif phrase == "yesterday":
        yield today - _DAY, today
    elif phrase == "last night":
        yield today - _DAY / 2, today + _DAY / 4
    elif phrase == "the day before yesterday":
        yield today - 2 * _DAY, today - _DAY
    elif what == "week":
        monday = today - today.weekday() * _DAY
        yield (monday, monday + 7 * _DAY) if this else (monday - 7 * _DAY, monday)
    elif what == "weekend":
        saturday = today - today.weekday() * _DAY + (5 if this else -2) * _DAY
        yield saturday, saturday + 2 * _DAY
    elif what == "month":
        start = today.replace(day=1)
        yield (start, _month_after(start)) if this else (_month_after(start, -1), start)
    elif what == "year":
        year = today.year if this else today.year - 1
        yield datetime(year, 1, 1, tzinfo=UTC), datetime(year + 1, 1, 1, tzinfo=UTC)
    elif what in _SEASONS:
        start = datetime(today.year, _SEASONS[what], 1, tzinfo=UTC)
        if start > today or (not this and _month_after(start, 3) > today):
            start = start.replace(year=today.year - 1)
        yield start, _month_after(start, 3)
    else:
        back = (today.weekday() - _WEEKDAYS.index(what) - 1) % 7 + 1
        yield today - back * _DAY, today - (back - 1) * _DAY


def _midnight(now: datetime) -> datetime:
    return now.replace(hour=0, minute=0, second=0, microsecond=0)


def _count(text: str) -> int:
    folded = " ".join(text.casefold().split())
    return int(folded) if folded.isdigit() else _NUMBERS[folded]
