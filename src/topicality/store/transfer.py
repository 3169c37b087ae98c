"""Export and import: a conversation as one value, and that value as JSON lines."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, get_args

from topicality.errors import InputError, SpaceMismatchError
from topicality.records import (
    SIDES,
    Begin,
    Change,
    Exchange,
    ExchangeStatus,
    Imported,
    LogRun,
    Passage,
    PutState,
    PutTopic,
    RunRecord,
    Side,
    TopicRecord,
)
from topicality.store.rules import check, dumped, encode, plain, term
from topicality.types import Message, Space

FORMAT = "topicality.export"
VERSION = 1
Record = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Kept:
    """One stored passage: `terms` joined by blanks, `vector` as `rules.encode` made it."""

    sequence: int
    side: Side
    position: int
    start: int
    end: int
    terms: str
    vector: bytes | None


def kept(sequence: int, side: Side, position: int, passage: Passage, space: Space | None) -> Kept:
    """A passage in the form that is stored."""
    blob = None if passage.vector is None else encode(passage.vector, space)
    terms = " ".join(term(value) for value in passage.terms)
    return Kept(sequence, side, position, passage.start, passage.end, terms, blob)


@dataclass(slots=True)
class Bundle:
    """All of one conversation, in the order of an export."""

    owner: str
    conversation: str
    topics_version: int = 0
    exchanges: list[Exchange] = field(default_factory=list)
    passages: list[Kept] = field(default_factory=list)
    topics: list[TopicRecord] = field(default_factory=list)
    states: dict[str, bytes] = field(default_factory=dict)
    runs: list[RunRecord] = field(default_factory=list)

    def lines(self) -> Iterator[str]:
        """The conversation as JSON lines, always the same for the same content."""
        yield dumped(
            {
                "kind": "conversation",
                "owner": self.owner,
                "id": self.conversation,
                "topics_version": self.topics_version,
            }
        )
        for exchange in self.exchanges:
            yield dumped(_exchange(exchange))
        for kept in sorted(self.passages, key=lambda kept: (kept.sequence, -SIDES.index(kept.side), kept.position)):
            yield dumped({"kind": "passage", **_slots(kept), "vector": _b64(kept.vector)})
        for topic in self.topics:
            yield dumped({"kind": "topic", **_slots(topic)})
        for name, value in sorted(self.states.items()):
            yield dumped({"kind": "state", "name": name, "value": _b64(value)})
        for run in self.runs:
            yield dumped({"kind": "run", **_slots(run)})


def header(space: Space | None) -> str:
    """The first line of an export."""
    return dumped({"kind": FORMAT, "version": VERSION, "space": None if space is None else _slots(space)})


def read(lines: Iterable[str], have: Space | None) -> tuple[Space | None, Iterator[Bundle]]:
    """The export's space, and its conversations one by one.

    Raises:
        InputError: not an export, a later version, or a malformed line. SpaceMismatchError: `have` is another space.
    """
    numbered = ((number, line) for number, line in enumerate(lines, 1) if line.strip())
    number, line = next(numbered, (1, ""))
    first = _parsed(number, line)
    if first.get("kind") != FORMAT or first.get("version") != VERSION:
        raise InputError(
            f"line {number}: not an export of this release; it starts with a {FORMAT!r} line of version {VERSION}"
        )
    told = _built(number, lambda: first["space"])
    space = None if told is None else _built(number, lambda: Space(**told))
    if space is not None and have is not None and space != have:
        raise SpaceMismatchError(have, space, hint="import into a new store, or embed the transcripts again")
    return space, _bundles(numbered, space)


def merge(
    bundles: Iterator[Bundle], existing: Callable[[str, str], Bundle | None], put: Callable[[Bundle], None]
) -> Imported:
    """Give what is new to `put`; leave what is there already, and equal, alone.

    Raises:
        InputError: a conversation exists with other content.
    """
    conversations = exchanges = known = 0
    for bundle in bundles:
        have = existing(bundle.owner, bundle.conversation)
        if have is None:
            put(bundle)
            conversations += 1
            exchanges += len(bundle.exchanges)
        elif set(bundle.lines()) <= set(have.lines()):
            known += len(bundle.exchanges)
        else:
            raise InputError(
                f"conversation {bundle.conversation!r} is in the store with other content; nothing was imported. "
                "Erase it first, or import into a new store"
            )
    return Imported(conversations, exchanges, known)


def _bundles(numbered: Iterator[tuple[int, str]], space: Space | None) -> Iterator[Bundle]:
    bundle: Bundle | None = None
    number = 1
    for number, line in numbered:
        record = _parsed(number, line)
        if record.get("kind") == "conversation":
            if bundle is not None:
                yield _sound(bundle, number, space)
            bundle = _built(number, partial(_started, record))
        elif bundle is None:
            raise InputError(f"line {number}: a record stands before its conversation")
        else:
            _built(number, partial(_add, bundle, record))
    if bundle is not None:
        yield _sound(bundle, number, space)


def _started(record: Record) -> Bundle:
    return Bundle(record["owner"], record["id"], record["topics_version"])


def _add(bundle: Bundle, record: Record) -> None:
    values = {key: value for key, value in record.items() if key != "kind"}
    match record.get("kind"):
        case "exchange":
            bundle.exchanges.append(_read_exchange(bundle, values))
        case "passage":
            bundle.passages.append(Kept(**{**values, "vector": _bytes(values["vector"])}))
        case "topic":
            values.update(labels=tuple(values["labels"]), terms=tuple(values["terms"]))
            bundle.topics.append(TopicRecord(**{**values, "spans": tuple((a, b) for a, b in values["spans"])}))
        case "state":
            bundle.states[values["name"]] = _bytes(values["value"]) or b""
        case "run":
            bundle.runs.append(RunRecord(**values))
        case other:
            raise InputError(f"unknown kind {other!r}")


def _verify(bundle: Bundle, space: Space | None) -> None:
    if [exchange.sequence for exchange in bundle.exchanges] != list(range(1, len(bundle.exchanges) + 1)):
        raise InputError("sequences are not 1, 2, 3 …")
    if [topic.number for topic in bundle.topics] != list(range(1, len(bundle.topics) + 1)):
        raise InputError("topic numbers are not 1, 2, 3 …")
    _distinct("exchange", [exchange.id for exchange in bundle.exchanges])
    _distinct("topic", [topic.id for topic in bundle.topics])
    _distinct("run", [run.id for run in bundle.runs])
    _distinct("passage", [(kept.sequence, kept.side, kept.position) for kept in bundle.passages])
    operations: list[Any] = [PutTopic(topic) for topic in bundle.topics]
    operations += [PutState(name, value) for name, value in bundle.states.items()]
    operations += [LogRun(run) for run in bundle.runs]
    texts: dict[tuple[int, Side], str] = {}
    for exchange in bundle.exchanges:
        operations.append(_verified(exchange))
        texts[exchange.sequence, "user"] = exchange.user.text if exchange.status in ("completed", "pending") else ""
        texts[exchange.sequence, "assistant"] = "" if exchange.reply is None else exchange.reply.text
    for kept in bundle.passages:
        if not 0 <= kept.start <= kept.end <= len(texts.get((kept.sequence, kept.side), "")):
            raise InputError(f"a passage of exchange {kept.sequence} is outside its text")
        plain(kept.terms, "terms")
        if kept.vector is not None and (space is None or len(kept.vector) != 4 + space.dimension):
            raise InputError("a vector is not of the export's space")
    check(Change("import", bundle.owner, bundle.conversation, tuple(operations)), space)


def _verified(exchange: Exchange) -> Begin:
    if exchange.status not in get_args(ExchangeStatus):
        raise InputError(f"unknown status {exchange.status!r}")
    if (exchange.reply is not None) != (exchange.status == "completed"):
        raise InputError(f"exchange {exchange.sequence} is {exchange.status}, which does not go with its reply")
    if exchange.reply is not None:
        plain(exchange.reply.text, "the reply")
    user = exchange.user
    return Begin(exchange.id, user.text, (), user.at, user.name, exchange.begun_at, exchange.meta)


def _distinct(what: str, ids: Sequence[object]) -> None:
    if len(set(ids)) != len(ids):
        raise InputError(f"a {what} is there twice")


def _sound(bundle: Bundle, number: int, space: Space | None) -> Bundle:
    """The bundle, if a store could have written it."""
    _built(number, partial(_verify, bundle, space), f"up to line {number}, conversation {bundle.conversation!r}")
    return bundle


def _built(number: int, make: Callable[[], Any], where: str = "") -> Any:
    try:
        return make()
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        reason = f"no {error}" if isinstance(error, KeyError) else str(error)
        raise InputError(f"{where or f'line {number}'}: {reason}") from error


def _parsed(number: int, line: str) -> Record:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError) as error:  # also a number of more digits than Python reads
        raise InputError(f"line {number}: not valid JSON") from error
    if not isinstance(record, dict):
        raise InputError(f"line {number}: an object was expected")
    return record


def _slots(value: Any) -> Record:
    return {name: getattr(value, name) for name in value.__slots__}


def _exchange(exchange: Exchange) -> Record:
    reply = None if exchange.reply is None else [exchange.reply.text, exchange.reply.at, exchange.reply.name]
    record = {name: value for name, value in _slots(exchange).items() if name not in ("owner", "conversation")}
    return {
        **record,
        "kind": "exchange",
        "user": [exchange.user.text, exchange.user.at, exchange.user.name],
        "reply": reply,
    }


def _read_exchange(bundle: Bundle, values: Record) -> Exchange:
    text, at, name = values["user"]
    exchange = Exchange(
        bundle.owner, bundle.conversation, **{**values, "user": Message("user", text, at, name=name), "reply": None}
    )
    if values["reply"] is None:
        return exchange
    text, at, name = values["reply"]
    return replace(exchange, reply=Message("assistant", text, at, name=name))


def _b64(value: bytes | None) -> str | None:
    return None if value is None else base64.b64encode(value).decode("ascii")


def _bytes(value: str | None) -> bytes | None:
    try:
        return None if value is None else base64.b64decode(value, validate=True)
    except (binascii.Error, TypeError) as error:
        raise InputError(f"not base64 ({error})") from error
