"""Recall over a store: the passages that matter for a question, of one conversation or of all of an owner's."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from topicality.core.meter import TokenCounter
from topicality.core.packet import Evidence
from topicality.core.recall import analysis, head, render
from topicality.core.recall.features import candidates, features
from topicality.core.recall.pack import Said, Style, Topic, pack, shortlist
from topicality.core.recall.pool import Ints, Mask, Place, Pool, Statistics, build, merged
from topicality.core.recall.question import Question, read
from topicality.embed.recall import load_recall
from topicality.errors import ConfigError, InputError
from topicality.layer.selecting import Selected
from topicality.ports import Embedder, Store
from topicality.records import Hit, Passage, Scope, Side, StoredPassage, WordHits
from topicality.types import Message
from topicality.vectors import Array

POOL, EXPAND = 150, 80  # hits taken from each search, and the best of them whose neighbours are read as well
LARGE, POOL_LARGE, EXPAND_LARGE = 50_000, 80, 36  # the same from so many passages on, where reading takes the time
DATED = 40  # hits taken from each search in the times that a question names, and in a favoured scope
LIFT = 3.0  # log-odds that passages in a favoured scope gain: the difference between a far and a plausible one
RADIUS = 1  # exchanges read around the best hits, to both sides; one more where exchanges have mostly one side
_NAME_WORDS = 32  # words of a question that are looked up as names


@dataclass(frozen=True, slots=True)
class Recalled:
    """A passage that is shown.

    Attributes:
        sequence, side: which message of `conversation`. start, end: its characters that are shown, as `text`.
        cut: whether that is not all of it. score: log-odds up to a constant; comparable within one answer only.
    """

    conversation: str
    sequence: int
    side: Side
    name: str | None
    at: float | None
    start: int
    end: int
    text: str
    cut: bool
    topic: str | None
    score: float

    def evidence(self) -> Evidence:
        """For `core.context.build_context`."""
        message = Message(
            self.side, self.text, self.at, f"{self.conversation}:{self.sequence}:{self.side}:{self.start}", self.name
        )
        return Evidence(message, self.topic, self.sequence, self.cut)


@dataclass(frozen=True, slots=True)
class Recall:
    """What was found for a question.

    Attributes:
        text: to send; quoted data, a passage a line (`core.recall.render`). "" when there is nothing at all.
        passages: what it shows, as it was said. omitted: good ones that had no room.
        nothing_found: whether the store seems to have no answer; the passages are then only the nearest ones.
        method: "learned", or "plain" for an encoder that no weights were learned for.
        tokens: of the text.
        selected: what a selector chose, and what that cost; None when none was asked.
    """

    text: str
    passages: tuple[Recalled, ...]
    omitted: int
    nothing_found: bool
    method: head.Method
    tokens: int
    selected: Selected | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Case:
    """A question with its candidates, before packing: what `tools/train_recall.py` learns from.

    Attributes:
        rows: candidates, as rows of the pool. found: their features by name. favoured: which of them come first.
    """

    asked: Question
    pool: Pool
    rows: Ints
    found: Mapping[str, Array]
    statistics: Statistics
    favoured: Mask | None = None


def analyse(
    message: str | Message, embedder: Embedder | None = None, *, most: int = analysis.PASSAGE_WORDS
) -> tuple[Passage, ...]:
    """The passages of one message, to be written with it. See `analyse_all`."""
    return analyse_all([message], embedder, most=most)[0]


def analyse_all(
    messages: Sequence[str | Message], embedder: Embedder | None = None, *, most: int = analysis.PASSAGE_WORDS
) -> list[tuple[Passage, ...]]:
    """The passages of messages, to be written with them; all vectors in one call of the encoder.

    Args:
        messages: texts, or messages with the speaker's name. Blank ones have no passages.
        embedder: None leaves vectors out (they can be found by words only).
        most: words of a passage; a longer message is filed in windows.
    Returns:
        One tuple a message. A message of one passage has the vector that `embedder.embed([text])` gives.
    Raises:
        EmbedError: the encoder failed.
    """
    found: list[list[tuple[int, int, tuple[str, ...]]]] = []
    texts: list[str] = []
    for message in messages:
        text, name = (message, None) if isinstance(message, str) else (message.text, message.name)
        parts = analysis.windows(text, most)
        found.append([(start, end, analysis.terms(text[start:end], name)) for start, end in parts])
        texts += [text[start:end] for start, end in parts]
    rows: Iterable[Array | None] = iter(embedder.embed(texts)) if embedder is not None and texts else iter(())
    vectors = iter(rows)
    return [
        tuple(Passage(start, end, terms, next(vectors, None)) for start, end, terms in passages) for passages in found
    ]


def recall(  # noqa: PLR0913  # what to search, and by keyword how
    store: Store,
    embedder: Embedder,
    scope: Scope,
    question: str,
    *,
    budget: int,
    now: float,
    count: TokenCounter | None = None,
    topic_of: Topic | None = None,
    favoured: Scope | None = None,
) -> Recall:
    """Find what matters for a question, within a token budget.

    Args:
        scope: one conversation or all of an owner's; its times, sides and sequences filter what may be shown (see
            `of_topic` for those of a topic).
        question: any message; blank ones find nothing.
        budget: tokens of the answer's text, at least 1.
        now: seconds since the epoch (UTC); "last week" counts from here.
        count: tokens of a text; None for the encoder's own tokenizer.
        topic_of: names the topic of an exchange by conversation and sequence, for the headers.
        favoured: parts of one conversation whose passages are looked for by themselves, and come before others that are
            about as good.
    Returns:
        At most `budget` tokens, passages in chronological order, none twice. Same store, same question: same answer.
    Raises:
        ConfigError: the budget. StoreError, EmbedError: the store or the encoder failed.
    Cost: three or four searches of the store, a read of about 700 passages, another of about 100 texts; it does not read
        conversations whole (docs/recall.md has the times).
    """
    if isinstance(budget, bool) or budget < 1:
        raise ConfigError("cannot be used", key="budget", got=budget, accepted="a whole number from 1")
    counter = count or token_counter(embedder)
    asked = bool(question.strip()) and store.space is not None
    vector = embedder.embed([question])[0] if asked else None  # before anything of the store is held
    with store.moment():
        case = gather(store, embedder, scope, question, now, vector, favoured) if asked else None
        if case is None:
            return Recall("", (), 0, True, "learned" if load_recall(embedder)[0] else "plain", 0)
        return answer(store, embedder, scope, case, budget, counter, topic_of)


def answer(
    store: Store,
    embedder: Embedder,
    scope: Scope,
    case: Case,
    budget: int,
    count: TokenCounter,
    topic_of: Topic | None = None,
    learned: tuple[head.Heads | None, head.Heads | None] | None = None,
) -> Recall:
    """The second half of `recall`: rank the candidates, read the best ones' texts, pack them. For several budgets, say.

    Args:
        learned: other weights than the bundled ones (see `embed.recall.load_recall`).
    """
    heads, any_heads = learned or load_recall(embedder)
    scored, method = head.scores(heads, case.found)
    nothing = False
    if any_heads is not None:
        values = head.signals(case.pool, case.asked, case.found, scored, case.statistics)
        nothing = head.absence(any_heads, values, calibrated=heads is not None) >= 0.0
    if case.favoured is not None:
        scored = scored + LIFT * case.favoured
    pool, note = case.pool, render.NOTHING_NOTE if nothing else ""
    said = _texts(store, scope.owner, pool, shortlist(pool, case.rows, scored, budget))
    packed = pack(pool, case.rows, scored, said, budget, count, Style(note, topic_of, scope.conversation is None))
    shown = []
    for chosen in packed.chosen:
        passage, source = pool.passages[chosen.row], said[chosen.row]
        text = source.text
        shown.append(
            Recalled(
                passage.conversation,
                passage.sequence,
                passage.side,
                source.name,
                passage.at,
                chosen.start,
                chosen.end,
                text[chosen.start : chosen.end],
                bool(text[: chosen.start].strip() or text[chosen.end :].strip()),
                topic_of(passage.conversation, passage.sequence) if topic_of else None,
                round(chosen.score, 4),
            )
        )
    return Recall(packed.text, tuple(shown), packed.omitted, nothing, method, packed.tokens)


def gather(
    store: Store,
    embedder: Embedder,
    scope: Scope,
    question: str,
    now: float,
    vector: Array | None = None,
    favoured: Scope | None = None,
) -> Case | None:
    """The candidates for a question with their features; None when the scope has nothing that could be one."""
    asked = read(question, now)
    if vector is None:
        vector = embedder.embed([question])[0]
    spoken = _spoken(store, scope, asked)
    stems = tuple(spoken.frequencies)
    most, expand = (POOL_LARGE, EXPAND_LARGE) if spoken.passages >= LARGE else (POOL, EXPAND)
    near = store.search_vectors(scope, vector, most)
    dated: list[Hit] = []
    if favoured is not None:
        dated += store.search_vectors(favoured, vector, DATED)
        dated += store.search_words(favoured, stems, DATED).hits
    for start, end in asked.ranges:
        inside = _within(scope, start, end)
        if inside is not None:
            dated += store.search_vectors(inside, vector, DATED)
            dated += store.search_words(inside, stems, DATED).hits
    best = [_place(hit) for hit in (*spoken.hits[:expand], *near[:expand])]
    hits = {_place(hit) for hit in (*spoken.hits[:most], *near, *dated)}
    if not hits:
        return None
    passages, runs = _around(store, scope.owner, hits, set(best), _radius(hits, spoken.passages))
    statistics = Statistics(dict(spoken.frequencies), spoken.passages, spoken.mean_length)
    pool = build(asked, passages, runs, statistics, len(vector))
    rows = candidates(pool, pool.places(hits), pool.places(set(best)), pool.inside(scope))
    if not len(rows):
        return None
    first: Mask | None = None
    if favoured is not None:
        there = np.array([passage.conversation == favoured.conversation for passage in pool.passages], np.bool_)
        first = (pool.inside(favoured) & there)[rows]
    return Case(asked, pool, rows, features(pool, asked, vector, rows), statistics, first)


def of_topic(store: Store, scope: Scope, topic: str) -> Scope:
    """The scope, narrowed to the exchanges of a topic (by id) of its conversation.

    Raises:
        InputError: the topic is not known, or the scope names no conversation.
    """
    if scope.conversation is None:
        raise InputError("a topic belongs to a conversation; name it")
    for _, record in store.topics(scope.owner, scope.conversation):
        if record.id == topic:
            ranges = scope.sequences or ((1, max((last for _, last in record.spans), default=1)),)
            both = ((max(a, c), min(b, d)) for a, b in record.spans for c, d in ranges)
            return replace(scope, sequences=tuple(pair for pair in both if pair[0] <= pair[1]) or ((0, 0),))
    raise InputError(f"there is no topic {topic[:40]!r} in this conversation")


def token_counter(embedder: Embedder) -> TokenCounter:
    """Tokens as the encoder counts them; the bundled one's where an encoder cannot tell."""
    for holder in (embedder, getattr(embedder, "inner", None)):
        own = getattr(holder, "count_tokens", None)
        if callable(own):
            return own  # type: ignore[no-any-return]  # an encoder's own method, beyond the port
    from topicality.embed import load

    return token_counter(load("minilm"))


