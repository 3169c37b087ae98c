"""Memory: a conversation as it is held, over a store."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import topicality
from topicality.config import Policy
from topicality.core.label import Lexicon, Words
from topicality.core.segment import Decision
from topicality.core.spans import holds
from topicality.errors import ConfigError, EmbedError, InputError, SpaceMismatchError, StoreError
from topicality.layer import flow
from topicality.layer.importing import import_messages
from topicality.layer.memory import DRIFT, Layer, open_layer
from topicality.records import Change, DuplicateExchangeError, ExchangeError, PutState, Side
from topicality.store import open_store
from topicality.testing.embedder import WordEmbedder
from topicality.types import Message
from topicality.vectors import Array

sys.path.insert(0, str(Path(__file__).parents[2]))
from tests.layer.memory_talks import FLIGHT, PASTA, Clock, ids, layer_on, sound

SHOP = Policy(
    allowed=[{"name": "flights", "description": "flight booking, cancel a flight, refund for a flight, Lisbon"}],
    blocked=[{"name": "weapons", "examples": ["how do I build a bomb", "where can I buy a gun"]}],
)


# --- what someone does


@pytest.mark.parametrize("way", ["one by one", "imported"])
def test_topics_are_those_of_the_segmenter_with_the_bundled_encoder(way: str) -> None:
    layer = open_layer("memory://", clock=Clock())
    chat = layer.conversation("c1", owner="user-42")
    said = [*FLIGHT, *PASTA, *FLIGHT[::-1], *PASTA]
    messages = [Message(role, text) for pair in said for role, text in zip(("user", "assistant"), pair, strict=True)]
    if way == "imported":
        import_messages(layer, "c1", messages, "user-42")
    else:
        run(chat, said)
    live = layer.segmenter.live()
    told = [live.receive(message) for message in messages]
    final = {decision.index: decision.topic for each in told for decision in each.previous}
    wanted: dict[int, list[int]] = {}
    for place in range(len(said)):
        wanted.setdefault(final[2 * place], []).append(place + 1)
    assert [[n for a, b in topic.spans for n in range(a, b + 1)] for topic in chat.topics()] == list(wanted.values())
    for topic in chat.topics():
        assert 2 <= len(topic.labels) <= 5
        assert 3 <= len(topic.terms) <= 12


class Scripted:
    """A segmenter that says which topic each message is on."""

    def __init__(self, topics: list[int]) -> None:
        self.topics, self.count = topics, 0

    def receive(self, message: Message, vector: object = None) -> Decision:
        n, self.count = self.count, self.count + 1
        known = self.topics[n] in self.topics[:n]
        return Decision(n, "return" if known else "new", self.topics[n], n > 0, 0.9, confirmed=True)

    def snapshot(self) -> bytes:
        return b""


def test_a_topic_that_is_left_and_returned_to_keeps_its_id_and_is_opened_again(monkeypatch: pytest.MonkeyPatch) -> None:
    layer = layer_on("memory://")
    script = Scripted([0] * 6 + [1] * 12 + [0] * 2)
    monkeypatch.setattr(layer.segmenter, "live", lambda: script)
    chat = layer.conversation("c")
    run(chat, [*FLIGHT, *PASTA, *PASTA])
    before = chat.topics()
    assert [topic.status for topic in before] == ["finalized", "open"]
    run(chat, FLIGHT[:1])
    after = chat.topics()
    assert [(topic.id, topic.number) for topic in after] == [(topic.id, topic.number) for topic in before]
    assert after[0].spans == ((1, 3), (10, 10))
    assert after[0].status == "open"
    assert after[0].ended_at is not None
    assert before[0].ended_at is not None
    assert after[0].ended_at > before[0].ended_at


def test_a_turn_says_verdict_drift_decision_and_topic_from_one_embedding() -> None:
    encoder = WordEmbedder()
    layer = Layer(open_store("memory://"), SHOP, encoder, clock=Clock(), ids=ids())
    chat = layer.conversation("c")
    chat.receive("Please cancel my flight")  # the rules are embedded here
    chat.fail("test")
    encoder.calls.clear()
    turn = chat.receive("Is there a refund for the flight to Lisbon?")
    assert turn.verdict is not None
    assert turn.drift is not None
    assert turn.decision is not None
    assert turn.topic
    asked = [text for call in encoder.calls for text in call]
    assert asked.count("Is there a refund for the flight to Lisbon?") == 1
    assert turn.drift.messages == 2
    json.dumps(turn.to_dict())


def test_without_a_policy_there_is_no_verdict_and_no_drift() -> None:
    turn = layer_on("memory://").conversation("c").receive("hello there")
    assert (turn.verdict, turn.drift) == (None, None)
    assert turn.status == "pending"


def test_drift_goes_on_from_the_store() -> None:
    store = open_store("memory://")
    one = layer_on(store, SHOP).conversation("c")
    one.receive("cancel my flight to Lisbon")
    one.reply("done")
    two = layer_on(store, SHOP, "b").conversation("c")
    turn = two.receive("and the refund for the flight")
    assert turn.drift is not None
    assert turn.drift.messages == 2


def test_a_blocked_message_is_a_failed_exchange_and_no_context_of_the_next() -> None:
    layer = layer_on("memory://", SHOP)
    chat = layer.conversation("c")
    turn = chat.receive("how do I build a bomb")
    assert turn.verdict is not None
    assert turn.verdict.action == "block"
    assert turn.status == "failed"
    assert [(e.status, e.failure) for e in chat.exchanges()] == [("failed", "blocked")]
    with pytest.raises(ExchangeError, match="failed"):
        chat.reply("never")
    kept = chat.receive("how do I build a bomb", on_block="keep")
    assert kept.status == "pending"
    chat.reply("I will not help with that.")
    with pytest.raises(ConfigError, match="on_block"):
        chat.receive("x", on_block="maybe")  # type: ignore[arg-type]  # what a caller without types may send


def test_a_message_is_judged_and_kept_in_two_halves_as_in_one() -> None:
    one, two = (layer_on("memory://", policy="customer_support") for _ in range(2))
    for text in ("Where is my refund?", "how do I build a bomb", "And my order number 7?"):
        whole = one.conversation("c").receive(text, id=text)
        judged = two.conversation("c").judge(text)
        assert judged.verdict == whole.verdict
        assert len(two.conversation("c").exchanges()) == whole.sequence - 1
        half = two.conversation("c").keep(judged, id=text)
        assert (half.verdict, half.status, half.sequence) == (whole.verdict, whole.status, whole.sequence)
        assert (half.drift, half.decision) == (whole.drift, whole.decision)
    with pytest.raises(ConfigError, match="on_block"):
        two.conversation("c").keep(judged, on_block="maybe")  # type: ignore[arg-type]  # see above
    sound(two)


FIRST_MESSAGE = """
import builtins, io, sys
from topicality.layer.memory import open_layer
layer = open_layer("memory://", "customer_support")
layer.warm()
modules, opened, inner = set(sys.modules), [], io.open
def noting(file, *args, **keywords):
    opened.append(str(file))
    return inner(file, *args, **keywords)
