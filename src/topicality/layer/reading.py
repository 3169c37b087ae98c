"""From a message to what speaks for each rule: folding, cutting, one call to the encoder, both sides' evidence."""

from __future__ import annotations

import base64
import math
import threading
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from topicality.config import FittedSide, Policy, Side
from topicality.core.calibrate import Fit
from topicality.core.followup import Fusion, context_features, fused
from topicality.core.panel import Evidence, Panel
from topicality.core.rules import compiled, flattened, texts_of
from topicality.core.score import RuleBook
from topicality.core.text import content_stems, fold, is_long, is_small_talk, language, pieces
from topicality.core.text import words as spoken_in
from topicality.core.verdicts import SideReading, cuts_of
from topicality.embed import load_background, load_weights
from topicality.errors import ConfigError, EmbedError, InputError, SpaceMismatchError, TopicalityError
from topicality.layer import words
from topicality.ports import Embedder
from topicality.types import Message
from topicality.vectors import Array, unit

Turn = Message | Mapping[str, Any] | str
_TURN_CHARS = 4000  # of an earlier turn that are read


class Read(NamedTuple):
    """One message before any vector.

    Attributes:
        text: the folded message.
        pieces: what is embedded: the message if it is short enough to be read whole, then its sentences or windows.
        spans: of the sentences or windows, in the message as given.
        long: whether it is too long to be read whole.
        context: what was said before, folded, oldest first.
        small_talk: whether it is nothing but small talk. language: the language, if the encoder does not cover it.
        stems: content stems of the text.
        notes: what a reader of the verdict should know.
    """

    text: str
    pieces: tuple[str, ...]
    spans: tuple[tuple[int, int], ...]
    long: bool
    context: tuple[str, ...]
    small_talk: bool
    language: str | None
    notes: tuple[str, ...]
    stems: Sequence[str]


class Reading(NamedTuple):
    """What speaks for each side's rules, and for being on topic when the message is read with its context.

    Attributes:
        leaning: log-odds of being on topic with the context, and the index of the allowed rule that it was about; None
            without context or without allowed rules.
    """

    allowed: SideReading | None
    blocked: SideReading | None
    leaning: tuple[float, int] | None


@dataclass(frozen=True)
class _Rules:
    policy: Policy  # without its fit, if that was made for another encoder
    allowed: RuleBook | None
    blocked: RuleBook | None
    panel: Panel | None  # both, scored together; None without rules
    fusion: Fusion
    fits: Mapping[str, Fit]
    cuts: Mapping[Side, Sequence[float]]
    notes: tuple[str, ...]