def _spoken(store: Store, scope: Scope, asked: Question) -> WordHits:
    """What is found by the stems of a question, but for the names of people who speak there."""
    tags = {word: f"@{word}" for word in dict.fromkeys(asked.words[:_NAME_WORDS]) if len(word) > 2}
    tags = {word: tag for word, tag in tags.items() if word not in analysis.FUNCTION_WORDS}
    found = store.search_words(scope, [*asked.stems, *tags.values()], POOL)
    named = [word for word, tag in tags.items() if found.frequencies.get(tag)]
    if named:
        return store.search_words(scope, asked.without(named), POOL)
    return replace(found, frequencies={stem: found.frequencies[stem] for stem in asked.stems})


def _within(scope: Scope, start: float, end: float) -> Scope | None:
    """The scope, narrowed to a time; None when nothing of it is left."""
    since = start if scope.since is None else max(scope.since, start)
    until = end if scope.until is None else min(scope.until, end)
    return replace(scope, since=since, until=until) if since < until else None


def _radius(hits: Iterable[Place], passages: int) -> int:
    """How many exchanges around a hit have two messages before and two after it."""
    last: dict[str, int] = {}
    for conversation, sequence, _, _ in hits:
        last[conversation] = max(sequence, last.get(conversation, 0))
    return RADIUS + (passages < 1.5 * sum(last.values()))


