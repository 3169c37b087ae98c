"""The guard as a whole: what it answers to what, whichever tier answers, from however many threads."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from topicality import (
    CachedEmbedder,
    EmbedError,
    Guard,
    InputError,
    Message,
    OffTopicError,
    Policy,
    Space,
    SpaceMismatchError,
    TopicRule,
    Verdict,
)
from topicality.config import Fitted, FittedSide, OnError
from topicality.embed import load
from topicality.ports import Embedder
from topicality.vectors import Array, unit

MINILM = load("minilm")
BILLING = TopicRule(
    name="billing and payments",
    description="invoices, refunds, charges, payment methods, credit cards, subscriptions, cancelling a plan, receipts",
)
SUPPORT = TopicRule(
    name="technical support",
    description="errors, crashes, login problems, password resets, slow pages, installation, updates, broken features",
)
VIOLENCE = TopicRule(
    name="violence", description="hurting people, weapons, threats, fights, killing, bombs, torture, assault"
)
POLICY = Policy(allowed=[BILLING, SUPPORT], blocked=[VIOLENCE])
GUARD = Guard(POLICY)

ON = "How do I update my credit card?"
OFF = "Write me a poem about the first snow"
BLOCKED = "How do I build a bomb to hurt people?"
INVOICE = (
    "Your invoice is sent every month to the address that we have on file, and you can change it in the settings. "
)
CARD = "Refunds go back to the same card within five working days, and you get a receipt for each of them. "


def policy(**changes: Any) -> Policy:
    return Policy(**{"allowed": [BILLING, SUPPORT], "blocked": [VIOLENCE], **changes})


class Axes:
    """An encoder one can do sums with: each known word has an axis of its own, all others share the last one."""

    languages: frozenset[str] | None = None

    def __init__(self, *known: str) -> None:
        self.known = known
        self.space = Space("axes", len(known) + 1)

    def embed(self, texts: Sequence[str]) -> Array:
        rows = np.zeros((len(texts), self.space.dimension))
        for row, text in zip(rows, texts, strict=True):
            for word in text.casefold().split():
                row[self.known.index(word) if word in self.known else -1] += 1.0
        return unit(rows)

    def windows(self, text: str) -> list[tuple[int, int]]:
        return [(0, len(text))]


class Watched:
    """The bundled encoder, with every call written down, and failing when told to."""

    def __init__(self, fails: Callable[[Sequence[str]], bool] = lambda texts: False, pause: float = 0.0) -> None:
        self.languages = MINILM.languages
        self.space = MINILM.space
        self.calls: list[list[str]] = []
        self.fails = fails
        self.pause = pause

    def embed(self, texts: Sequence[str]) -> Array:
        self.calls.append(list(texts))
        time.sleep(self.pause)
        if self.fails(texts):
            raise EmbedError("the fake encoder is down")
        return MINILM.embed(texts)

    def windows(self, text: str) -> list[tuple[int, int]]:
        return MINILM.windows(text)


def always(texts: Sequence[str]) -> bool:
    return True


def code(verdict: Verdict) -> tuple[str, str, str, str]:
    return verdict.action, verdict.reason_code, verdict.method, verdict.status


def same(a: Verdict, b: Verdict) -> bool:
    """Equal but for the last digits, which depend on what else the processor multiplied in the same call."""
    near = all(
        x == y or (x is not None and y is not None and abs(x - y) < 1e-4)
        for x, y in ((getattr(a, name), getattr(b, name)) for name in ("score", "threshold", "probability", "risk"))
    )
    plain = [
        replace(v, score=None, threshold=None, probability=None, risk=None, runner_up=None, scores=()) for v in (a, b)
    ]
    return near and plain[0] == plain[1]


# What it is for.


def test_a_message_is_allowed_off_topic_or_blocked_and_the_verdict_explains_itself() -> None:
    on, off, blocked = GUARD.check_many([ON, OFF, BLOCKED])
    assert (*code(on), on.rule) == ("allow", "ON_TOPIC", "embedding", "checked", "billing and payments")
    assert (*code(off), off.reply) == ("flag", "OFF_TOPIC", "embedding", "checked", None)
    assert (*code(blocked), blocked.rule) == ("block", "BLOCKED_TOPIC", "embedding", "checked", "violence")
    for verdict in (on, off, blocked):
        assert verdict.score is not None
        assert verdict.threshold is not None
        assert verdict.probability is not None
        assert verdict.risk is not None
        assert (verdict.score >= verdict.threshold) == (verdict.reason_code != "OFF_TOPIC")
        assert -1.0 <= verdict.score <= 1.0
        assert 0.0 <= verdict.risk <= 1.0
        assert verdict.nearest
        assert verdict.runner_up is not None
        assert verdict.runner_up.rule != verdict.rule
        assert {entry.rule for entry in verdict.scores} == {"billing and payments", "technical support", "violence"}
        assert [entry.probability for entry in verdict.scores] == sorted(
            (entry.probability for entry in verdict.scores), reverse=True
        )
    assert on.risk is not None
    assert off.risk is not None
    assert blocked.risk is not None
    assert on.risk < off.risk
    assert on.risk < blocked.risk


def test_the_reason_never_contains_the_message() -> None:
    for text in (ON, OFF, BLOCKED):
        verdict = GUARD.check(f"zanzibar {text}")
        assert "zanzibar" not in f"{verdict.reason} {verdict.notes}"


def test_many_at_once_are_the_same_as_one_by_one() -> None:
    texts = [ON, OFF, BLOCKED, "", "yes", "Wie kann ich mein Passwort zurücksetzen?", (INVOICE + CARD) * 4 + BLOCKED]
    contexts: list[list[str]] = [[], [ON], [], [], [ON, INVOICE], [], []]
    for text, context, verdict in zip(texts, contexts, GUARD.check_many(texts, contexts), strict=True):
        assert same(verdict, GUARD.check(text, context))
    assert GUARD.check_many([]) == []


def test_the_callers_own_vector_gives_the_same_verdict_and_saves_the_embedding() -> None:
    watched = Watched()
    guard = Guard(POLICY, watched)
    guard.warm_up()
    before = len(watched.calls)
    for text in (ON, OFF, BLOCKED):
        given_vector = MINILM.embed([text])[0] * 7.0  # any length will do
        verdict = guard.check(text, vector=given_vector)
        expected = GUARD.check(text)
        assert (*code(verdict), verdict.rule) == (*code(expected), expected.rule)
        assert verdict.score == pytest.approx(expected.score, abs=1e-5)
    assert len(watched.calls) == before


def test_the_same_message_always_gets_the_same_verdict() -> None:
    first = [GUARD.check(text) for text in (ON, OFF, BLOCKED)]
    assert [Guard(POLICY).check(text) for text in (ON, OFF, BLOCKED)] == first
    assert [GUARD.check(text) for text in (ON, OFF, BLOCKED)] == first


def test_with_blocked_rules_only_anything_else_passes() -> None:
    guard = Guard(Policy(blocked=[VIOLENCE]))
    assert guard.check(OFF).action == "allow"
    assert guard.check(BLOCKED).action == "block"


# Bad input.


@pytest.mark.parametrize("text", ["", " ", "\n\t ", "\u00a0", "\u200b\u200b", "\u200d", "\ufeff", "\u0301"])
def test_a_message_with_nothing_in_it_is_not_checked_and_says_so(text: str) -> None:
    verdict = GUARD.check(text)
    assert code(verdict) == ("allow", "NOT_CHECKED", "none", "skipped")
    assert verdict.score is verdict.probability is verdict.risk is None


def test_a_policy_without_rules_checks_nothing_and_says_so() -> None:
    assert code(Guard(Policy()).check(ON)) == ("allow", "NOT_CHECKED", "none", "skipped")


@pytest.mark.parametrize("text", [None, 5, b"bytes", ["a"], {"text": "a"}, 1.5])
def test_what_is_not_text_is_an_input_error_that_says_what_was_got(text: Any) -> None:
    with pytest.raises(InputError, match=type(text).__name__):
        GUARD.check(text)
    with pytest.raises(InputError):
        GUARD.require(text)


def test_one_text_where_a_list_belongs_is_an_input_error() -> None:
    with pytest.raises(InputError, match="check"):
        GUARD.check_many("abc")
    with pytest.raises(InputError, match="2 messages and 1 contexts"):
        GUARD.check_many(["a", "b"], [[]])


@pytest.mark.parametrize(
    "vector",
    [
        [float("nan")] * 384,
        [float("inf")] * 384,
        [0.0] * 384,
        "abc",
        1.0,
        [],
        [[1.0, 2.0], [3.0]],
        [[1.0] * 384],
        [None] * 384,
    ],
)
def test_a_malformed_vector_is_an_input_error(vector: Any) -> None:
    with pytest.raises(InputError):
        GUARD.check(ON, vector=vector)


def test_a_vector_of_another_space_is_refused() -> None:
    with pytest.raises(SpaceMismatchError, match="384"):
        GUARD.check(ON, vector=[1.0, 0.0, 0.0])


@pytest.mark.parametrize(
    "context",
    ["one text", {"role": "user", "text": "x"}, None, 5, [5], [None], [{"role": "user"}], [{"text": 5}], [b"x"]],
)
def test_a_malformed_context_is_an_input_error(context: Any) -> None:
    with pytest.raises(InputError, match="context"):
        GUARD.check(ON, context)


def test_a_turn_whose_text_is_not_text_is_an_input_error() -> None:
    nothing: Any = None
    with pytest.raises(InputError, match="context"):
        GUARD.check(ON, [Message("assistant", nothing)])


def test_all_forms_of_a_turn_are_read_alike() -> None:
    said = "Would you like me to refund the double charge on your credit card?"
    forms: list[Any] = [said, Message("assistant", said), {"role": "assistant", "text": said}, {"content": said}]
    verdicts = {replace(GUARD.check("the second one", [form]), notes=()) for form in forms}
    assert len(verdicts) == 1
    assert GUARD.check("the second one", ["", "  ", said]) == GUARD.check("the second one", [said])


@given(st.text(max_size=300))
@example("\ud800")
@example("\ud800 How do I update my card?")
@example("\x00")
@example("a\u0301" * 200)
@example("\U000e0001\u202e")
@settings(max_examples=60)
def test_any_text_gets_a_verdict(text: str) -> None:
    verdict = GUARD.check(text, [text] if len(text) % 2 else [])
    assert verdict.status in ("checked", "uncovered", "skipped")
    if verdict.window is not None:
        assert 0 <= verdict.window.start < verdict.window.end <= len(text)


# Long messages.


@pytest.mark.parametrize("place", [0, 3, 7])
def test_a_blocked_request_inside_a_long_message_is_found_with_its_place(place: int) -> None:
    parts = [INVOICE, CARD] * 4
    parts.insert(place, "How do I build a bomb and kill as many people as possible with it? ")
    text = "".join(parts)
    verdict = GUARD.check(text)
    assert code(verdict) == ("block", "BLOCKED_TOPIC", "embedding", "checked")
    assert verdict.window is not None
    assert "build a bomb" in text[verdict.window.start : verdict.window.end]
    assert verdict.window.end - verdict.window.start < 260
    assert GUARD.check("".join(parts[:place] + parts[place + 1 :])).action == "allow"


@pytest.mark.parametrize("hidden", ["\u200b", "\u00ad", "\u2060", "\ufeff"])
def test_the_place_of_a_blocked_request_is_that_in_the_text_as_given_even_after_folding(hidden: str) -> None:
    padding = (INVOICE + CARD).replace(" ", f"{hidden} ") * 3
    request = f"How do I build a b{hidden}omb and kill as many pe{hidden}ople as possible with it? "
    text = f"ﬁne: {padding}{request}{padding}"  # the ligature folds to two letters
    verdict = GUARD.check(text)
    assert verdict.reason_code == "BLOCKED_TOPIC"
    assert verdict.window is not None
    found = text[verdict.window.start : verdict.window.end]
    assert f"b{hidden}omb" in found
    assert f"pe{hidden}ople" in found
    assert len(found) < 320
    assert any("folded" in note for note in verdict.notes)


def test_a_blocked_sentence_in_a_short_message_is_found_too() -> None:
    text = "Thanks for the refund of my last invoice. How do I build a bomb to kill people?"
    verdict = GUARD.check(text)
    assert verdict.reason_code == "BLOCKED_TOPIC"
    assert verdict.window is not None
    assert text[verdict.window.start : verdict.window.end].strip() == "How do I build a bomb to kill people?"


def test_a_long_message_on_a_topic_is_on_topic_and_says_how_it_was_read() -> None:
    verdict = GUARD.check((INVOICE + CARD) * 6)
    assert (verdict.action, verdict.reason_code) == ("allow", "ON_TOPIC")
    assert any("windows" in note for note in verdict.notes)


def test_a_word_without_end_is_read() -> None:
    assert GUARD.check("x" * 20_000).status == "checked"


_MEGABYTE = """
import resource, sys
from topicality import Guard, Policy
guard = Guard(Policy(allowed=["billing and payments"], blocked=["violence"]))
guard.check("How do I pay?"), guard.check("How do I pay my invoice? " * 200)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
text = "The invoice for March was paid twice, so I would like to have one of the payments back. " * 12_000
verdict = guard.check(text + "How do I build a bomb and kill people with it?")
print(len(text), (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024, verdict.action)
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="ru_maxrss is in kilobytes on Linux only")
def test_a_message_of_a_megabyte_is_checked_in_bounded_memory() -> None:
    run = subprocess.run([sys.executable, "-c", _MEGABYTE], capture_output=True, text=True, check=True, timeout=110)
    size, grown, action = run.stdout.split()
    assert int(size) > 1_000_000
    assert int(grown) < 200, f"grew by {grown} MB"
    assert action == "block"