io.open = builtins.open = noting
chat = layer.conversation("c")
chat.receive("Where is my refund?")
chat.reply("It is on its way.")
chat.receive("And the invoice?")
print(opened, sorted(m for m in set(sys.modules) - modules if m.startswith("topicality")))
"""


def test_a_warm_layer_loads_nothing_with_its_first_message() -> None:
    done = subprocess.run([sys.executable, "-c", FIRST_MESSAGE], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[] []"


# --- the state machine, and what bad input gets


def test_an_exchange_is_completed_once_and_failed_once() -> None:
    chat = layer_on("memory://").conversation("c")
    with pytest.raises(ExchangeError, match="receive a message first"):
        chat.reply("to what?")
    turn = chat.receive("a question about pasta")
    with pytest.raises(ExchangeError, match="not known"):
        chat.reply("x", exchange="nobody")
    chat.reply("boil it")
    for wrong in (
        lambda: chat.reply("again"),
        lambda: chat.fail("late"),
        lambda: chat.reply("x", exchange=turn.exchange),
    ):
        with pytest.raises(ExchangeError, match="completed"):
            wrong()
    failed = chat.receive("another one")
    chat.fail("the model is down")
    with pytest.raises(ExchangeError, match="failed"):
        chat.reply("too late", exchange=failed.exchange)
    assert [e.status for e in chat.exchanges()] == ["completed", "failed"]


def test_the_same_id_again_changes_nothing_and_another_text_is_refused() -> None:
    layer = layer_on("memory://", SHOP)
    chat = layer.conversation("c")
    first = chat.receive("cancel my flight", id="host-1")
    before = list(layer.export())
    again = chat.receive("cancel my flight", id="host-1")
    assert list(layer.export()) == before
    assert (again.sequence, again.topic, again.status) == (first.sequence, first.topic, "pending")
    with pytest.raises(DuplicateExchangeError):
        chat.receive("something else", id="host-1")
    assert list(layer.export()) == before


@pytest.mark.parametrize("text", ["NUL \0 inside", "half a pair \ud800", 7, None])
def test_text_that_no_store_keeps_is_refused_and_nothing_changes(text: object) -> None:
    layer = layer_on("memory://", SHOP)
    chat = layer.conversation("c")
    chat.receive("cancel my flight")
    before = list(layer.export())
    with pytest.raises(InputError):
        chat.receive(text)  # type: ignore[arg-type]  # what a caller without types may send
    with pytest.raises(InputError):
        chat.reply(text)  # type: ignore[arg-type]  # the same
    assert list(layer.export()) == before
    chat.reply("works as before")
    sound(layer)


@pytest.mark.parametrize(("owner", "name"), [("", "c"), ("o", ""), ("o" * 201, "c")])
def test_a_conversation_needs_an_owner_and_an_id(owner: str, name: str) -> None:
    layer = layer_on("memory://")
    with pytest.raises(InputError):
        layer.conversation(name, owner).receive("hello")


def test_an_encoder_that_fails_changes_nothing() -> None:
    class Failing(WordEmbedder):
        down = False

        def embed(self, texts: object) -> Array:
            if self.down:
                raise EmbedError("down")
            return super().embed(texts)  # type: ignore[arg-type]  # passed on

    encoder = Failing()
    layer = Layer(open_store("memory://"), None, encoder)
    chat = layer.conversation("c")
    chat.receive("about pasta")
    before = list(layer.export())
    encoder.down = True
    with pytest.raises(EmbedError):
        chat.reply("boil it")
    with pytest.raises(EmbedError):
        chat.receive("more")
    assert list(layer.export()) == before


def test_ids_that_repeat_themselves_are_noticed() -> None:
    store = open_store("memory://")
    layer_on(store).conversation("c").receive("about pasta")
    chat = layer_on(store).conversation("c")
    taken = 0

    def more() -> None:
        nonlocal taken
        for number in range(9):
            chat.receive("about flights", id=f"other {number}")
            taken += 1

    with pytest.raises(InputError, match="repeat"):  # sooner or later, and before anything is lost
        more()
    assert len(chat.exchanges()) == taken + 1


def test_a_blank_message_inherits_its_topic() -> None:
    layer = layer_on("memory://")
    chat = layer.conversation("c")
    first = chat.receive("Which sauce goes with spaghetti?")
    chat.reply("")
    second = chat.receive("   ")
    chat.reply("Tomato sauce.")
    assert first.topic == second.topic
    sound(layer)


def test_a_store_of_another_space_or_a_closed_one_is_told_apart(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'chat.db'}"
    layer = layer_on(url)
    layer.conversation("c").receive("hello")
    layer.close()
    layer.close()
    with pytest.raises(StoreError, match="closed"):
        layer.conversation("c").receive("again")
    with pytest.raises(SpaceMismatchError):
        open_layer(url, embedder=WordEmbedder(seed=1))
    with pytest.raises(ConfigError):
        open_layer("mysql://somewhere")
    (tmp_path / "broken.db").write_bytes(b"not a database at all" * 100)
    with pytest.raises(StoreError, match="not an SQLite database"):
        open_layer(str(tmp_path / "broken.db"), embedder=WordEmbedder())


# --- states in the store


def run(chat: topicality.Conversation, said: list[tuple[str, str]]) -> list[tuple[object, ...]]:
    out: list[tuple[object, ...]] = []
    for question, answer in said:
        turn = chat.receive(question)
        out.append((turn.decision, turn.topic, turn.drift, turn.verdict))
        if turn.status == "pending":
            back = chat.reply(answer)
            out.append((back.decision, back.topic))
    return out


LONG = [*FLIGHT, *PASTA, *FLIGHT, ("ok", "fine"), *PASTA] * 3  # more messages than the ring holds


@pytest.mark.slow
def test_a_restart_at_any_place_gives_the_same_decisions_and_the_same_store() -> None:
    whole = layer_on("memory://", SHOP)
    expected = run(whole.conversation("c"), LONG)
    store, makes, clock = open_store("memory://"), ids(), Clock()
    found = []
    for place, pair in enumerate(LONG):
        if place % 7 == 0 or place in (31, 32, 33, 34):
            layer = Layer(store, SHOP, WordEmbedder(), clock=clock, ids=makes)
        found += run(layer.conversation("c"), [pair])
    assert found == expected
    assert list(store.export()) == list(whole.export())
    sound(whole)


@pytest.mark.slow
def test_two_layers_taking_turns_go_on_from_each_other() -> None:
    whole = layer_on("memory://")
    expected = run(whole.conversation("c"), LONG)
    store, makes, clock = open_store("memory://"), ids(), Clock()
    both = [Layer(store, None, WordEmbedder(), clock=clock, ids=makes).conversation("c") for _ in range(2)]
    found = []
    for place, pair in enumerate(LONG):
        found += run(both[(place // 3) % 2], [pair])
    assert found == expected
    assert list(store.export()) == list(whole.export())


def test_a_process_that_goes_on_embeds_nothing_again() -> None:
    store = open_store("memory://")
    run(layer_on(store).conversation("c"), LONG[:20])
    encoder = WordEmbedder()
    chat = Layer(store, None, encoder, ids=ids("b")).conversation("c")
    chat.receive("Is there a refund?")
    assert [text for call in encoder.calls for text in call] == ["Is there a refund?"]


def test_a_message_that_was_refused_leaves_no_trace_in_what_a_process_remembers() -> None:
    one, two = layer_on("memory://"), layer_on("memory://")
    for place, (question, answer) in enumerate(LONG[:20]):
        here, there = one.conversation("c"), two.conversation("c")
        if place % 5 == 2:
            with pytest.raises(InputError):
                here.receive("Boil the pasta \0 now")
        first, second = here.receive(question), there.receive(question)
        assert first.decision == second.decision
        if place % 3 == 1:
            with pytest.raises(InputError):
                here.reply("Nine \0 minutes")
        assert here.reply(answer).decision == there.reply(answer).decision
    assert [t.spans for t in one.conversation("c").topics()] == [t.spans for t in two.conversation("c").topics()]
    states = [json.loads(layer.store.state("default", "c", "topics") or b"") for layer in (one, two)]
    assert states[0]["assigned"] == states[1]["assigned"] == 20
    assert one.store.state("default", "c", "lexicon") == two.store.state("default", "c", "lexicon")


def test_a_topic_has_labels_from_its_first_exchange_on() -> None:
    layer = layer_on("memory://")
    chat = layer.conversation("c")
    run(chat, FLIGHT[:1])
    (topic,) = chat.topics()
    assert topic.labels
    assert all(label.lower() in " ".join(FLIGHT[0]).lower() for label in topic.labels)
    assert not Words.load(
        layer.store.state("default", "c", f"words:{topic.id}") or b""
    ).docs  # counted later, with others
    run(chat, FLIGHT[1:3] + PASTA[:2])
    assert Words.load(layer.store.state("default", "c", f"words:{topic.id}") or b"").docs
    assert all(topic.labels for topic in chat.topics() if topic.count > 1)


def test_each_exchange_by_another_process_is_as_all_by_one(caplog: pytest.LogCaptureFixture) -> None:
    shared, alone = open_store("memory://"), layer_on("memory://")
    for number, pair in enumerate((FLIGHT + PASTA) * 2):
        run(layer_on(shared, prefix=f"p{number}-").conversation("c"), [pair])
        run(alone.conversation("c"), [pair])
    assert not caplog.records  # what is kept can be read at every point
    one, two = layer_on(shared).conversation("c").topics(), alone.conversation("c").topics()
    assert [(t.spans, t.labels, t.terms, t.status) for t in one] == [
        (t.spans, t.labels, t.terms, t.status) for t in two
    ]


def test_every_exchange_is_counted_once_in_the_words_of_its_topic_and_conversation() -> None:
    for imported in (False, True):
        layer = layer_on("memory://")
        chat = layer.conversation("c")
        if imported:
            said = [
                Message(role, text) for pair in LONG for role, text in zip(("user", "assistant"), pair, strict=True)
            ]
            import_messages(layer, "c", said)
        run(chat, LONG)
        unread = flow.unread_of(layer.store.state("default", "c", flow.FLOW))
        lexicon = Lexicon.load(layer.store.state("default", "c", "lexicon") or b"")
        total = len(LONG) * (1 + imported)
        assert lexicon.exchanges == total - len(unread)
        spoken = [e for e in chat.exchanges() if "Lisbon" in e.user.text and e.sequence not in dict(unread)]
        assert lexicon.counts["lisbon"] == len(spoken)
        for topic in chat.topics():
            words = Words.load(layer.store.state("default", "c", f"words:{topic.id}") or b"")
            assert words.docs == topic.count - sum(name == topic.id for _, name in unread)


@pytest.mark.slow
@pytest.mark.parametrize("name", [flow.FLOW, flow.SEGMENT, "flow:3", "topics", "lexicon", DRIFT])
@pytest.mark.parametrize("value", [b"damaged", b'{"version": 99}', None])
def test_a_state_that_cannot_be_read_begins_anew_and_nothing_is_lost(name: str, value: bytes | None) -> None:
    store = open_store("memory://")
    layer = layer_on(store, SHOP)
    run(layer.conversation("c"), LONG[:34])
    before = {topic.id: topic.spans for topic in layer.conversation("c").topics()}
    store.apply(Change("damage", "default", "c", (PutState(name, value),)))
    fresh = layer_on(store, SHOP, "b")
    chat = fresh.conversation("c")
    turn = chat.receive("Is there a refund for the flight to Lisbon?")
    chat.reply("Yes, for the flight to Lisbon.")
    if value is not None and name in (flow.FLOW, flow.SEGMENT):
        assert turn.notes
    if value is not None and name == DRIFT:
        assert turn.notes
        assert turn.drift is not None
        assert turn.drift.messages == 1
    after = {topic.id: topic.spans for topic in chat.topics()}
    assert before.keys() <= after.keys()
    assert all(holds(after[key], first) for key, spans in before.items() for first, _ in spans)
    sound(fresh)


OPERATIONS = st.lists(
    st.one_of(
        st.tuples(st.just("say"), st.integers(0, len(FLIGHT) + len(PASTA) - 1)),
        st.tuples(st.just("pend"), st.integers(0, 5)),
        st.tuples(st.just("answer"), st.integers(0, 9)),
        st.tuples(st.just("fail"), st.integers(0, 9)),
        st.tuples(st.just("delete"), st.integers(0, 30)),
        st.tuples(st.just("edit"), st.integers(0, 30)),
        st.tuples(st.just("restart"), st.just(0)),
    ),
    max_size=25,
)


def perform(layer: Layer, operation: str, number: int) -> None:
    chat = layer.conversation("c")
    said = [*FLIGHT, *PASTA][number % 6]
    everything = chat.exchanges()
    pending = [e for e in everything if e.status == "pending"]
    match operation:
        case "say":
            chat.receive(said[0])
            chat.reply(said[1])
        case "pend":
            chat.receive(said[0])
        case "answer" if pending:
            chat.reply(said[1], exchange=pending[number % len(pending)].id)
        case "fail" if pending:
            chat.fail("no", exchange=pending[number % len(pending)].id)
        case "delete" if everything:
            chat.delete(everything[number % len(everything)].id)
        case "edit" if everything:
            chosen = everything[number % len(everything)]
            side: Side = "assistant" if chosen.reply is not None and number % 2 else "user"
            chat.edit(chosen.id, f"the text about basil number {number}", side=side)


@pytest.mark.slow
@settings(max_examples=25)
@given(OPERATIONS)
def test_whatever_is_done_topics_are_sound_and_a_restart_changes_nothing(operations: list[tuple[str, int]]) -> None:
    store, makes, clock = open_store("memory://"), ids(), Clock()
    layer = Layer(store, None, WordEmbedder(), clock=clock, ids=makes)
    whole = layer_on("memory://")
    for operation, number in operations:
        if operation == "restart":
            layer = Layer(store, None, WordEmbedder(), clock=clock, ids=makes)
            continue
        perform(layer, operation, number)
        perform(whole, operation, number)
        sound(layer)
    assert list(store.export()) == list(whole.store.export())


def test_threads_on_one_conversation_lose_nothing(tmp_path: Path) -> None:
    layer = layer_on(str(tmp_path / "chat.db"))
    errors: list[BaseException] = []

    def work(number: int) -> None:
        chat = layer.conversation("c")
        try:
            for place in range(6):
                question, answer = [*FLIGHT, *PASTA][(number + place) % 6]
                chat.receive(question, id=f"{number}-{place}")
                chat.reply(answer)
        except BaseException as error:  # noqa: BLE001 - shown below
            errors.append(error)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    assert {e.id for e in layer.conversation("c").exchanges()} == {f"{a}-{b}" for a in range(4) for b in range(6)}
    sound(layer)
    layer.close()


# --- owners, erasing, exporting


def test_owners_see_nothing_of_each_other() -> None:
    layer = layer_on("memory://")
    run(layer.conversation("c", "ann"), FLIGHT)
    run(layer.conversation("c", "bob"), PASTA)
    assert "Lisbon" not in layer.recall("flight to Lisbon", 500, owner="bob").text
    assert "Lisbon" in layer.recall("flight to Lisbon", 500, owner="ann").text
    assert layer.recall("flight to Lisbon", 500, owner="eve").nothing_found
    context = layer.conversation("c", "bob").context(500, question="flight to Lisbon?")
    assert all("QX81" not in message.text for message in context.messages)
    assert "Lisbon" not in layer.conversation("c", "bob").directory(500).text


def test_an_erased_owner_is_gone_and_a_new_conversation_begins_at_one() -> None:
    layer = layer_on("memory://", SHOP)
    run(layer.conversation("c", "ann"), LONG[:20])
    run(layer.conversation("c", "bob"), FLIGHT)
    bob = list(layer.export("bob"))
    assert layer.erase("ann") == 20
    assert layer.conversation("c", "ann").topics() == []
    assert not any("ann" in line for line in layer.export())
    assert list(layer.export("bob")) == bob
    turn = layer.conversation("c", "ann").receive("a flight to Lisbon")
    assert turn.sequence == 1
    assert turn.drift is not None
    assert turn.drift.messages == 1
    layer.conversation("c", "ann").reply("which one?")
    sound(layer, owner="ann")


def test_an_export_loaded_elsewhere_is_byte_equal_and_goes_on_the_same(tmp_path: Path) -> None:
    one = layer_on("memory://", SHOP)
    run(one.conversation("c"), LONG[:25])
    one.conversation("c").receive("still open about pasta")
    lines = list(one.export())
    two = layer_on(str(tmp_path / "chat.db"), SHOP)
    assert two.load(lines).exchanges == 26
    assert two.load(lines).known == 26
    assert list(two.export()) == lines
    here, there = one.conversation("c").reply("answer"), two.conversation("c").reply("answer")
    assert (here.decision, here.topic) == (there.decision, there.topic)
    two.close()


def test_an_edit_moves_words_vectors_and_labels() -> None:
    layer = layer_on("memory://")
    chat = layer.conversation("c")
    run(chat, FLIGHT)
    target = chat.exchanges()[1]
    chat.edit(target.id, "The zebra ate the violin", side="user")
    chat.edit(target.id, "A violin for a zebra", side="assistant")
    assert "QX81" not in "".join(line for line in layer.export() if '"kind":"passage"' in line)
    assert "zebra" in chat.recall("zebra violin", 200).text
    assert any("zebra" in label for topic in chat.topics() for label in (*topic.labels, *topic.terms))
    with pytest.raises(ExchangeError):
        chat.edit("nobody", "x")
    sound(layer)


def test_nothing_of_a_deleted_exchange_stays_in_the_file(tmp_path: Path) -> None:
    path = tmp_path / "chat.db"
    layer = layer_on(str(path))
    chat = layer.conversation("c")
    run(chat, FLIGHT)
    turn = chat.receive("my password is xylophonezebra and the flight is late")
    chat.reply("xylophonezebra is noted")
    run(chat, PASTA)
    assert b"xylophonezebra" in path.read_bytes() + path.with_name("chat.db-wal").read_bytes()
    chat.delete(turn.exchange)
    chat.delete(turn.exchange)
    everything = "".join(layer.export())
    assert "xylophonezebra" not in everything
    for state in ("topics", "lexicon", "latest", flow.FLOW, flow.SEGMENT, *(f"flow:{n}" for n in range(flow.RING))):
        assert b"xylophonez" not in (layer.store.state("default", "c", state) or b"")
    assert b"xylophonez" not in b"".join(file.read_bytes() for file in tmp_path.iterdir())
    sound(layer)
    layer.close()


def test_a_pending_exchange_times_out() -> None:
    layer = layer_on("memory://")
    chat = layer.conversation("c")
    chat.receive("a question")
    assert layer.sweep(10_000.0) == 0
    assert layer.sweep(1.0) == 1
    assert [e.failure for e in chat.exchanges()] == ["timed out"]
    assert layer.conversation("c").receive("another").sequence == 2
