"""`Guard`: a policy, an encoder and a judge, wired. The decisions themselves are made in `core`."""

from __future__ import annotations

import base64
import logging
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from topicality.config import Policy
from topicality.core.calibrate import Fit
from topicality.core.followup import Fusion, context_features, fused
from topicality.core.guard import SideReading, blocked_risk, by_keywords, decide, on_error
from topicality.core.keywords import KeywordIndex
from topicality.core.rules import compiled, flattened, texts_of
from topicality.core.score import Evidence, RuleBook
from topicality.core.text import content_stems, fold, is_long, is_small_talk, language, pieces
from topicality.embed import load, load_background, load_weights
from topicality.errors import ConfigError, EmbedError, InputError, LlmError, OffTopicError
from topicality.layer import words as lists
from topicality.layer.judge import Judge, as_judge, judged, wants_judge
from topicality.ports import Embedder, Llm
from topicality.types import SEVERITY, Direction, Message, Status, Verdict
from topicality.vectors import Array

_log = logging.getLogger("topicality")

Turn = Message | Mapping[str, Any] | str


# Both sides' evidence, and the log-odds with the allowed rule's index when the message is read with its context.
_Reading = tuple[SideReading | None, SideReading | None, tuple[float, int] | None]


@dataclass(frozen=True)
class _Compiled:
    policy: Policy  # without its fit, when that was made for another encoder
    allowed: RuleBook | None
    blocked: RuleBook | None
    fusion: Fusion
    fits: Mapping[str, Fit]
    notes: tuple[str, ...]


@dataclass(frozen=True)
class _Read:
    """One message on its way: folded, cut, and what is known of it before any vector."""

    text: str
    pieces: tuple[str, ...]  # what is embedded: the message if it is short enough, then its sentences or windows
    spans: tuple[tuple[int, int], ...]  # of the sentences or windows, in the message as given
    long: bool
    context: tuple[str, ...]
    small_talk: bool
    language: str | None
    notes: tuple[str, ...]