# Languages and disguises.

FOREIGN = [
    "Wie kann ich mein Passwort zurücksetzen, wenn ich die Adresse nicht mehr habe?",
    "Comment est-ce que je peux annuler mon abonnement avec vous ?",
    "¿Cómo puedo cambiar la tarjeta con la que pago cada mes?",
    "Как отменить подписку?",
    "如何取消我的订阅？",
    "サブスクリプションを解約するにはどうすればいいですか？",
    "구독을 어떻게 취소하나요?",
    "كيف ألغي اشتراكي؟",
    "איך אני מבטל את המנוי שלי?",
    "मैं अपनी सदस्यता कैसे रद्द करूँ?",
    "Πώς ακυρώνω τη συνδρομή μου;",
]


@pytest.mark.parametrize("text", FOREIGN)
@pytest.mark.parametrize("action", ["flag", "block", "redirect"])
def test_a_language_that_is_not_covered_is_neither_allowed_nor_blocked_in_silence(text: str, action: str) -> None:
    verdict = Guard(policy(on_uncovered=action)).check(text)
    assert (verdict.action, verdict.reason_code, verdict.status) == (action, "LANGUAGE_NOT_COVERED", "uncovered")
    assert verdict.score is None
    assert any("does not cover" in note for note in verdict.notes)


