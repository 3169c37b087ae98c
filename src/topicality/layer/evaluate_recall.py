"""Measuring recall on conversations with questions: the figures of `topicality eval recall`."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from topicality.core.measure import percentiles
from topicality.core.recall.head import Heads
from topicality.core.recall.render import read as read_evidence
from topicality.errors import ConfigError, InputError
from topicality.layer.recall import Recall, analyse_all, answer, gather, token_counter
from topicality.ports import Embedder, Store
from topicality.records import Begin, Change, Complete, Operation, Scope
from topicality.store import open_store
from topicality.types import Message

OWNER = "eval"
ENOUGH = 40  # words in a row of a message that count as the message
BUDGETS = (500, 1000, 2000, 4000)
NOTHING = Recall("", (), 0, True, "plain", 0)


@dataclass(frozen=True, slots=True)
class AskedQuestion:
    """A question, and the ids of the messages that have the answer."""

    text: str
    evidence: tuple[str, ...]
    category: str = ""


@dataclass(frozen=True, slots=True)
class LabelledConversation:
    """A conversation, and questions about it."""

    id: str
    messages: tuple[Message, ...]
    questions: tuple[AskedQuestion, ...] = ()


@dataclass(slots=True)
class _Figures:
    found: list[float] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)


def read_conversations(path: str | Path) -> list[LabelledConversation]:
    """Conversations from JSONL: `{"id", "messages": [{"id", "role", "name"?, "text", "at"?}], "questions": [{"question",
    "category"?, "evidence": [message id]}]}` a line; `at` is ISO 8601, UTC where it does not say.

    Raises:
        InputError: unreadable or malformed, with the line.
    """  # noqa: D205 - the shape of a line does not fit one
    try:
        text = Path(path).read_text("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: cannot be read ({error})") from error
    return [
        _conversation(line, f"{path}, line {number}")
        for number, line in enumerate(text.splitlines(), 1)
        if line.strip()
    ]


def exchanges_of(messages: Sequence[Message]) -> list[tuple[Message | None, Message | None]]:
    """Messages as exchanges: a reply joins the user's message right before it, anything else stands alone."""
    pairs: list[tuple[Message | None, Message | None]] = []
    for message in messages:
        if message.role == "user":
            pairs.append((message, None))
        elif pairs and pairs[-1][1] is None and pairs[-1][0] is not None:
            pairs[-1] = (pairs[-1][0], message)
        else:
            pairs.append((None, message))
    return pairs


def keep(store: Store, embedder: Embedder, conversation: LabelledConversation, owner: str = OWNER) -> None:
    """Write a conversation into a store, in one change."""
    store.bind(embedder.space)
    pairs = exchanges_of(conversation.messages)
    passages = iter(analyse_all([message or "" for pair in pairs for message in pair], embedder))
    operations: list[Operation] = []
    nobody = Message("user", "")
    for number, (user, reply) in enumerate(pairs):
        said, told = user or nobody, reply or nobody
        operations += [
            Begin(f"e{number}", said.text, next(passages), said.at, said.name),
            Complete(f"e{number}", told.text, next(passages), told.at, told.name),
        ]
    store.apply(Change("keep", owner, conversation.id, tuple(operations)))


