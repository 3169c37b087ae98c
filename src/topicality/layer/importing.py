"""Transcripts into a store: messages become exchanges, many are embedded at once while those before are written."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from topicality.layer import flow
from topicality.layer.conversation import Conversation
from topicality.layer.memory import settled
from topicality.layer.recall import analyse_all
from topicality.layer.shelf import Placed
from topicality.records import Begin, Complete, Exchange, Operation, Passage, Scope
from topicality.types import Message

if TYPE_CHECKING:
    from topicality.layer.memory import Layer

BATCH = 128  # exchanges embedded, and written, at a time
_LONGEST = 200  # characters of an id that a store takes
_PAGE = 1000  # exchanges of the store read at a time
_SAID = ("user", "assistant")

Mark = tuple[int, int | None]  # hashes of both texts

Progress = Callable[[int], None]


@dataclass(frozen=True, slots=True)
class Taken:
    """What an import of a conversation did, in exchanges.

    Attributes:
        new: written. known: there already, equal. answered: there already, and given the reply they lacked.
        other: there already with another text; left as they are. dropped: messages of tools and systems, not kept.
    """

    new: int = 0
    known: int = 0
    answered: int = 0
    other: int = 0
    dropped: int = 0

    def __add__(self, more: Taken) -> Taken:
        return Taken(*(getattr(self, name) + getattr(more, name) for name in Taken.__slots__))


@dataclass(frozen=True, slots=True)
class Pair:
    """An exchange of a transcript: id, the user's message and the reply, either of which may be blank."""

    id: str
    user: Message
    reply: Message


def pairs_of(messages: Sequence[Message]) -> list[Pair]:
    """Messages as exchanges.

    A reply joins the user's message before it; several replies in a row are one (an agent's steps). What has no partner
    stands with a blank one. The id is that of its first message, or its place: the same for a transcript that has grown.
    Messages of tools and systems, and blank ones, are left out.
    """
    groups: list[tuple[int, Message | None, list[Message]]] = []
    for place, message in enumerate(messages):
        if message.role not in _SAID or not message.text.strip():
            continue
        if message.role == "user":
            groups.append((place, message, []))
        elif groups and (not groups[-1][2] or groups[-1][2][-1].name == message.name):
            groups[-1][2].append(message)
        else:
            groups.append((place, None, [message]))
    found: list[Pair] = []
    taken: set[str] = set()
    for place, user, replies in groups:
        first = user or replies[0]
        key = _key(first.id if first.id is not None else f"message {place + 1}")
        while key in taken:
            key = _key(f"{key}, message {place + 1}")
        taken.add(key)
        at = replies[0].at if replies else first.at
        reply = Message(
            "assistant", "\n\n".join(m.text for m in replies), at, name=replies[0].name if replies else None
        )
        found.append(Pair(key, user or Message("user", "", replies[0].at), reply))
    return found


def import_messages(
    layer: Layer,
    conversation: str,
    messages: Sequence[Message],
    owner: str = "default",
    *,
    progress: Progress | None = None,
) -> Taken:
    """Put a transcript into a conversation. What is there already is left alone, so twice is once.

    Args:
        progress: called with the number of messages done.
    Raises:
        InputError, EmbedError, StoreError: see `Conversation.receive`. What was written before stays, and importing again
            goes on from there.
    Cost: the encoder's batched time; the rest is done meanwhile (docs/memory.md has the ratio).
    """
    talk = layer.conversation(conversation, owner)
    pairs = pairs_of(messages)
    fresh, taken = _fresh(talk, pairs)
    taken += Taken(dropped=sum(m.role not in _SAID for m in messages))
    done = len(messages) - 2 * len(fresh)
    if progress is not None:
        progress(max(0, done))
    for batch, passages in _analysed(layer, fresh):
        _write(talk, batch, passages)
        taken += Taken(new=len(batch))
        done += 2 * len(batch)
        if progress is not None:
            progress(min(len(messages), max(0, done)))
    if progress is not None:
        progress(len(messages))
    return taken


