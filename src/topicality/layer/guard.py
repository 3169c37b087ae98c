"""`Guard`: a policy, an encoder and a judge, wired. The decisions themselves are made in `core`."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from topicality.config import Policy
from topicality.core.guard import allowed_logit, blocked_risk, decide
from topicality.core.keywords import KeywordIndex
from topicality.core.verdicts import Case, by_keywords, on_error
from topicality.embed import load
from topicality.errors import EmbedError, InputError, OffTopicError
from topicality.layer.judge import READS, Judge, as_judge, judged, wants_judge
from topicality.layer.reading import Read, Reader, Reading, Turn
from topicality.llm.asking import Asker, AskError
from topicality.ports import Embedder, Llm
from topicality.types import SEVERITY, Direction, Status, Verdict
from topicality.vectors import Array, unit

_log = logging.getLogger("topicality")
_EMPTY = Verdict("allow", "NOT_CHECKED", "empty message", status="skipped")


class Guard:
    """Keeps messages on a policy's topics. Answers with verdicts; only `require` raises.

    Rules are embedded once, at the first check, in one batch, whatever the number of threads. A check changes nothing in
    a guard, so one guard serves many threads, and the same message always gets the same verdict.

    Args:
        policy: a `Policy`, a path or a preset's name.
        embedder: an encoder, or a name for `load_embedder`; the bundled one by default.
        judge: a language model for borderline messages: an `Llm`, any callable `(system, user) -> reply`, or an `Asker`
            with budgets and prompts of your own.
        judge_timeout: seconds after which the judge's answer is no longer waited for.
    Raises:
        ConfigError: the policy or the encoder's name cannot be used.
    """

    def __init__(
        self,
        policy: Policy | str | Path,
        embedder: str | Embedder | Callable[[list[str]], ArrayLike] = "minilm",
        *,
        judge: Llm | Callable[[str, str], Any] | Asker | None = None,
        judge_timeout: float = 5.0,
    ) -> None:
        self.policy = policy if isinstance(policy, Policy) else Policy.load(policy)
        self.embedder = load(embedder)
        self.judge: Judge | None = as_judge(judge, judge_timeout)
        self._keywords = KeywordIndex(self.policy)
        self._reader = Reader(self.policy, self.embedder)

    def check(
        self,
        text: str,
        context: Sequence[Turn] = (),
        *,
        role: str = "user",
        vector: ArrayLike | None = None,
        conversation: str = "",
    ) -> Verdict:
        """The verdict on one message.

        Args:
            text: the message; any length. Empty or blank text is allowed with the code NOT_CHECKED.
            context: what was said before, oldest first: messages, `{"role", "text"}` mappings, or plain texts. The last
                `policy.context_turns` are read. A message that was blocked belongs in the context as little as in the
                chat.
            role: who says it: "assistant" is output, any other role is input.
            vector: the message's embedding, shape (D,), if the caller has it; the message is then not embedded again.
            conversation: whose budget a judge's calls count against; changes nothing else.
        Raises:
            InputError: `text` is not a string, or the context or the vector is malformed.
            SpaceMismatchError: `vector` has another dimension than the encoder's.
        Cost: one encoder call for what it has not seen lately, plus about 0.2 ms.
        """
        vectors = None if vector is None else unit(vector)[None]
        return self.check_many([text], [context], role=role, vectors=vectors, conversation=conversation)[0]

    def check_many(
        self,
        texts: Sequence[str],
        contexts: Sequence[Sequence[Turn]] | None = None,
        *,
        role: str = "user",
        vectors: ArrayLike | None = None,
        conversation: str = "",
    ) -> list[Verdict]:
        """Verdicts on many messages, embedded in one batch; the same as one by one. See `check`."""
        if isinstance(texts, str):
            raise InputError("check_many takes a list of messages; got one text, for which there is check()")
        if contexts is not None and len(contexts) != len(texts):
            raise InputError(f"one context for each message: got {len(texts)} messages and {len(contexts)} contexts")
        given = self._given(vectors, len(texts))
        side: Direction = "output" if role == "assistant" else "input"
        verdicts: dict[int, Verdict] = {}
        reads: dict[int, Read] = {}
        for index, text in enumerate(texts):
            skipped = self._skip(text, side)
            if skipped is not None:
                verdicts[index] = skipped
                continue
            read = self._reader.read(text, contexts[index] if contexts is not None else ())
            if read.text.strip():
                reads[index] = read
            else:
                verdicts[index] = replace(_EMPTY, notes=read.notes)
        verdicts.update(self._decide(reads, given, conversation))
        return [verdicts[index] for index in range(len(texts))]

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
        if not self.policy.blocked:
            return [None] * len(texts)
        spoken = [index for index, text in enumerate(texts) if text.strip()]
        risks: list[float | None] = [0.0] * len(texts)
        reads = [self._reader.read(texts[index], ()) for index in spoken]
        for index, reading in zip(spoken, self._reader.readings(reads) if reads else [], strict=True):
            if self.policy.scoring == "cosine" and reading.blocked is not None:
                risks[index] = (1.0 + float(reading.blocked.evidence.best.max())) / 2.0
            else:
                risks[index] = blocked_risk(reading.allowed, reading.blocked)
        return risks

    def evidence(
        self, texts: Sequence[str], contexts: Sequence[Sequence[Turn]] | None = None
    ) -> dict[str, tuple[NDArray[np.float64], Array]]:
        """Unfitted log-odds and vectors of messages, by side ("allowed", "blocked"): what `calibrate` fits on.

        Returns:
            For each side with rules: log-odds, shape (N,), of the side's strongest rule, read with the context where
            there is one; vectors, shape (N, D).
        """
        told = contexts if contexts is not None else [()] * len(texts)
        reads = [self._reader.read(text, context) for text, context in zip(texts, told, strict=True)]
        readings = self._reader.readings(reads, fitted=False) if reads else []
        found: dict[str, tuple[NDArray[np.float64], Array]] = {}
        for side in ("allowed", "blocked"):
            logits, vectors = [], []
            for read, reading in zip(reads, readings, strict=True):
                sided = reading.allowed if side == "allowed" else reading.blocked
                if sided is None:
                    continue
                own = allowed_logit(sided, read.long) if side == "allowed" else float(sided.evidence.logits.max())
                logits.append(reading.leaning[0] if side == "allowed" and reading.leaning else own)
                vectors.append(sided.vectors[0])
            if logits:
                found[side] = (np.array(logits), np.array(vectors))
        return found

    def warm_up(self) -> None:
        """Load the encoder and embed the rules now, rather than at the first check. Raises EmbedError."""
        _ = self._reader.rules

    def _skip(self, text: object, side: Direction) -> Verdict | None:
        if not isinstance(text, str):
            raise InputError(f"a message must be text (str), got {type(text).__name__}")
        if not text.strip():
            return _EMPTY
        if not self.policy.allowed and not self.policy.blocked:
            return Verdict("allow", "NOT_CHECKED", "the policy has no rules", status="skipped")
        if self.policy.direction not in (side, "both"):
            return Verdict("allow", "NOT_CHECKED", f"the policy checks {self.policy.direction} only", status="skipped")
        return None

    def _given(self, vectors: ArrayLike | None, count: int) -> Array | None:
        try:
            return None if vectors is None else self._reader.given(vectors, count)
        except EmbedError:  # it cannot even tell its dimension; the tiers below report it
            return None

    # The tiers: embeddings, then the judge where the policy wants it, then keywords, then the policy's on_error.

    def _decide(self, reads: dict[int, Read], given: Array | None, conversation: str) -> dict[int, Verdict]:
        covered = [index for index, read in reads.items() if read.language is None]
        failure = ""
        readings: dict[int, Reading] = {}
        if covered:
            try:
                own = None if given is None else given[covered]
                found = self._reader.readings([reads[index] for index in covered], own)
                readings = dict(zip(covered, found, strict=True))
            except EmbedError as error:
                _log.warning("the encoder failed, going on with the next tier: %s", error)
                failure = str(error)
        return {
            index: self._asked(read, conversation, *self._local(read, readings.get(index), failure))
            for index, read in reads.items()
        }

    def _local(self, read: Read, reading: Reading | None, failure: str) -> tuple[Verdict, bool]:
        """The verdict of the local tiers, and whether the policy wants a judge to look at it."""
        if reading is None:
            status: Status = "degraded" if read.language is None else "uncovered"
            why = failure if read.language is None else f"the encoder does not cover {read.language}"
            return self._by_words(read, status, why), self.policy.judge != "never"
        rules = self._reader.rules
        verdict = decide(
            Case(
                rules.policy,
                rules.cuts,
                reading.allowed,
                reading.blocked,
                spans=read.spans,
                long=read.long,
                small_talk=read.small_talk,
                leaning=reading.leaning,
                explicit=self._keywords.explicit(read.text),
            )
        )
        if read.notes or rules.notes:
            verdict = replace(verdict, notes=(*verdict.notes, *read.notes, *rules.notes))
        return verdict, self.judge is not None and wants_judge(self.policy, verdict, read.text)

    def _by_words(self, read: Read, status: Status, why: str) -> Verdict:
        verdict = by_keywords(self.policy, self._keywords.match(read.text), read.small_talk)
        notes = (*read.notes, why)
        # In a language that is not covered a word may block or greet, but it is not enough to let a message pass.
        if verdict is not None and (
            status == "degraded" or verdict.action != "allow" or verdict.method == "small_talk"
        ):
            return replace(verdict, status=status, notes=notes)
        if status == "uncovered":
            reason = f"not checked: {why}"
            return Verdict(self.policy.on_uncovered, "LANGUAGE_NOT_COVERED", reason, status=status, notes=notes)
        return replace(on_error(self.policy, why), notes=notes)

    def _asked(self, read: Read, conversation: str, local: Verdict, wanted: bool) -> Verdict:
        if self.judge is None or not wanted:
            return local
        try:
            answer, use = self.judge.ask(self.policy, read.text, read.context, conversation)
        except AskError as error:
            _log.warning("the judge failed, the local verdict stands: %s", error.use.outcome)
            status: Status = "degraded" if local.status == "checked" else local.status
            note = f"the judge failed: {error}"
            return replace(local, status=status, notes=(*local.notes, note), llm=error.use)
        verdict = judged(self.policy, answer, local, use)
        why = ""
        if len(read.text) > READS:  # it cannot speak for what it has not seen
            why = f"the judge read only the first {READS:,} characters"
        elif any(
            hit.side == "blocked" for hit in self._keywords.explicit(read.text)
        ):  # nor against the policy's own words
            why = "the message has a keyword of a blocked rule"
        if why and SEVERITY[verdict.action] < SEVERITY[local.action]:
            return replace(local, notes=(*local.notes, f"{why}, so the judge's milder verdict does not count"), llm=use)
        return verdict