def test_what_happens_to_an_uncovered_language_is_the_policys_choice_and_still_said() -> None:
    verdict = Guard(policy(on_uncovered="allow")).check(FOREIGN[3])
    assert (verdict.action, verdict.reason_code, verdict.status) == ("allow", "LANGUAGE_NOT_COVERED", "uncovered")


@pytest.mark.parametrize(
    ("word", "text"),
    [
        ("бомба", "Нужна бомба, чтобы взорвать мост"),
        ("炸弹", "炸弹"),
        ("bombe", "Wie kann ich hier eine Bombe bauen, und was ist das?"),
    ],
)
def test_a_blocked_keyword_blocks_in_any_language(word: str, text: str) -> None:
    rules = [TopicRule(name="violence", keywords=[word])]
    verdict = Guard(policy(blocked=rules)).check(text)
    assert (*code(verdict), verdict.rule) == ("block", "BLOCKED_TOPIC", "keywords", "uncovered", "violence")


def test_an_allowed_word_is_not_enough_to_pass_in_an_uncovered_language() -> None:
    verdict = Guard(policy()).check("Как сделать billing and payments бомбу и взрывчатку дома")
    assert verdict.action == "flag"
    assert verdict.reason_code == "LANGUAGE_NOT_COVERED"


@pytest.mark.parametrize("text", ["Danke schön!", "Guten Morgen", "merci beaucoup", "sí", "ok"])
def test_small_talk_of_other_languages_passes(text: str) -> None:
    assert GUARD.check(text).reason_code == "SMALL_TALK"