class Guard:
    """Keeps messages on a policy's topics. Answers with verdicts; only `require` raises.

    Rules are embedded once, at the first check, in one batch, whatever the number of threads. A guard has no state that a
    check changes, so one guard serves many threads, and the same message always gets the same verdict.

    Args:
        policy: a `Policy`, a path or a preset's name.
        embedder: an encoder, or a name for `load_embedder`; the bundled one by default.
        judge: a language model for borderline messages: an `Llm`, or any callable `(system, user) -> reply`.
        judge_timeout: seconds after which the judge's answer is no longer waited for.
    Raises:
        ConfigError: the policy or the encoder's name cannot be used.
    """

    def __init__(
        self,
        policy: Policy | str | Path,
        embedder: str | Embedder | Callable[[list[str]], ArrayLike] = "minilm",
        *,
        judge: Llm | Callable[[str, str], Any] | None = None,
        judge_timeout: float = 5.0,
    ) -> None:
        self.policy = policy if isinstance(policy, Policy) else Policy.load(policy)
        self.embedder = load(embedder)
        self.judge: Judge | None = as_judge(judge, judge_timeout)
        self._keywords = KeywordIndex(self.policy)
        self._lock = threading.Lock()
        self._rules: _Compiled | None = None

    def check(
        self, text: str, context: Sequence[Turn] = (), *, role: str = "user", vector: ArrayLike | None = None
    ) -> Verdict:
        """The verdict on one message.

        Args:
            text: the message; any length. Empty or blank text is allowed with the code NOT_CHECKED.
            context: what was said before, oldest first: messages, `{"role", "text"}` mappings, or plain texts. The last
                `policy.context_turns` are read. A message that was blocked belongs in the context as little as it belongs
                in the chat.
            role: who says it: "user" (and any other role but the next) is input, "assistant" is output.
            vector: the message's embedding, shape (D,), if the caller has it already; the text is then not embedded.
        Raises:
            InputError: `text` is not a string, or the context or the vector is malformed.
            SpaceMismatchError: `vector` has another dimension than the encoder's.
        Cost: one encoder call for what it has not seen lately, plus about 0.2 ms.
        """
        return self.check_many([text], [context], role=role, vectors=None if vector is None else [vector])[0]

    def check_many(
        self,
        texts: Sequence[str],
        contexts: Sequence[Sequence[Turn]] | None = None,
        *,
        role: str = "user",
        vectors: ArrayLike | None = None,
    ) -> list[Verdict]:
        """Verdicts on many messages, embedded in one batch; the same as one by one. See `check`."""
        if isinstance(texts, str):
            raise InputError("check_many takes a list of messages; got one text, for which there is check()")
        if contexts is not None and len(contexts) != len(texts):
            raise InputError(f"one context for each message: got {len(texts)} messages and {len(contexts)} contexts")
        given = None if vectors is None else self._given(vectors, len(texts))
        side: Direction = "output" if role == "assistant" else "input"
        verdicts: list[Verdict | None] = [None] * len(texts)
        reads: dict[int, _Read] = {}
        for index, text in enumerate(texts):
            skipped = self._skip(text, side)
            if skipped is not None:
                verdicts[index] = skipped
            else:
                reads[index] = self._read(text, contexts[index] if contexts is not None else ())
        if reads:
            for index, verdict in zip(reads, self._decide(list(reads.values()), given, list(reads)), strict=True):
                verdicts[index] = verdict
        return [verdict for verdict in verdicts if verdict is not None]

    def require(self, text: str, context: Sequence[Turn] = (), *, role: str = "user", strict: bool = False) -> Verdict:
        """As `check`, but raises unless the message may pass.

        Args:
            strict: refuse flagged messages too.
        Raises:
            OffTopicError: the verdict is block or redirect (or flag, when strict); carries the verdict.
        """
        verdict = self.check(text, context, role=role)
        if SEVERITY[verdict.action] > (0 if strict else 1):
            raise OffTopicError(verdict)
        return verdict

    def blocked_risks(self, texts: Sequence[str]) -> list[float | None]:
        """Probability, [0, 1], for ranking, that each message is on a blocked topic; None without blocked rules."""
        rules = self._compiled()
        if rules.blocked is None:
            return [None] * len(texts)
        reads = [self._read(text, ()) for text in texts]
        risks: list[float | None] = []
        for read, (allowed, blocked, _) in zip(reads, self._readings(reads, rules, None, None), strict=True):
            risks.append(blocked_risk(allowed, blocked) if read.text.strip() else 0.0)
        return risks

    def evidence(
        self, texts: Sequence[str], contexts: Sequence[Sequence[Turn]]
    ) -> dict[str, tuple[np.ndarray[Any, np.dtype[np.float64]], Array]]:
        """Raw log-odds and vectors of messages, by side: what `calibrate` fits on. Shapes (N,) and (N, D)."""
        rules = replace(self._compiled(), fits={})
        reads = [self._read(text, context) for text, context in zip(texts, contexts, strict=True)]
        readings = self._readings(reads, rules, None, None)
        found = {}
        for position, side in enumerate(("allowed", "blocked")):
            sides = [reading[position] for reading in readings]
            if sides and sides[0] is not None:
                logits = [
                    leaning[0] if side == "allowed" and leaning is not None else float(reading.evidence.logits.max())
                    for (_, _, leaning), reading in zip(readings, sides, strict=True)
                    if reading is not None
                ]
                vectors = np.vstack([reading.vectors[0] for reading in sides if reading is not None])
                found[side] = (np.array(logits), vectors)
        return found

    def warm_up(self) -> None:
        """Load the encoder and embed the rules now, rather than at the first check. Raises EmbedError."""
        self._compiled()

    # --- from text to what is known before any vector

    def _skip(self, text: object, side: Direction) -> Verdict | None:
        if not isinstance(text, str):
            raise InputError(f"a message must be text (str), got {type(text).__name__}")
        if not text.strip():
            return Verdict("allow", "NOT_CHECKED", "empty message", status="skipped")
        if not self.policy.allowed and not self.policy.blocked:
            return Verdict("allow", "NOT_CHECKED", "the policy has no rules", status="skipped")
        if self.policy.direction not in (side, "both"):
            return Verdict("allow", "NOT_CHECKED", f"the policy checks {self.policy.direction} only", status="skipped")
        return None

    def _read(self, text: str, context: Sequence[Turn]) -> _Read:
        folded = fold(text)
        known, longest = lists.small_talk()
        long = is_long(folded.text)
        spans = pieces(folded.text) if long or self.policy.blocked else []
        cut = tuple(folded.text[start:end] for start, end in spans) if len(spans) > 1 else ()
        return _Read(
            folded.text,
            cut if long and cut else (folded.text, *cut),
            tuple(folded.source(start, end) for start, end in spans) if cut else (),
            long and bool(cut),
            self._turns(context),
            not any(character.isalnum() for character in folded.text) or is_small_talk(folded.text, known, longest),
            self._uncovered(folded.text),
            ("hidden or look-alike characters were folded",) if folded.changed else (),
        )

    def _turns(self, context: Sequence[Turn]) -> tuple[str, ...]:
        if isinstance(context, str | Mapping) or not isinstance(context, Iterable):
            raise InputError("context must be a list of messages, oldest first")
        if not self.policy.context_turns or self.policy.scoring == "cosine":
            return ()
        said = []
        for turn in context[-4 * self.policy.context_turns :]:
            text = turn if isinstance(turn, str) else turn.text if isinstance(turn, Message) else _text_of(turn)
            if text.strip():
                said.append(fold(text).text[:4000])
        return tuple(said[-self.policy.context_turns :])

    def _uncovered(self, text: str) -> str | None:
        languages = self.embedder.languages
        if languages is None:
            return None
        found = language(text, lists.function_words())
        return None if found is None or found in languages else found

    def _given(self, vectors: ArrayLike, count: int) -> Array:
        from topicality.errors import SpaceMismatchError
        from topicality.vectors import unit

        array = unit(vectors)
        if array.ndim != 2 or len(array) != count:
            raise InputError(f"one vector for each of {count} messages, got shape {array.shape}")
        if array.shape[1] != self.embedder.space.dimension:
            raise SpaceMismatchError(self.embedder.space, f"dimension {array.shape[1]}")
        if not array.any(axis=1).all():
            raise InputError("a vector of zeros has no direction and cannot be compared; check the encoder that made it")
        return array

    # --- tiers

    def _decide(self, reads: list[_Read], given: Array | None, positions: list[int]) -> list[Verdict]:
        covered = [read for read in reads if read.language is None]
        failure: str | None = None
        readings: dict[int, _Reading] = {}
        if covered:
            try:
                rules = self._compiled()
                where = [position for read, position in zip(reads, positions, strict=True) if read.language is None]
                found = self._readings(covered, rules, given, where)
                readings = {id(read): reading for read, reading in zip(covered, found, strict=True)}
            except EmbedError as error:
                _log.warning("the encoder failed; going on with the next tier: %s", error)
                failure = str(error)
        return [self._finish(read, readings.get(id(read)), failure) for read in reads]

    def _finish(
        self,
        read: _Read,
        reading: _Reading | None,
        failure: str | None,
    ) -> Verdict:
        if reading is not None:
            allowed, blocked, leaning = reading
            rules = self._compiled()
            verdict = decide(
                rules.policy,
                allowed,
                blocked,
                spans=read.spans,
                long=read.long,
                small_talk=read.small_talk,
                leaning=leaning,
                explicit=self._keywords.explicit(read.text),
            )
            verdict = replace(verdict, notes=(*verdict.notes, *read.notes, *rules.notes))
            if self.judge is not None and wants_judge(self.policy, verdict):
                return self._ask(read, verdict, "checked")
            return verdict
        if read.language is not None:
            return self._without_vectors(read, "uncovered", f"the encoder does not cover {read.language}")
        return self._without_vectors(read, "degraded", failure or "the encoder gave no vector")

    def _without_vectors(self, read: _Read, status: Status, why: str) -> Verdict:
        if self.judge is not None and self.policy.judge != "never":
            fallback = self._by_words(read, status, why)
            return self._ask(read, fallback, status)
        return self._by_words(read, status, why)

    def _by_words(self, read: _Read, status: Status, why: str) -> Verdict:
        verdict = by_keywords(self.policy, self._keywords.match(read.text), read.small_talk)
        if verdict is not None and (status == "degraded" or verdict.action != "allow" or verdict.method == "small_talk"):
            return replace(verdict, status=status, notes=(*read.notes, why))
        if status == "uncovered":
            reason = f"not checked: {why}, and no keyword decides"
            action = self.policy.on_uncovered
            return Verdict(action, "LANGUAGE_NOT_COVERED", reason, status=status, notes=(*read.notes, why))
        return replace(on_error(self.policy, why), notes=read.notes)

    def _ask(self, read: _Read, verdict: Verdict, status: Status) -> Verdict:
        assert self.judge is not None
        try:
            answer = self.judge.ask(self.policy, read.text, read.context)
        except LlmError as error:
            _log.warning("the judge failed; the local verdict stands: %s", error)
            return replace(
                verdict,
                status="degraded" if verdict.status == "checked" else verdict.status,
                notes=(*verdict.notes, f"the judge failed: {error}"),
            )
        return replace(judged(self.policy, answer, verdict), status=status if status != "checked" else "checked")

    # --- vectors

    def _compiled(self) -> _Compiled:
        if self._rules is None:
            with self._lock:
                if self._rules is None:
                    self._rules = self._compile()
        return self._rules

    def _compile(self) -> _Compiled:
        weights, fusion = load_weights()
        background = None
        if self.policy.scoring == "calibrated":
            background = load_background(self.embedder)
            if self.policy.background:
                background = background.extended(self.embedder.embed([fold(text).text for text in self.policy.background]))
        entries = texts_of(self.policy.sided())
        vectors = self.embedder.embed(flattened(entries))
        split = sum(len(entry.members) + len(entry.counter) for entry in entries if entry.side == "allowed")
        allowed = [entry for entry in entries if entry.side == "allowed"]
        blocked = [entry for entry in entries if entry.side == "blocked"]
        space = self.embedder.space
        policy, notes = self.policy, ()
        if policy.fitted is not None and policy.fitted.space != str(space):
            notes = (f"the policy was fitted with {policy.fitted.space}, not with {space}: fit left out; calibrate again",)
            policy = policy.unfitted()
        return _Compiled(
            policy,
            compiled(allowed, vectors[:split], background, weights, space),
            compiled(blocked, vectors[split:], background, weights, space),
            fusion,
            _fits(policy, space.dimension),
            notes,
        )

    def _readings(
        self, reads: Sequence[_Read], rules: _Compiled, given: Array | None, positions: Sequence[int] | None
    ) -> list[_Reading]:
        """Both sides' evidence for each message, and the log-odds it has when read with its context."""
        texts: dict[str, int] = {}
        for read in reads:
            for piece in read.pieces[0 if given is None or read.long else 1 :]:
                texts.setdefault(piece, len(texts))
            for turn in read.context:
                texts.setdefault(turn, len(texts))
        vectors = self.embedder.embed(list(texts)) if texts else np.zeros((0, self.embedder.space.dimension), np.float32)
        rows: list[Array] = []
        said: list[str] = []
        starts: list[int] = []
        for number, read in enumerate(reads):
            starts.append(len(said))
            own = [vectors[texts[piece]][None, :] for piece in read.pieces if piece in texts]
            if given is not None and positions is not None:
                rows.append(given[positions[number]][None, :])
                said.append(read.text)
                own = own if read.long else own[len(own) - len(read.pieces) + 1 :]
            elif read.long:
                whole = np.vstack(own).mean(axis=0, keepdims=True)
                rows.append(whole / np.linalg.norm(whole))
                said.append(read.text)
            rows += own
            said += read.pieces[len(read.pieces) - len(own) :]
            for turn in read.context:
                rows.append(vectors[texts[turn]][None, :])
                said.append(turn)
        return self._evidence(reads, rules, np.vstack(rows), said, starts)

    def _evidence(
        self, reads: Sequence[_Read], rules: _Compiled, matrix: Array, said: list[str], starts: list[int]
    ) -> list[_Reading]:
        if not matrix.any(axis=1).all():
            raise EmbedError("the encoder gave a vector of zeros, which cannot be compared")
        calibrated = self.policy.scoring == "calibrated"
        stems = [content_stems(text) for text in said] if calibrated else None
        allowed = rules.allowed.score(matrix, stems) if rules.allowed else None
        blocked = rules.blocked.score(matrix, stems) if rules.blocked else None
        found = []
        for number, read in enumerate(reads):
            start = starts[number]
            end = starts[number + 1] if number + 1 < len(reads) else len(said)
            middle = end - len(read.context)
            own = slice(start, middle)
            leaning = None
            if read.context and allowed is not None and rules.allowed is not None and rules.allowed.background is not None:
                order = [*range(middle, end), start]
                part = _rows(allowed, order)
                texts = [said[index] for index in order]
                spread = rules.allowed.background.spread
                features = context_features(texts, part, matrix[order], part.logits.max(axis=1), spread)
                logit = fused(features[None, :], rules.fusion)
                if "allowed" in rules.fits:
                    logit = rules.fits["allowed"].apply(logit, matrix[[start]])
                # What it follows up on: the rule of the latest turns, each earlier one counting a little less.
                age = np.arange(len(order), 0, -1)[:, None]
                leaning = (float(logit[0]), int((part.logits - 0.5 * age).max(axis=0).argmax()))
            sides = [
                SideReading(book, matrix[own], _fitted(_rows(evidence, own), matrix[own], rules.fits.get(side)))
                if evidence is not None and book is not None
                else None
                for side, book, evidence in (("allowed", rules.allowed, allowed), ("blocked", rules.blocked, blocked))
            ]
            found.append((sides[0], sides[1], leaning))
        return found