def _around(
    store: Store, owner: str, places: Iterable[Place], best: set[Place], radius: int
) -> tuple[list[StoredPassage], dict[str, tuple[tuple[int, int], ...]]]:
    """The exchanges of these places, those around the best of them, and the ranges of sequences that were read."""
    wanted: dict[str, set[int]] = {}
    for place in places:
        reach = radius if place in best else 0
        around = range(max(1, place[1] - reach), place[1] + reach + 1)
        wanted.setdefault(place[0], set()).update(around)
    runs = {conversation: merged(wanted[conversation], 0) for conversation in sorted(wanted)}
    return store.passages(*(Scope(owner, conversation, ranges) for conversation, ranges in runs.items())), runs


def _texts(store: Store, owner: str, pool: Pool, rows: Ints) -> dict[int, Said]:
    """What these rows are passages of."""
    wanted: dict[str, set[int]] = {}
    for row in rows:
        passage = pool.passages[row]
        wanted.setdefault(passage.conversation, set()).add(passage.sequence)
    scopes = [Scope(owner, conversation, merged(sequences, 0)) for conversation, sequences in wanted.items()]
    inside = store.exchanges(*scopes, statuses=("completed",))
    exchanges = {(exchange.conversation, exchange.sequence): exchange for exchange in inside}
    found: dict[int, Said] = {}
    for row in rows.tolist():
        passage = pool.passages[row]
        source = exchanges.get((passage.conversation, passage.sequence))
        message = None if source is None else source.user if passage.side == "user" else source.reply
        if message is not None:  # else it was deleted in between
            found[row] = Said(message.text, message.name)
    return found


def _place(hit: Hit) -> Place:
    return hit.conversation, hit.sequence, hit.side, hit.position