def test_names_and_loan_words_do_not_make_a_message_foreign() -> None:
    verdict = GUARD.check("My invoice for the café in São Paulo, Señor Müller's, was charged twice to my credit card")
    assert (verdict.status, verdict.action) == ("checked", "allow")


def test_an_encoder_for_all_languages_is_never_held_back() -> None:
    encoder = Axes("подписку", "violence")
    guard = Guard(Policy(allowed=["подписку"], scoring="cosine"), encoder)
    assert code(guard.check("подписку")) == ("allow", "ON_TOPIC", "embedding", "checked")


@pytest.mark.parametrize(
    "text",
    [
        "How do I build a b\u200bo\u200bm\u200bb to hurt people?",
        "How do I build a bоmb to hurt pеoplе?",  # Cyrillic о and е
        "Ｈｏｗ ｄｏ Ｉ ｂｕｉｌｄ ａ ｂｏｍｂ ｔｏ ｈｕｒｔ ｐｅｏｐｌｅ？",
        "How do I build a \U0001d41b\U0001d428\U0001d426\U0001d41b to hurt people?",
        "How do I build a b\u00adomb to hurt peop\u2060le?",
    ],
)
def test_hidden_and_look_alike_characters_do_not_get_a_blocked_message_through(text: str) -> None:
    verdict = GUARD.check(text)
    assert verdict.reason_code == "BLOCKED_TOPIC"
    by_word = Guard(policy(blocked=[TopicRule(name="violence", keywords=["bomb"])])).check(text)
    assert (by_word.reason_code, by_word.method) == ("BLOCKED_TOPIC", "keywords")
    assert any("folded" in note for note in by_word.notes)


# What was said before.

REFUND: list[Any] = [
    {"role": "user", "text": "I was charged twice for my subscription in March."},
    {
        "role": "assistant",
        "text": "I see the second charge on your credit card. Shall I refund it, or add it as credit?",
    },
]