def _fresh(talk: Conversation, pairs: Sequence[Pair]) -> tuple[list[Pair], Taken]:
    """The exchanges that are not in the store yet; replies that came since are added on the way."""
    store = talk.layer.store
    known = _known(talk)
    fresh: list[Pair] = []
    counts = Counter[str]()
    for pair in pairs:
        have = known.get(pair.id)
        if have == _mark(pair.user.text, pair.reply.text):
            counts["known"] += 1
            continue
        found = store.exchange(talk.owner, talk.id, pair.id) if known else None
        if found is None:
            fresh.append(pair)
        elif (
            found.status == "completed"
            and found.user.text == pair.user.text
            and found.reply is not None
            and pair.reply.text.startswith(found.reply.text)
        ):
            talk.edit(pair.id, pair.reply.text, side="assistant")
            counts["answered"] += 1
        else:  # a tombstone, too
            counts["other"] += 1
    return fresh, Taken(**counts)


def _known(talk: Conversation) -> dict[str, Mark]:
    """What is in the store, by id. Read a page at a time and without the texts: there may be a million exchanges."""
    store = talk.layer.store
    found: dict[str, Mark] = {}
    for first in range(1, store.conversation(talk.owner, talk.id).exchanges + 1, _PAGE):
        page = Scope(talk.owner, talk.id, ((first, first + _PAGE - 1),))
        for exchange in store.exchanges(page, statuses=("completed", "pending", "failed")):
            reply = exchange.reply.text if exchange.status == "completed" and exchange.reply is not None else None
            found[exchange.id] = _mark(exchange.user.text, reply)
    return found


def _mark(user: str, reply: str | None) -> Mark:
    return hash(user), None if reply is None else hash(reply)


def _analysed(layer: Layer, pairs: Sequence[Pair]) -> Iterator[tuple[Sequence[Pair], list[tuple[Passage, ...]]]]:
    """Batches with the passages of all their messages; the next one is embedded while the caller works on this one."""

    def work(batch: Sequence[Pair]) -> list[tuple[Passage, ...]]:
        return analyse_all([message for pair in batch for message in (pair.user, pair.reply)], layer.embedder)

    batches = [pairs[start : start + BATCH] for start in range(0, len(pairs), BATCH)]
    if not batches:
        return
    with ThreadPoolExecutor(1, "topicality-import") as pool:
        ahead: Future[list[tuple[Passage, ...]]] = pool.submit(work, batches[0])
        for place, batch in enumerate(batches):
            passages = ahead.result()
            if place + 1 < len(batches):
                ahead = pool.submit(work, batches[place + 1])
            yield batch, passages


def _write(talk: Conversation, batch: Sequence[Pair], passages: Sequence[tuple[Passage, ...]]) -> None:
    layer = talk.layer
    now = layer.clock()
    with layer.held(talk.owner, talk.id) as (turn, kept):
        stream = kept.stream(turn)
        kept.begin(turn)
        sequence = turn.info().exchanges
        operations: list[Operation] = []
        placed: list[Placed] = []
        for place, pair in enumerate(batch):
            if turn.exchange(pair.id) is not None:
                continue  # another process imported it meanwhile
            sequence += 1
            asked, answered = passages[2 * place], passages[2 * place + 1]
            user, reply = replace(pair.user, id=None), pair.reply
            operations += [
                Begin(pair.id, user.text, asked, user.at, user.name, user.at if user.at is not None else now),
                Complete(pair.id, reply.text, answered, reply.at, reply.name),
            ]
            stream.take(sequence, "user", user, flow.mean_vector(p.vector for p in asked))
            stream.take(sequence, "assistant", reply, flow.mean_vector(p.vector for p in answered))
            done = Exchange(talk.owner, talk.id, sequence, pair.id, "completed", user, reply, None, now)
            placed.append(settled(stream, done))
        if placed:
            operations += kept.place_many(turn, stream, placed, now)
            operations += stream.operations()
            kept.written(turn, layer.write(turn, operations))


def _key(text: str) -> str:
    """An id as a store takes it: a long one is cut, and told apart by its hash."""
    clean = " ".join(text.replace("\0", " ").split()) or "message"
    if len(clean) <= _LONGEST:
        return clean
    return clean[: _LONGEST - 33] + " " + hashlib.blake2b(clean.encode("utf-8", "replace"), digest_size=16).hexdigest()


def conversation_key(given: str, ordinal: int, source: str) -> str:
    """The id to keep a transcript's conversation under.

    Args:
        given: its id; where that is only its place in the file, the file's name stands for it. ordinal: its place, from 1.
        source: the file's name, without its ending.
    """
    if given != str(ordinal):
        return _key(given)
    return _key(source if ordinal == 1 else f"{source}-{ordinal}")