def evaluate_recall(
    conversations: Sequence[LabelledConversation],
    embedder: Embedder,
    budgets: Sequence[int] = BUDGETS,
    progress: Callable[[int], None] | None = None,
    *,
    store: Store | None = None,
    learned: tuple[Heads | None, Heads | None] | None = None,
) -> dict[str, Any]:
    """Ask every question of its own conversation, in a store, through the same recall as everybody.

    A message is found when its whole text, or 40 words of it in a row, stands in the evidence text (white space folded);
    tokens are those of the whole text, in the encoder's own.

    Args:
        store: an empty one; by default it is in memory. learned: other weights than the bundled ones.
    Returns:
        questions, budgets (evidence_recall: mean share of a question's evidence that was found; all_found; tokens_mean;
        tokens_max), by_category, nothing_found (share of questions), ms_per_question (encoding included), llm_calls,
        encoder. Questions without evidence in the conversation are left out.
    """
    if not budgets or any(budget < 1 for budget in budgets):
        raise ConfigError("cannot be used", key="budgets", got=list(budgets), accepted="whole numbers from 1")
    where = store or open_store("memory://")
    count = token_counter(embedder)
    all_figures: dict[tuple[str, int], _Figures] = {}
    spent, silent, done = [], [], 0
    for conversation in conversations:
        keep(where, embedder, conversation)
        now = max((message.at for message in conversation.messages if message.at is not None), default=0.0)
        texts = {message.id: message.text for message in conversation.messages}
        scope = Scope(OWNER, conversation.id)
        for question in conversation.questions:
            wanted = [texts[name] for name in question.evidence if name in texts]
            if wanted and question.text.strip():
                started = time.perf_counter()
                case = gather(where, embedder, scope, question.text, now)
                for budget in budgets:
                    got = (
                        NOTHING
                        if case is None
                        else answer(where, embedder, scope, case, budget, count, learned=learned)
                    )
                    if budget == budgets[0]:
                        spent.append((time.perf_counter() - started) * 1000.0)
                        silent.append(got.nothing_found)
                    share = float(np.mean(found_in(wanted, got.text)))
                    for category in ("", question.category):
                        figures = all_figures.setdefault((category, budget), _Figures())
                        figures.found.append(share)
                        figures.tokens.append(got.tokens)
                        if not question.category:
                            break
            done += 1
            if progress is not None:
                progress(done)
    if not spent:
        raise InputError("there is nothing to measure: no question has evidence in its conversation")
    return {
        "questions": len(spent),
        "budgets": {str(budget): _figures(all_figures["", budget]) for budget in budgets},
        "by_category": {
            category: {
                "questions": len(all_figures[category, budgets[0]].found),
                **{str(budget): _figures(all_figures[category, budget]) for budget in budgets},
            }
            for category in sorted({category for category, _ in all_figures if category})
        },
        "nothing_found": round(float(np.mean(silent)), 4),
        "ms_per_question": percentiles(spent),
        "llm_calls": 0,
        "encoder": embedder.space.name,
    }


def mean_of_recalls(reports: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """The mean of each figure of each budget over several reports."""
    found = list(reports)
    return {
        budget: {
            name: round(float(np.mean([report["budgets"][budget][name] for report in found])), 4)
            for name in ("evidence_recall", "all_found", "tokens_mean", "tokens_max")
        }
        for budget in found[0]["budgets"]
    }


def found_in(wanted: Sequence[str], evidence: str) -> list[bool]:
    """Whether each message stands in an evidence text: all of it, or 40 words in a row."""
    shown = "\n".join(line.text for line in read_evidence(evidence))
    return [_stands(text.split(), shown) for text in wanted]


def _stands(spoken: Sequence[str], shown: str) -> bool:
    if " ".join(spoken) in shown:
        return True
    return any(" ".join(spoken[start : start + ENOUGH]) in shown for start in range(len(spoken) - ENOUGH + 1))


def _figures(figures: _Figures) -> dict[str, float | int]:
    return {
        "evidence_recall": round(float(np.mean(figures.found)), 4),
        "all_found": round(float(np.mean([share == 1.0 for share in figures.found])), 4),
        "tokens_mean": round(float(np.mean(figures.tokens)), 1),
        "tokens_max": max(figures.tokens),
    }


def _conversation(line: str, where: str) -> LabelledConversation:
    try:
        value = json.loads(line)
        messages = tuple(
            Message(
                "user" if row["role"] == "user" else "assistant",
                _text(row["text"]),
                _time(row.get("at")),
                str(row["id"]),
                row.get("name") or None,
            )
            for row in value["messages"]
        )
        questions = tuple(
            AskedQuestion(_text(row["question"]), tuple(map(str, row["evidence"])), str(row.get("category") or ""))
            for row in value.get("questions") or ()
        )
        return LabelledConversation(_text(value["id"]), messages, questions)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{where}: not valid ({error})") from error
    except (KeyError, TypeError, AttributeError) as error:
        raise InputError(f'{where}: needs "id", "messages" and "questions" as in docs/recall.md ({error})') from error


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"a text is missing, got {type(value).__name__}")
    return value


def _time(value: object) -> float | None:
    if value is None or value == "":
        return None
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return float(value)
    moment = datetime.fromisoformat(str(value))
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