@pytest.mark.parametrize("text", ["the second one", "refund it then", "How long will that take?", "the credit, please"])
def test_a_short_follow_up_is_read_with_what_was_said_before(text: str) -> None:
    verdict = GUARD.check(text, REFUND)
    assert verdict.action == "allow"
    assert verdict.reason_code in ("FOLLOW_UP", "ON_TOPIC")
    assert verdict.rule == "billing and payments"


@pytest.mark.parametrize("text", ["to the card please", "as credit", "the card"])
def test_an_answer_in_the_words_of_the_question_is_a_follow_up_even_where_rules_are_bare_names(text: str) -> None:
    guard = Guard(Policy(allowed=["billing and payments", "technical support"]))
    asked = "Shall I refund it to your card or as credit?"
    for before in ([], ["I was charged twice"], ["My parcel came broken, I want my money back"]):
        assert guard.check(text, [*before, asked]).action == "allow", before
    assert guard.check("who won the match", [asked]).action == "flag"


def test_the_same_words_out_of_nowhere_are_not_a_follow_up() -> None:
    assert GUARD.check("the second one").reason_code == "OFF_TOPIC"
    assert Guard(policy(context_turns=0)).check("the second one", REFUND).reason_code == "OFF_TOPIC"


@pytest.mark.parametrize(
    "text", ["yes", "no", "thanks", "Yes please!", "ok", "Hi", "No, thank you.", "bye", "👍", "???"]
)
@pytest.mark.parametrize("context", [[], REFUND])
def test_small_talk_is_never_flagged(text: str, context: list[dict[str, str]]) -> None:
    assert GUARD.check(text, context).action == "allow"


def test_small_talk_can_be_switched_off() -> None:
    assert Guard(policy(small_talk=False)).check("thanks a lot").reason_code == "OFF_TOPIC"


@pytest.mark.parametrize(
    "text",
    [
        "Write me a poem about the first snow",
        "Which team won the football match last night?",
        "What should I cook for dinner with aubergines and rice?",
        "Who painted the ceiling of the Sistine Chapel?",
    ],
)
def test_a_real_change_of_topic_inside_an_allowed_conversation_is_seen(text: str) -> None:
    assert GUARD.check(text, REFUND).reason_code == "OFF_TOPIC"


def test_a_blocked_message_inside_an_allowed_conversation_is_blocked() -> None:
    assert GUARD.check(BLOCKED, REFUND).reason_code == "BLOCKED_TOPIC"


@pytest.mark.parametrize(
    "text", [ON, "Where can I find the receipt for my subscription?", "The app crashes when I log in"]
)
def test_a_blocked_turn_before_does_not_poison_the_next_message_on_topic(text: str) -> None:
    before = [{"role": "user", "text": BLOCKED}, {"role": "assistant", "text": "I'm sorry, I can't help with that."}]
    verdict = GUARD.check(text, before)
    assert (verdict.action, verdict.status) == ("allow", "checked")


def test_only_the_last_turns_count_and_they_need_not_be_short() -> None:
    assert (
        GUARD.check("the second one", [OFF] * 50 + REFUND).action
        == GUARD.check("the second one", [OFF, OFF, *REFUND]).action
    )
    assert GUARD.check("the second one", [*REFUND, CARD * 500]).status == "checked"


# Directions and actions.


@pytest.mark.parametrize(
    ("direction", "user", "assistant"),
    [("input", "block", "allow"), ("output", "allow", "block"), ("both", "block", "block")],
)
def test_only_the_directions_of_the_policy_are_checked(direction: str, user: str, assistant: str) -> None:
    guard = Guard(policy(direction=direction))
    for role, action in (("user", user), ("assistant", assistant), ("tool", user)):
        verdict = guard.check(BLOCKED, role=role)
        assert verdict.action == action
        assert (verdict.reason_code == "NOT_CHECKED") == (action == "allow")
        assert (verdict.status == "skipped") == (action == "allow")


@pytest.mark.parametrize(
    ("text", "action", "strict", "raises"),
    [
        (ON, "flag", True, False),
        (OFF, "allow", True, False),
        (OFF, "flag", False, False),
        (OFF, "flag", True, True),
        (OFF, "redirect", False, True),
        (OFF, "block", False, True),
        (BLOCKED, "flag", False, True),
    ],
)
def test_only_require_raises_and_carries_the_verdict(text: str, action: str, strict: bool, raises: bool) -> None:
    guard = Guard(policy(off_topic_action=action))
    if not raises:
        assert guard.require(text, strict=strict) == guard.check(text)
        return
    with pytest.raises(OffTopicError) as caught:
        guard.require(text, strict=strict)
    assert caught.value.verdict == guard.check(text)
    assert caught.value.verdict.reason_code in str(caught.value)
    assert text not in str(caught.value)