class Reader:
    """Reads messages under one policy with one encoder. The rules are embedded once, at the first use, in one call."""

    def __init__(self, policy: Policy, embedder: Embedder) -> None:
        self.policy = policy
        self.embedder = embedder
        self._lock = threading.Lock()
        self._rules: _Rules | None = None
        self._function_words = words.function_words()
        self._small_talk = words.small_talk()

    @property
    def rules(self) -> _Rules:
        """The compiled rules. Raises EmbedError; a failed compilation is tried again at the next use."""
        if self._rules is None:
            with self._lock:
                if self._rules is None:
                    self._rules = self._compile()
        return self._rules

    def read(self, text: str, context: Sequence[Turn]) -> Read:
        """Fold and cut a message. Raises InputError if the context is malformed."""
        folded = fold(text)
        said = folded.text
        spoken = spoken_in(said)
        covered = self.embedder.languages
        found = language(said, self._function_words, spoken) if covered is not None else None
        long = is_long(said)
        spans = pieces(said) if long or self.policy.blocked else ()
        cut = tuple(said[start:end] for start, end in spans) if len(spans) > 1 else ()
        wordless = not spoken and not any(map(str.isalnum, said))
        return Read(
            said,
            cut if long and cut else (said, *cut),
            tuple(folded.source(start, end) for start, end in spans) if cut else (),
            long and bool(cut),
            self._turns(context),
            wordless or is_small_talk(said, *self._small_talk, spoken),
            None if found is None or found in (covered or ()) else found,
            ("hidden or look-alike characters were folded",) if folded.changed else (),
            content_stems(said, spoken),
        )

    def readings(self, reads: Sequence[Read], given: Array | None = None, *, fitted: bool = True) -> list[Reading]:
        """Both sides' evidence for messages, embedded in one call.

        Args:
            given: shape (N, D), the messages' own vectors, if the caller has them.
            fitted: whether to apply the policy's fit.
        Raises:
            EmbedError: the encoder failed, or gave a vector without direction.
        """
        rules = self.rules
        texts: dict[str, int] = {}  # what the encoder is asked, and the row of its answer
        said: list[str] = []
        stems: list[Sequence[str]] = []
        starts: list[int] = []
        wholes: list[tuple[int, int]] = []  # (row, message) of whole messages that the encoder is not asked about
        for number, read in enumerate(reads):
            start = len(said)
            starts.append(start)
            others = (*(read.pieces if read.long else read.pieces[1:]), *read.context)
            said += [read.text, *others]
            stems += [read.stems, *map(content_stems, others)]
            if given is not None or read.long:
                wholes.append((start, number))
                start += 1
            for text in said[start:]:
                texts.setdefault(text, len(texts))
        vectors = matrix = embedded(self.embedder, list(texts))
        if len(texts) < len(said):
            matrix = np.zeros((len(said), vectors.shape[1]), np.float32)
            for row, text in enumerate(said):
                if text in texts:
                    matrix[row] = vectors[texts[text]]
            for row, number in wholes:
                pieces_of = [texts[piece] for piece in reads[number].pieces] if given is None else []
                matrix[row] = unit(vectors[pieces_of].mean(axis=0)) if given is None else given[number]
        return self._evidence(reads, rules, _usable(matrix), said, stems, starts, rules.fits if fitted else {})

    def given(self, vectors: ArrayLike, count: int) -> Array:
        """The caller's own vectors, checked. Raises InputError, SpaceMismatchError."""
        array = unit(vectors)
        if array.ndim != 2 or len(array) != count:
            raise InputError(f"one vector for each of {count} messages, got shape {array.shape}")
        with encoder_faults():
            dimension = self.embedder.space.dimension
        if array.shape[1] != dimension:
            raise SpaceMismatchError(self.embedder.space, f"dimension {array.shape[1]}")
        if not array.any(axis=1).all():
            raise InputError(
                "a vector of zeros has no direction and cannot be compared; check the encoder that made it"
            )
        return array

    def _turns(self, context: Sequence[Turn]) -> tuple[str, ...]:
        if context == ():
            return ()
        if isinstance(context, str | Mapping) or not isinstance(context, Iterable):
            raise InputError("context must be a list of messages, oldest first")
        turns = [text_of(turn) for turn in list(context)[-4 * self.policy.context_turns :]]
        if not self.policy.context_turns or self.policy.scoring == "cosine":
            return ()
        said = [fold(text[:_TURN_CHARS]).text for text in turns if text.strip()]
        return tuple(text for text in said if text.strip())[-self.policy.context_turns :]

    def _compile(self) -> _Rules:
        weights, fusion = load_weights()
        background = None
        if self.policy.scoring == "calibrated":
            with encoder_faults():
                try:
                    background = load_background(self.embedder)
                except (InputError, SpaceMismatchError) as error:  # of another shape than it says
                    raise EmbedError("the encoder gave unusable vectors") from error
            if self.policy.background:
                extra = embedded(self.embedder, [fold(text).text for text in self.policy.background])
                background = background.extended(extra)
        entries = texts_of(self.policy.sided())
        vectors = _usable(embedded(self.embedder, flattened(entries)))
        split = sum(len(entry.members) + len(entry.counter) for entry in entries if entry.side == "allowed")
        space, policy = self.embedder.space, self.policy
        notes: tuple[str, ...] = ()
        if policy.fitted is not None and policy.fitted.space != str(space):
            notes = (f"the policy was fitted with {policy.fitted.space}, not {space}: fit left out; calibrate again",)
            policy = policy.unfitted()
        allowed = [entry for entry in entries if entry.side == "allowed"]
        blocked = [entry for entry in entries if entry.side == "blocked"]
        books = (
            compiled(allowed, vectors[:split], background, weights, space),
            compiled(blocked, vectors[split:], background, weights, space),
        )
        present = [book for book in books if book is not None]
        return _Rules(
            policy,
            *books,
            Panel(present) if present else None,
            fusion,
            _fits(policy, space.dimension),
            cuts_of(policy),
            notes,
        )

    def _evidence(
        self,
        reads: Sequence[Read],
        rules: _Rules,
        matrix: Array,
        said: list[str],
        stems: list[Sequence[str]],
        starts: list[int],
        fits: Mapping[str, Fit],
    ) -> list[Reading]:
        scored = iter(rules.panel.score(matrix, stems) if rules.panel else ())
        allowed = next(scored) if rules.allowed else None
        blocked = next(scored) if rules.blocked else None
        found = []
        for number, read in enumerate(reads):
            start, end = starts[number], (starts[number + 1] if number + 1 < len(reads) else len(said))
            own = slice(start, end - len(read.context))
            leaning = None
            if read.context and allowed is not None:
                order = [*range(own.stop, end), start]
                told = [said[row] for row in order], [stems[row] for row in order]
                leaning = _leaning(rules, allowed.rows(order), matrix[order], *told, fits)
            found.append(
                Reading(
                    _side(rules.allowed, allowed, matrix, own, fits.get("allowed")),
                    _side(rules.blocked, blocked, matrix, own, fits.get("blocked")),
                    leaning,
                )
            )
        return found