def _rows(evidence: Evidence, rows: slice | list[int]) -> Evidence:
    return Evidence(*(getattr(evidence, name)[rows] for name in Evidence.__slots__))


def _fitted(evidence: Evidence, vectors: Array, fit: Fit | None) -> Evidence:
    if fit is None:
        return evidence
    columns = [fit.apply(evidence.logits[:, index], vectors) for index in range(evidence.logits.shape[1])]
    return replace(evidence, logits=np.column_stack(columns), slope=evidence.slope * fit.slope)


def _fits(policy: Policy, dimension: int) -> dict[str, Fit]:
    fits: dict[str, Fit] = {}
    for side in ("allowed", "blocked"):
        fitted = getattr(policy.fitted, side, None)
        if fitted is None:
            continue
        head = None
        if fitted.head:
            try:
                head = np.frombuffer(base64.b64decode(fitted.head, validate=True), dtype="<f4").astype(np.float64)
            except ValueError as error:
                raise ConfigError("is not base64 of float32 numbers; calibrate again", key=f"fitted.{side}.head") from error
            if head.shape != (dimension,) or not np.isfinite(head).all():
                raise ConfigError("does not fit the encoder; calibrate again", key=f"fitted.{side}.head")
        threshold = policy.allowed_threshold if side == "allowed" else policy.blocked_threshold
        fits[side] = Fit(head, fitted.slope, fitted.offset, threshold, np.zeros(0))
    return fits


def _text_of(turn: object) -> str:
    if isinstance(turn, Mapping):
        text = turn.get("text", turn.get("content"))
        if isinstance(text, str):
            return text
    raise InputError(f'a turn of the context must be a text, a Message, or {{"role", "text"}}; got {type(turn).__name__}')