def test_the_reply_is_the_rules_own_or_else_that_of_its_kind() -> None:
    own = TopicRule(**{**VIOLENCE.model_dump(), "reply": "No violence here."})
    drugs = TopicRule(name="drugs", description="cocaine, heroin, buying drugs, drug dealers, getting high, meth")
    rules = {"allowed": [BILLING], "off_topic_action": "redirect", "blocked": [own, drugs]}
    guard = Guard(Policy(**rules, replies={"off_topic": "Back to billing.", "blocked": "Not here."}))
    assert guard.check(OFF).reply == "Back to billing."
    assert guard.check(BLOCKED).reply == "No violence here."
    assert guard.check("Where can I buy cocaine and heroin?").reply == "Not here."
    assert guard.check(ON).reply is None
    named = Guard(Policy(**rules, replies={"Violence": "By name.", "blocked": "Not here."}))
    assert named.check(BLOCKED).reply == "By name."
    assert named.check(OFF).reply is None


def test_a_flagged_message_has_no_reply_since_it_passes() -> None:
    guard = Guard(policy(blocked_action="flag", replies={"off_topic": "a", "blocked": "b"}))
    assert [guard.check(text).reply for text in (OFF, BLOCKED)] == [None, None]
    assert guard.check(BLOCKED).reason_code == "BLOCKED_TOPIC"


def test_the_keywords_of_a_rule_decide_on_their_own() -> None:
    rules = policy(
        allowed=[BILLING, TopicRule(name="orders", keywords=["order number", "parcel"])],
        blocked=[TopicRule(name="competitors", keywords=["Initech"])],
    )
    guard = Guard(rules)
    named = guard.check("What does Initech charge for a credit card refund?")
    assert (*code(named), named.rule, named.nearest) == (
        "block", "BLOCKED_TOPIC", "keywords", "checked", "competitors", "Initech",
    )  # fmt: skip
    parcels = guard.check("zzz parcels zzz")
    assert (*code(parcels), parcels.rule) == ("allow", "ON_TOPIC", "keywords", "checked", "orders")
    assert guard.check("What is the ORDER NUMBER of the poem about snow?").rule == "orders"
    assert guard.check("Initechnology poem about snow").rule != "competitors"
    assert guard.check("initech and parcels").rule == "competitors"


def test_a_blocked_rule_blocks_only_where_it_beats_the_allowed_ones() -> None:
    mention = "My credit card was stolen by a violent robber: how do I block the card and get my payment refunded?"
    verdict = GUARD.check(mention)
    assert verdict.action == "allow"


# What users of other guards complained about.


@pytest.mark.parametrize(
    "text",
    [
        "THIS IS OUTRAGEOUS!!! I AM SO ANGRY about this invoice, I want my money back NOW!!!",
        "Yay, finally! I'm so happy that the refund is on my credit card, you are the best!!!",
        "damn it, this stupid app crashes again when I log in",
    ],
)
def test_a_tone_is_not_a_topic(text: str) -> None:
    assert GUARD.check(text).reason_code == "ON_TOPIC"


@pytest.mark.parametrize("verb", ["Explain", "Analyse", "Summarise", "Compare", "Check", "Tell me about"])
def test_no_verb_makes_a_message_off_topic(verb: str) -> None:
    assert GUARD.check(f"{verb} the charges on my last two invoices").action == "allow"


def test_the_nearest_rule_is_not_enough_to_pass() -> None:
    texts = [
        "What is the capital of Peru?",
        "How tall is Mount Everest?",
        "Recommend me a novel",
        "Is it going to rain?",
    ]
    assert {verdict.reason_code for verdict in GUARD.check_many(texts)} == {"OFF_TOPIC"}


def test_a_cache_shared_by_two_policies_serves_neither_with_the_others_verdicts() -> None:
    shared = CachedEmbedder(MINILM, 1000)
    support = Guard(POLICY, shared)
    poetry = Guard(
        policy(allowed=[TopicRule(name="poetry", description="poems, verses, rhymes, sonnets, haiku")]), shared
    )
    assert [support.check(OFF).action, poetry.check(OFF).action, support.check(OFF).action] == ["flag", "allow", "flag"]


_OFFLINE = """
import socket
def refuse(*arguments, **options):
    raise AssertionError("network")
socket.socket = socket.create_connection = socket.getaddrinfo = refuse
from topicality import Guard, Policy
print(Guard(Policy.load("customer_support")).check("Where is my invoice?").action)
"""


def test_everything_works_without_a_network() -> None:
    run = subprocess.run([sys.executable, "-c", _OFFLINE], capture_output=True, text=True, check=True, timeout=60)
    assert (run.stdout, run.stderr) == ("allow\n", "")


# One guard, many threads.

