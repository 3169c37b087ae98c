"""`DriftTracker`: drift for many conversations at once, from many threads, in bounded memory."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike

from topicality.config import Policy
from topicality.core.drift import Heard, Reading, Settings, is_stale, step
from topicality.core.drift_state import DriftState, is_count
from topicality.core.landmarks import Landmarks
from topicality.core.rules import flattened, texts_of
from topicality.core.score import RuleMembers
from topicality.embed import load_background
from topicality.embed.segment import load_heads
from topicality.errors import ConfigError, InputError
from topicality.ports import Embedder
from topicality.types import Space

VERSION = 1

Why = Literal["stale", "least_recent"]
_Key = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Eviction:
    """A session that was dropped to make room.

    Attributes:
        session, role: which. state: its last one, for a host that wants to keep it.
        why: "stale" (silent for longer than the timeout) or "least_recent" (none was stale).
    """

    session: str
    role: str
    state: DriftState
    why: Why


def landmarks_of(policy: Policy, embedder: Embedder) -> Landmarks:
    """Where a conversation may be heading: the policy's rules and the background's subjects.

    With the encoder's map of subjects, if there is one: then messages are compared by what they are about alone.

    Raises:
        EmbedError: the encoder failed.
    """
    entries = texts_of(policy.sided())
    vectors = iter(embedder.embed(flattened(entries)))
    members: dict[str, list[RuleMembers]] = {"allowed": [], "blocked": []}
    for entry in entries:
        rows = [next(vectors) for _ in (*entry.members, *entry.counter)]
        members[entry.side].append(RuleMembers(entry.rule.name, entry.members, np.array(rows[: len(entry.members)])))
    heads = load_heads(embedder)
    return Landmarks.of_rules(
        members["allowed"],
        members["blocked"],
        load_background(embedder),
        subjects=None if heads is None else heads.subjects,
    )


class DriftTracker:
    """Keeps the drift state of many sessions; thread-safe.

    A session is a (session, role): what a user says and what the assistant replies are two streams. Sessions do not
    influence each other.

    Never more than `sessions` are kept. A new one, when all places are taken, first drops every stale session, then the
    least recently seen. A stale session that comes back starts afresh.

    Args:
        settings: how drift is decided. landmarks: see `core.drift.step` and `landmarks_of`. space: of the
            vectors.
        sessions: most that are kept, at least 1; about 9 kB each with vectors of 384.
        clock: seconds. The wall clock by default, not a monotonic one, since a snapshot outlives the process and the
            machine's start; a clock that goes backwards counts as standing still.
        on_evict: called for each session dropped, after the observation, outside the lock.
    Raises:
        ConfigError: sessions below 1.
    """

    def __init__(
        self,
        settings: Settings | None = None,
        landmarks: Landmarks | None = None,
        space: Space | None = None,
        *,
        sessions: int = 1000,
        clock: Callable[[], float] = time.time,
        on_evict: Callable[[Eviction], object] | None = None,
    ) -> None:
        if not is_count(sessions) or sessions < 1:
            raise ConfigError("cannot be used", key="sessions", got=sessions, accepted="a whole number from 1")
        self.settings = settings or Settings()
        self.landmarks = landmarks
        self.space = space
        self.sessions = sessions
        self._clock = clock
        self._on_evict = on_evict
        self._states: OrderedDict[_Key, DriftState] = OrderedDict()  # least recently seen first
        self._evicted: dict[Why, int] = {"stale": 0, "least_recent": 0}
        self._lock = threading.Lock()

    def observe(
        self,
        session: str,
        role: str,
        vector: ArrayLike | None,
        probability: Heard | float | None,
        now: float | None = None,
    ) -> Reading:
        """Advance a session by one message and read it. Call it for every message, whatever the verdict.

        Args:
            session: the host's id, not blank. role: who speaks, not blank.
            vector: the message's embedding, shape (D,), or None. probability: `core.drift.heard_from(verdict)`, or `fed_by`
                of it, which notices later.
            now: seconds; the clock's if None.
        Raises:
            InputError, SpaceMismatchError: see `core.drift.step`; nothing has changed then, and nobody was evicted.
        """
        key = _key(session, role)
        dropped: list[Eviction] = []
        with self._lock:
            at = self._clock() if now is None else now
            state, reading = step(
                self._states.get(key),
                vector,
                probability,
                now=at,
                settings=self.settings,
                landmarks=self.landmarks,
                space=self.space,
            )
            if key not in self._states and len(self._states) >= self.sessions:
                dropped = self._make_room(at)
            self._states[key] = state
            self._states.move_to_end(key)
        self._tell(dropped)
        return reading

    def state(self, session: str, role: str, now: float | None = None) -> DriftState | None:
        """A session's state; None when it is unknown or stale. Does not count as seeing it."""
        with self._lock:
            state = self._states.get(_key(session, role))
            at = self._clock() if now is None else now
            return None if state is None or is_stale(state, at, self.settings.timeout) else state

    def put(self, session: str, role: str, state: DriftState, now: float | None = None) -> None:
        """Take a session over, from a store or another process; it counts as seen most recently."""
        key = _key(session, role)
        dropped: list[Eviction] = []
        with self._lock:
            if key not in self._states and len(self._states) >= self.sessions:
                dropped = self._make_room(self._clock() if now is None else now)
            self._states[key] = state
            self._states.move_to_end(key)
        self._tell(dropped)

    def forget(self, session: str) -> int:
        """Drop a session, all its roles; how many states went."""
        with self._lock:
            gone = [key for key in self._states if key[0] == session]
            for key in gone:
                del self._states[key]
            return len(gone)

    @property
    def evictions(self) -> dict[Why, int]:
        """How many sessions were dropped so far to make room, and why."""
        with self._lock:
            return dict(self._evicted)

    def __len__(self) -> int:
        with self._lock:
            return len(self._states)

    def snapshot(self) -> dict[str, Any]:
        """All sessions as plain values for JSON, least recently seen first."""
        with self._lock:
            kept = list(self._states.items())
        return {
            "version": VERSION,
            "method": self.settings.method,
            "sessions": [{"session": key[0], "role": key[1], "state": state.to_dict()} for key, state in kept],
        }

    def restore(self, snapshot: Mapping[str, Any]) -> None:
        """Replace all sessions by those of a snapshot; from then on decisions are those of the tracker it was taken of.

        With fewer places than the snapshot has sessions, the least recently seen are left out and told as evictions.

        Raises:
            InputError: another version or method, or malformed; the sessions are then as before.
        """
        states = _restored(snapshot, self.settings.method)
        dropped: list[Eviction] = []
        with self._lock:
            while len(states) > self.sessions:
                (session, role), state = states.popitem(last=False)
                dropped.append(Eviction(session, role, state, "least_recent"))
                self._evicted["least_recent"] += 1
            self._states = states
        self._tell(dropped)

    def _make_room(self, now: float) -> list[Eviction]:
        stale = [key for key, state in self._states.items() if is_stale(state, now, self.settings.timeout)]
        why: Why = "stale" if stale else "least_recent"
        dropped = [Eviction(*key, self._states.pop(key), why) for key in stale or [next(iter(self._states))]]
        self._evicted[why] += len(dropped)
        return dropped

    def _tell(self, dropped: list[Eviction]) -> None:
        if self._on_evict is not None:
            for eviction in dropped:
                self._on_evict(eviction)