class _EncoderFaults:
    """Keeps nothing, so one serves all threads; a generator would take longer than what it stands around."""

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, Exception) and not isinstance(error, TopicalityError):
            raise EmbedError(f"the encoder raised {type(error).__name__}") from error


_FAULTS = _EncoderFaults()


def encoder_faults() -> AbstractContextManager[None]:
    """Whatever an encoder of the host's raises inside becomes an EmbedError, the cause chained."""
    return _FAULTS


def embedded(embedder: Embedder, texts: Sequence[str]) -> Array:
    """Vectors of texts, possibly none, shape (N, D). Raises EmbedError, also for an encoder that breaks its contract."""
    with encoder_faults():
        dimension = embedder.space.dimension
        vectors = np.asarray(embedder.embed(texts), np.float32) if texts else np.zeros((0, dimension), np.float32)
    if vectors.shape != (len(texts), dimension):
        raise EmbedError(
            f"the encoder gave shape {vectors.shape} for {len(texts)} texts, not ({len(texts)}, {dimension})"
        )
    return vectors


def text_of(turn: object) -> str:
    """The text of one turn of a context. Raises InputError if it has none."""
    if isinstance(turn, str):
        return turn
    text: object = None
    if isinstance(turn, Message):
        text = turn.text
    elif isinstance(turn, Mapping):
        text = turn.get("text", turn.get("content"))
    if isinstance(text, str):
        return text
    raise InputError(
        f'a turn of the context must be a text, a Message, or {{"role", "text"}}; got {type(turn).__name__}'
    )


def _usable(vectors: Array) -> Array:
    for row in vectors:  # row by row: one small product for most messages
        length = float(row.dot(row))
        if length == 0.0:
            raise EmbedError("the encoder gave a vector of zeros, which has no direction and cannot be compared")
        if not length < math.inf:
            raise EmbedError("the encoder gave a vector with NaN or infinity inside")
    return vectors


def _side(
    book: RuleBook | None, evidence: Evidence | None, matrix: Array, own: slice, fit: Fit | None
) -> SideReading | None:
    if book is None or evidence is None:
        return None
    part = evidence if own.stop - own.start == len(matrix) else evidence.rows(own)
    vectors = matrix[own]
    if fit is not None:
        columns = [fit.apply(part.logits[:, index], vectors) for index in range(part.logits.shape[1])]
        part = part._replace(logits=np.column_stack(columns), slope=part.slope * fit.slope)
    return SideReading(book, vectors, part)


def _leaning(
    rules: _Rules,
    evidence: Evidence,
    vectors: Array,
    texts: list[str],
    stems: list[Sequence[str]],
    fits: Mapping[str, Fit],
) -> tuple[float, int] | None:
    if rules.allowed is None or rules.allowed.background is None:
        return None
    logits, spread = evidence.logits.max(axis=1), rules.allowed.background.spread
    features = context_features(texts, stems, rules.allowed.standing(vectors), vectors, logits, spread)
    logit = fused(features[None, :], rules.fusion) - 0.5 * np.log(evidence.logits.shape[1])
    if "allowed" in fits:
        logit = fits["allowed"].apply(logit, vectors[-1:])
    # What it follows up on: the rule of the latest turns, each earlier one counting a little less.
    age = np.arange(len(texts), 0, -1)[:, None]
    return float(logit[0]), int((evidence.logits - 0.5 * age).max(axis=0).argmax())


def _fits(policy: Policy, dimension: int) -> dict[str, Fit]:
    if policy.fitted is None:
        return {}
    sides = {"allowed": policy.fitted.allowed, "blocked": policy.fitted.blocked}
    thresholds = {"allowed": policy.allowed_threshold, "blocked": policy.blocked_threshold}
    return {
        side: Fit(_head(fit, side, dimension), fit.slope, fit.offset, thresholds[side], np.zeros(0))
        for side, fit in sides.items()
        if fit is not None
    }


def _head(fit: FittedSide, side: str, dimension: int) -> Any:
    if not fit.head:
        return None
    try:
        head = np.frombuffer(base64.b64decode(fit.head, validate=True), dtype="<f4").astype(np.float64)
    except ValueError as error:
        raise ConfigError("is not base64 of float32 numbers; calibrate again", key=f"fitted.{side}.head") from error
    if head.shape != (dimension,) or not np.isfinite(head).all():
        raise ConfigError("does not fit the encoder; calibrate again", key=f"fitted.{side}.head")
    return head