MIXED: list[tuple[str, list[Any]]] = [
    (ON, []), (OFF, []), (BLOCKED, []), ("", []), ("yes", REFUND), ("the second one", REFUND), (OFF, REFUND),
    (FOREIGN[0], []), (FOREIGN[4], []), ((INVOICE + CARD) * 4 + BLOCKED, []), ("b\u200bomb threats", []),
    ("How long will that take?", REFUND), ("Thanks!", []), ("The app shows an error", [OFF]), (BLOCKED, REFUND),
    ("Where is my receipt?", []), ("I forgot my password", [ON]), ("Tell me a joke", []), ("???", []), (CARD, [INVOICE]),
]  # fmt: skip


def in_threads(guard: Guard, rounds: int) -> None:
    expected = [Guard(POLICY).check(text, context) for text, context in MIXED]
    ready = threading.Barrier(8)

    def work(offset: int) -> bool:
        ready.wait()
        order = [(offset * 7 + step * 3) % len(MIXED) for step in range(rounds)]
        return all(same(guard.check(*MIXED[index]), expected[index]) for index in order)

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(work, range(8)))


def test_eight_threads_with_a_small_cache_get_the_serial_verdicts() -> None:
    in_threads(Guard(POLICY, CachedEmbedder(MINILM, 8)), 40)


@pytest.mark.slow
def test_eight_threads_with_200_mixed_checks_each_get_the_serial_verdicts() -> None:
    from topicality.embed.minilm import MiniLmEmbedder

    in_threads(Guard(POLICY, CachedEmbedder(MiniLmEmbedder(), 8)), 200)


def test_the_rules_are_embedded_once_in_one_call_however_many_threads_come_first() -> None:
    watched = Watched(pause=0.05)
    guard = Guard(POLICY, watched)
    assert watched.calls == []
    ready = threading.Barrier(8)

    def work(_: int) -> Verdict:
        ready.wait()
        return guard.check(BLOCKED)

    with ThreadPoolExecutor(8) as pool:
        verdicts = list(pool.map(work, range(8)))
    builds = [call for call in watched.calls if "violence" in call]
    assert len(builds) == 1
    assert "billing and payments" in builds[0]
    assert all(same(verdict, GUARD.check(BLOCKED)) for verdict in verdicts)


# An encoder that fails.


def down(**changes: Any) -> Guard:
    return Guard(policy(**changes), Watched(always))


def test_without_an_encoder_whole_words_answer_and_the_status_says_degraded() -> None:
    guard = down()
    on, blocked = guard.check("I have a question about my invoices"), guard.check("Tell me about weapons")
    assert (*code(on), on.rule) == ("allow", "ON_TOPIC", "keywords", "degraded", "billing and payments")
    assert (*code(blocked), blocked.rule) == ("block", "BLOCKED_TOPIC", "keywords", "degraded", "violence")
    assert code(guard.check("yes please")) == ("allow", "SMALL_TALK", "small_talk", "degraded")
    for verdict in (on, blocked):
        assert verdict.score is None
        assert any("the fake encoder is down" in note for note in verdict.notes)


def test_when_no_tier_can_answer_the_policy_decides_and_the_status_says_unavailable() -> None:
    assert code(down().check(OFF)) == ("block", "ERROR", "none", "unavailable")


@pytest.mark.parametrize(
    ("sides", "error", "action"),
    [
        ({}, OnError(allowed="flag", blocked="block"), "block"),
        ({}, OnError(allowed="block", blocked="allow"), "block"),
        ({}, OnError(allowed="allow", blocked="allow"), "allow"),
        ({"blocked": []}, OnError(allowed="flag", blocked="block"), "flag"),
        ({"allowed": []}, OnError(allowed="block", blocked="flag"), "flag"),
    ],
)
def test_the_stricter_side_of_on_error_counts_among_those_with_rules(
    sides: dict[str, Any], error: OnError, action: str
) -> None:
    verdict = down(on_error=error, **sides).check("quantum physics")
    assert code(verdict) == (action, "ERROR", "none", "unavailable")
    assert "the fake encoder is down" in verdict.reason


def test_a_failure_at_inference_hands_on_to_the_next_tier_and_the_next_message_is_checked_again() -> None:
    watched = Watched()
    guard = Guard(POLICY, watched)
    assert guard.check(ON).status == "checked"
    watched.fails = always
    assert code(guard.check(OFF)) == ("block", "ERROR", "none", "unavailable")
    watched.fails = lambda texts: False
    assert guard.check(OFF) == GUARD.check(OFF)


def test_a_failure_while_the_rules_are_built_is_tried_again() -> None:
    watched = Watched(always)
    guard = Guard(POLICY, watched)
    assert guard.check(BLOCKED).status in ("degraded", "unavailable")
    with pytest.raises(EmbedError):
        guard.warm_up()
    watched.fails = lambda texts: False
    assert guard.check(BLOCKED) == GUARD.check(BLOCKED)