def _key(session: object, role: object) -> _Key:
    if not isinstance(session, str) or not session.strip():
        raise InputError(f"a session must be a text that is not blank, got {session!r}")
    if not isinstance(role, str) or not role.strip():
        raise InputError(f"a role must be a text that is not blank, got {role!r}")
    return session, role


def _restored(snapshot: object, method: str) -> OrderedDict[_Key, DriftState]:
    if not isinstance(snapshot, Mapping) or snapshot.get("version") != VERSION:
        raise InputError(f"a drift snapshot of version {VERSION} is needed")
    if snapshot.get("method") != method:
        raise InputError(f"the snapshot is of method {snapshot.get('method')!r}, this tracker uses {method!r}")
    sessions = snapshot.get("sessions")
    if not isinstance(sessions, list):
        raise InputError("a drift snapshot needs a list of sessions")
    states: OrderedDict[_Key, DriftState] = OrderedDict()
    for number, entry in enumerate(sessions, 1):
        if not isinstance(entry, Mapping) or set(entry) != {"session", "role", "state"}:
            raise InputError(f"session {number} of the drift snapshot needs session, role and state")
        key = _key(entry["session"], entry["role"])
        if key in states:
            raise InputError(f"session {number} of the drift snapshot is there twice")
        states[key] = DriftState.from_dict(entry["state"])
    return states
