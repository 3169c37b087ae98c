"""`Segmenter`: one decision a message as it comes. Pure: no clock, no dice, no input or output."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from topicality.core.segment.company import Company, speaker_of
from topicality.core.segment.crowd import REACH
from topicality.core.segment.decisions import Decision, Method, Talk
from topicality.core.segment.entry import Entry, check_settings
from topicality.core.segment.heads import Heads
from topicality.core.segment.many import CosineTalk, CrowdTalk, Heard
from topicality.core.segment.pair import Choice, PairTalk
from topicality.core.segment.state import pack, unpack
from topicality.errors import ConfigError, InputError, SpaceMismatchError
from topicality.types import Message, Space
from topicality.vectors import Array

_CALLS = 512  # tool calls whose topic is remembered


class Segmenter:
    """Cuts a conversation into topics, message by message. Works from the first message without tuning.

    Everything kept is bounded: live topics, words, the last messages, ids. One instance is one conversation, used by one
    thread at a time. A message that is refused changes nothing.

    Args:
        heads: learned for one encoder (`topicality.embed.load_heads`), or None for the fallback.
        space: whose vectors come; the heads' own by default.
        granularity: "coarse", "balanced" or "fine". Data sets do not agree on what a topic is; the host decides.
        expected_rate: share of messages that start a segment, in (0, 1). After 50 messages the threshold is then the
            quantile that gives it; before, the shipped one.
        limit: live topics, at least 2. A return to one that was forgotten is a new topic.
        talk: "pair", "crowd" or "meeting" if it is known who talks; "auto" finds out.
        fallback: why the heads are not used although there are some, such as an unknown language.
    Raises:
        ConfigError: a setting is out of range. SpaceMismatchError: heads of another space.
    """

    def __init__(
        self,
        heads: Heads | None,
        *,
        space: Space | None = None,
        granularity: str = "balanced",
        expected_rate: float | None = None,
        limit: int = 200,
        talk: Talk = "auto",
        fallback: str | None = None,
    ) -> None:
        check_settings(granularity, expected_rate, limit, talk)
        if heads is not None and space is not None and heads.space != space:
            raise SpaceMismatchError(heads.space, space, hint="load the heads of this encoder, or give none")
        known = space if space is not None else None if heads is None else heads.space
        if known is None:
            raise ConfigError("whose vectors come?", key="space", got=None, accepted="a Space, or heads that have one")
        self.space = known
        self.fallback = fallback if fallback is not None or heads is not None else no_heads(known)
        self._talk = talk
        self._config = (granularity, expected_rate, limit, talk, self.fallback)
        self._heads = heads
        self._entry = Entry(known)
        self._company = Company()
        self._heard: list[Heard] = []  # the last messages of named speakers, in case they turn out to be a crowd
        self._waiting: Decision | None = None
        self._followers: list[tuple[Decision, tuple[str, ...]]] = []  # silent messages after it, with their tool calls
        self._calls: dict[str, int] = {}  # tool call -> topic
        self._topic = 0  # of the latest message
        self._cosine: CosineTalk | None = None
        self._pair: PairTalk | None = None
        self._crowd: CrowdTalk | None = None
        if heads is None or self.fallback is not None:
            self._cosine = CosineTalk(granularity, expected_rate, known.dimension)
        elif talk == "crowd":
            self._crowd = CrowdTalk(heads)
        else:
            self._pair = PairTalk(heads, granularity, expected_rate, limit)

    @property
    def count(self) -> int:
        """Messages received."""
        return self._entry.count

    @property
    def method(self) -> Method:
        """How the latest message was decided."""
        if self._cosine is not None:
            return "cosine"
        if self._crowd is not None:
            return "crowd"
        return "meeting" if self._kind() == "meeting" else "learned"

    def receive(self, message: Message, vector: ArrayLike | None = None, *, space: Space | None = None) -> Decision:
        """Decide on the next message.

        Blank messages, system messages, tool calls and their results decide nothing: they stay with the topic before
        them, a result with the topic of its call.

        Args:
            vector: the message's embedding, shape (D,); not needed for the messages just named. space: whose it is.
        Returns:
            The decision at once. Its `previous` are the now final decisions on the message before and what follows it.
        Raises:
            InputError: an id that was there before, or smaller than the last one where ids are whole numbers; a vector
                that is missing, not finite or all zeros. SpaceMismatchError: of another space or dimension.
                Nothing has changed then.
        Cost: about 0.3 ms with 200 live topics; does not grow with the conversation.
        """
        checked = self._entry.check(message, vector, space)
        index = self._entry.admit(message)
        if checked is None and not (self._crowd is not None and message.role == "system"):
            return self._silent(index, message)
        self._company.hear(message)
        if self._cosine is not None and checked is not None:
            return self._final(index, message, self._cosine.receive(checked))
        kind = self._kind()
        if self._pair is not None and kind == "crowd":
            self._become_crowd(self._pair)
        if self._crowd is not None:
            return self._in_crowd(self._crowd, index, message, checked)
        if self._pair is None or checked is None:
            raise AssertionError("unreachable: one of the three ways is always there")
        return self._in_pair(self._pair, index, message, checked, quiet=kind in ("meeting", "unknown"))

    def finish(self) -> tuple[Decision, ...]:
        """Let what is pending stand, as nothing follows: the final decisions on the last messages."""
        if self._pair is not None:
            self._pair.settle()
        return self._release(None)

    def _kind(self) -> str:
        return self._company.kind if self._talk == "auto" else self._talk

    def _silent(self, index: int, message: Message) -> Decision:
        topic = self._calls.get(message.call, self._topic) if message.call is not None else self._topic
        decision = Decision(index, "continue", topic, False, 0.0, confirmed=self._waiting is None, id=message.id)
        self._remember(message.calls, topic)
        if self._waiting is not None:
            self._followers.append((decision, message.calls))
        return decision

    def _in_pair(self, pair: PairTalk, index: int, message: Message, vector: Array, *, quiet: bool) -> Decision:
        speaker = speaker_of(message)
        choice, settled = pair.receive(index, message.text, message.role, speaker, vector, quiet=quiet)
        previous = self._release(settled)
        if speaker is not None and self._talk == "auto":
            self._heard.append(Heard(index, message.text, speaker, vector, message.at, choice.topic))
            del self._heard[:-REACH]
        self._topic = choice.topic
        decision = _decision(index, message, choice, confirmed=quiet)
        if not quiet:
            self._waiting = decision
        return replace(decision, previous=previous)

    def _in_crowd(self, crowd: CrowdTalk, index: int, message: Message, vector: Array | None) -> Decision:
        if vector is None:  # a notice: somebody came or went
            choice, link = crowd.notice(index, message.text, message.at, self.space.dimension)
        else:
            speaker = speaker_of(message) or message.role
            choice, link = crowd.receive(index, message.text, speaker, vector, message.at)
        return replace(self._final(index, message, choice), link=link)

    def _become_crowd(self, pair: PairTalk) -> None:
        """Read the last messages again as those of a crowd; topics so far keep their numbers."""
        pair.settle()
        self._crowd = CrowdTalk(pair.heads, pair.topics.next_number)
        self._crowd.replay(self._heard)
        self._pair, self._heard = None, []

    def _final(self, index: int, message: Message, choice: Choice) -> Decision:
        """A decision that is final at once; whatever was pending becomes final as it is."""
        previous = self._release(None)
        self._topic = choice.topic
        return replace(_decision(index, message, choice, confirmed=True), previous=previous)

    def _release(self, settled: Choice | None) -> tuple[Decision, ...]:
        """The pending decision made final, and the silent messages that go where it goes."""
        waiting, followers = self._waiting, self._followers
        self._waiting, self._followers = None, []
        if waiting is None:
            return ()
        final = replace(waiting, confirmed=True)
        if settled is not None:
            told = (waiting.kind, waiting.topic, waiting.boundary)
            final = replace(
                final,
                kind=settled.kind,
                topic=settled.topic,
                boundary=settled.boundary,
                score=settled.score,
                runners_up=settled.candidates,
                revised=(settled.kind, settled.topic, settled.boundary) != told,
            )
        released = [final]
        for decision, calls in followers:
            moved = decision.topic == waiting.topic != final.topic
            topic = final.topic if moved else decision.topic
            self._remember(calls, topic)
            released.append(replace(decision, topic=topic, confirmed=True, revised=moved))
        return tuple(released)

    def _remember(self, calls: tuple[str, ...], topic: int) -> None:
        for call in calls:
            self._calls.pop(call, None)
            self._calls[call] = topic
        while len(self._calls) > _CALLS:
            del self._calls[next(iter(self._calls))]

    def snapshot(self) -> bytes:
        """The whole state: `restore` in another process goes on with the same decisions.

        A version, JSON and raw arrays, not pickle; it holds content words and vectors of the conversation, not its texts.
        Of named speakers in `talk="auto"` it holds the last 48 messages. About 20 kB and 10 kB a live topic.
        """
        values: dict[str, Any] = {
            "space": asdict(self.space), "config": self._config, "count": self._entry.count,
            "ids": list(self._entry.ids), "last_number": self._entry.last_number,
            "names": list(self._company.names.items()), "heard": self._company.heard,
            "addressed": self._company.addressed, "topic": self._topic, "calls": list(self._calls.items()),
            "waiting": None if self._waiting is None else self._waiting.to_dict(),
            "followers": [[decision.to_dict(), calls] for decision, calls in self._followers],
            "recent": [[each.index, each.text, each.speaker, each.at, each.topic] for each in self._heard],
        }  # fmt: skip
        arrays: dict[str, NDArray[Any]] = {}
        if self._heard:
            arrays["heard"] = np.stack([each.vector for each in self._heard])
        for name, way in (("cosine", self._cosine), ("pair", self._pair), ("crowd", self._crowd)):
            if way is not None:
                inner, own = way.dump()
                values["way"], values["inner"] = name, inner
                arrays |= own
        return pack(values, arrays)

    @classmethod
    def restore(cls, heads: Heads | None, data: bytes) -> Segmenter:
        """A segmenter from a snapshot.

        Args:
            heads: those it was made with.
        Raises:
            InputError: the bytes are something else or damaged. SpaceMismatchError: heads of another space.
        """
        values, arrays = unpack(data)
        try:
            granularity, rate, limit, talk, fallback = values["config"]
            made = cls(
                heads,
                space=Space(**values["space"]),
                granularity=granularity,
                expected_rate=rate,
                limit=limit,
                talk=talk,
                fallback=fallback,
            )
            made._load(values, arrays)
        except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
            if isinstance(error, InputError | SpaceMismatchError | ConfigError):
                raise
            raise InputError(f"the segmenter's state is damaged ({type(error).__name__}); start anew") from error
        return made

    def _load(self, values: dict[str, Any], arrays: dict[str, NDArray[Any]]) -> None:
        entry, company = self._entry, self._company
        entry.count, entry.last_number = values["count"], values["last_number"]
        entry.ids = dict.fromkeys(values["ids"])
        company.names, company.heard, company.addressed = dict(values["names"]), values["heard"], values["addressed"]
        self._topic, self._calls = values["topic"], dict(values["calls"])
        self._waiting = None if values["waiting"] is None else Decision.from_dict(values["waiting"])
        self._followers = [(Decision.from_dict(decision), tuple(calls)) for decision, calls in values["followers"]]
        self._heard = [
            Heard(index, text, speaker, arrays["heard"][place], at, topic)
            for place, (index, text, speaker, at, topic) in enumerate(values["recent"])
        ]
        if values["way"] == "crowd" and self._crowd is None and self._heads is not None:
            self._crowd, self._pair = CrowdTalk(self._heads), None
        way = {"cosine": self._cosine, "pair": self._pair, "crowd": self._crowd}[values["way"]]
        if way is None:
            raise InputError("the state was made with heads and is restored without them, or the other way round")
        way.load(values["inner"], arrays)


def no_heads(space: Space) -> str:
    """Why the fallback decides: nothing was learned for this encoder."""
    return f"no heads were learned for the encoder {space}"


def _decision(index: int, message: Message, choice: Choice, *, confirmed: bool) -> Decision:
    return Decision(
        index,
        choice.kind,
        choice.topic,
        choice.boundary,
        choice.score,
        choice.candidates,
        confirmed=confirmed,
        id=message.id,
    )