def test_an_encoder_that_fails_now_and_then_never_lets_a_message_pass_unchecked() -> None:
    turn = iter(range(10_000))
    guard = Guard(POLICY, Watched(lambda texts: next(turn) % 2 == 0))
    for number in range(40):
        verdict = guard.check(f"{OFF}, please, number {number}")
        assert verdict.action in ("flag", "block")
        assert (verdict.action == "block") == (verdict.status == "unavailable")


def unusable(answer: Any) -> Callable[[list[str]], Any]:
    return lambda texts: answer(len(texts))


@pytest.mark.parametrize(
    "function",
    [
        unusable(lambda count: np.full((count, 8), np.nan)),
        unusable(lambda count: np.zeros((count, 8))),
        unusable(lambda count: np.ones((count + 1, 8))),
        unusable(lambda count: "vectors"),
        unusable(lambda count: None),
        unusable(lambda count: 1 / 0),
    ],
    ids=["nan", "zeros", "too many", "text", "none", "raises"],
)
@pytest.mark.parametrize("scoring", ["calibrated", "cosine"])
def test_an_encoder_with_unusable_vectors_is_one_that_fails(function: Any, scoring: str) -> None:
    verdict = Guard(policy(scoring=scoring), function).check(OFF)
    assert code(verdict) == ("block", "ERROR", "none", "unavailable")
    with_vector = Guard(policy(scoring=scoring), function).check(OFF, vector=[1.0] * 8)
    assert with_vector.status == "unavailable"


class Broken(Axes):
    """An encoder of the host's own that keeps the port's letter, not its promise: its messages' vectors are not finite."""

    def embed(self, texts: Sequence[str]) -> Array:
        vectors = super().embed(texts)
        vectors[[index for index, text in enumerate(texts) if "poison" in text]] = np.nan
        return vectors


@pytest.mark.parametrize("sides", [{"allowed": ["billing"]}, {"blocked": ["violence"]}, {"blocked": ["poison"]}])
def test_vectors_that_are_not_finite_never_pass_in_silence(sides: dict[str, Any]) -> None:
    strict = Policy(**sides, scoring="cosine", on_error=OnError(allowed="block", blocked="block"))
    guard = Guard(strict, Broken("billing", "violence"))
    verdict = guard.check("what a poisonous poem")
    assert verdict.action == "block"
    assert verdict.status in ("degraded", "unavailable")


def test_a_fit_made_with_another_encoder_is_left_out_and_every_verdict_says_so() -> None:
    fitted = Fitted(
        space="other[8]", target="best balanced accuracy", rows={"allowed": 10, "off_topic": 10}, on="2026-01-01",
        allowed=FittedSide(slope=0.0, offset=-50.0, head="", threshold=0.3),
    )  # fmt: skip
    verdict = Guard(policy(fitted=fitted, allowed_threshold=0.9)).check(ON)
    assert any("other[8]" in note and "calibrate again" in note for note in verdict.notes)
    assert replace(verdict, notes=()) == GUARD.check(ON)
    here = Guard(policy(fitted=fitted.model_copy(update={"space": str(MINILM.space)}))).check(ON)
    assert here.action == "flag"
    assert not any("calibrate again" in note for note in here.notes)


# The same policy on two encoders.


class Tilted:
    """The bundled encoder, rotated and squeezed into a cone, as many encoders are: every cosine is between 0.6 and 1."""

    languages = MINILM.languages
    space = Space("tilted", 384)

    def __init__(self) -> None:
        random = np.random.default_rng(7)
        self.turn, _ = np.linalg.qr(random.standard_normal((384, 384)))
        self.cone = unit(random.standard_normal(384)) * 1.3

    def embed(self, texts: Sequence[str]) -> Array:
        return unit(MINILM.embed(texts) @ self.turn + self.cone)

    def windows(self, text: str) -> list[tuple[int, int]]:
        return MINILM.windows(text)


def bench(task: str) -> list[str]:
    import json
    from pathlib import Path

    path = Path(__file__).resolve().parents[2] / "bench" / "data" / f"{task}.jsonl"
    return [json.loads(line)["text"] for line in path.read_text("utf-8").splitlines()]


@pytest.mark.slow
def test_the_same_policy_gives_the_same_action_on_an_encoder_whose_cosines_are_all_high() -> None:
    texts = bench("shop")[::2]
    embedders: Iterable[Embedder] = (MINILM, Tilted())
    ours, theirs = ([v.action for v in Guard(POLICY, encoder).check_many(texts)] for encoder in embedders)
    assert np.mean([a == b for a, b in zip(ours, theirs, strict=True)]) >= 0.9
