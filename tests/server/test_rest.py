"""What REST does: judge, keep, recall, export. Who may: test_rest_owners. Errors: test_rest_errors."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import pytest
from tests.server.rest_world import MARKER, World, world
from tests.server.test_rest_owners import LABELLED, NDJSON, TALK

from topicality.records import Scope
from topicality.types import Message


def test_check_is_the_guards_own_verdict(shared: World) -> None:
    guard = shared.layer.guard
    assert guard is not None
    for text in ("my flight to Lisbon", "bombs and explosives", "a poem about winter", ""):
        found = shared.ask("POST", "/check", json={"text": text}).json()
        assert found == json.loads(json.dumps(guard.check(text).to_dict()))
    context = [{"role": "assistant", "text": "Which flight to Lisbon?"}]
    told = shared.ask("POST", "/check", json={"text": "the one on Monday", "context": context}).json()
    assert told == json.loads(json.dumps(guard.check("the one on Monday", context).to_dict()))
    reply = shared.ask("POST", "/check", json={"text": "bombs", "role": "assistant"}).json()
    assert reply == json.loads(json.dumps(guard.check("bombs", role="assistant").to_dict()))


def test_many_are_the_same_as_one_by_one(shared: World) -> None:
    texts = ["my flight to Lisbon", "bombs and explosives", "a poem"]
    many = shared.ask("POST", "/check/many", json={"items": [{"text": text} for text in texts]}).json()["verdicts"]
    ones = [shared.ask("POST", "/check", json={"text": text}).json() for text in texts]
    for name in ("action", "reason_code", "rule", "nearest"):
        assert [one[name] for one in many] == [one[name] for one in ones]
    assert [one["probability"] for one in many] == pytest.approx([one["probability"] for one in ones])


def test_an_exchange_is_begun_and_replied_to(here: World) -> None:
    begun = here.ask("POST", "/conversations/new/exchanges", json={"text": "Is my flight late?", "id": "m1", "at": 5.5})
    assert begun.status_code == 201
    turn = begun.json()
    assert (turn["exchange"], turn["sequence"], turn["status"]) == ("m1", 1, "pending")
    assert turn["verdict"]["action"] == here.layer.guard.check("Is my flight late?").action  # type: ignore[union-attr]
    assert 0 <= turn["drift"]["level"] <= 1
    assert turn["decision"]["kind"] == "new"
    done = here.ask("POST", "/conversations/new/exchanges/m1/reply", json={"text": "By an hour.", "name": "bot"}).json()
    assert (done["exchange"], done["status"], done["topic"]) == ("m1", "completed", turn["topic"])
    kept = here.ask("GET", "/conversations/new/exchanges/m1").json()
    assert (kept["user"]["text"], kept["user"]["at"], kept["reply"]["text"]) == (
        "Is my flight late?",
        5.5,
        "By an hour.",
    )
    assert kept["reply"]["name"] == "bot"


def test_the_same_exchange_again_changes_nothing(here: World) -> None:
    for _ in range(2):
        again = here.ask("POST", "/conversations/new/exchanges", json={"text": "Late?", "id": "m1"})
        assert (again.status_code, again.json()["sequence"]) == (201, 1)
    other = here.ask("POST", "/conversations/new/exchanges", json={"text": "Early?", "id": "m1"})
    assert (other.status_code, other.json()["title"]) == (409, "duplicate_exchange")
    assert len(here.ask("GET", "/conversations/new/exchanges").json()["exchanges"]) == 1


def test_a_blocked_message_is_kept_as_failed(here: World) -> None:
    turn = here.ask("POST", "/conversations/new/exchanges", json={"text": "bombs and explosives"}).json()
    assert (turn["status"], turn["verdict"]["action"]) == ("failed", "block")
    reply = here.ask("POST", f"/conversations/new/exchanges/{turn['exchange']}/reply", json={"text": "No."})
    assert (reply.status_code, reply.json()["title"]) == (409, "exchange_state")


def test_an_exchange_fails(here: World) -> None:
    failed = here.ask("POST", f"{TALK}/exchanges/open/fail", json={"reason": "model_down"}).json()
    assert (failed["status"], failed["failure"]) == ("failed", "model_down")
    assert here.ask("POST", f"{TALK}/exchanges/open/fail", json={"reason": "again"}).status_code == 409
    assert here.ask("POST", f"{TALK}/exchanges/none/fail", json={"reason": "again"}).status_code == 404


def test_pages_have_no_gaps(here: World) -> None:
    for number in range(4):
        here.layer.conversation(f"c{number}", "alice").receive("hello")
    for path, name, key in (
        ("/conversations", "conversations", "id"),
        (f"{TALK}/exchanges", "exchanges", "sequence"),
        (f"{TALK}/topics", "topics", "number"),
    ):
        everything = here.ask("GET", path).json()
        assert everything["next"] is None
        found: list[Any] = []
        after: Any = None
        while True:
            page = here.ask("GET", path, params={"limit": 2, **({} if after is None else {"after": after})}).json()
            assert len(page[name]) <= 2
            found += page[name]
            after = page["next"]
            if after is None:
                break
        assert found == everything[name]
        assert len(found) > 2 or name == "topics"
        assert [one[key] for one in found] == sorted(one[key] for one in found)


def test_exchanges_by_status(here: World) -> None:
    def ids(*status: str) -> list[str]:
        page = here.ask("GET", f"{TALK}/exchanges", params={"status": list(status)}).json()
        return [one["id"] for one in page["exchanges"]]

    assert ids("pending") == ["open"]
    here.ask("DELETE", f"{TALK}/exchanges/e%2F2")
    assert ids("deleted") == ["e/2"]
    assert ids() == ["e/1", "e/3", "e/4", "e/5", "e/6", "open"]
    assert ids("deleted", "pending") == ["e/2", "open"]


def test_a_deleted_exchange_leaves_no_word(here: World) -> None:
    here.layer.conversation("trip/1", "alice").edit("e/1", "The word is quagga.")
    assert "quagga" in here.ask("POST", "/recall", json={"question": "quagga"}).json()["text"]
    for _ in range(2):
        assert here.ask("DELETE", f"{TALK}/exchanges/e%2F1").status_code == 204
    assert not any("quagga" in line for line in here.everything("alice"))
    gone = here.ask("GET", f"{TALK}/exchanges/e%2F1").json()
    assert (gone["status"], gone["user"]["text"], gone["reply"]) == ("deleted", "", None)
    assert here.ask("PATCH", f"{TALK}/exchanges/e%2F1", json={"text": "x"}).status_code == 409


def test_editing_changes_one_side(here: World) -> None:
    edited = here.ask("PATCH", f"{TALK}/exchanges/e%2F1", json={"text": "redacted", "side": "assistant"}).json()
    assert edited["reply"]["text"] == "redacted"
    assert MARKER in edited["user"]["text"]
    assert here.ask("PATCH", f"{TALK}/exchanges/open", json={"text": "x", "side": "assistant"}).status_code == 409


def test_recall_is_the_layers(shared: World) -> None:
    shared.layer.clock.at = 1e9  # type: ignore[attr-defined]  # the clock of the tests
    everywhere = shared.ask("POST", "/recall", json={"question": "salt for pasta", "budget": 200}).json()
    assert "salt" in everywhere["text"]
    assert everywhere["tokens"] <= 200
    inside = shared.ask("POST", "/recall", json={"question": "salt for pasta", "conversation": "trip/1"}).json()
    assert {one["conversation"] for one in inside["passages"]} == {"trip/1"}
    assert shared.ask("POST", "/recall", json={"question": "x", "conversation": "nope"}).status_code == 404


def test_context_ends_with_what_is_to_be_answered(shared: World) -> None:
    pending = shared.ask("POST", f"{TALK}/context", json={"system": "Be brief."}).json()
    assert pending["messages"][0] == {"role": "system", "content": "Be brief.", "name": None}
    assert pending["messages"][-1]["content"].startswith("Is the refund there?")
    asked = shared.ask("POST", f"{TALK}/context", json={"question": "How much salt?", "budget": 200}).json()
    assert asked["messages"][-1]["content"] == "How much salt?"
    assert asked["tokens"] <= 200
    fresh = shared.ask("POST", "/conversations/fresh/context", json={"question": "Hello?"}).json()
    assert [one["content"] for one in fresh["messages"]] == ["Hello?"]
    small = shared.ask("POST", f"{TALK}/context", json={"question": "How much salt?", "budget": 1})
    assert (small.status_code, small.json()["title"]) == (400, "input")


def test_topics_and_the_directory(shared: World) -> None:
    topics = shared.ask("GET", f"{TALK}/topics").json()["topics"]
    known = shared.layer.conversation("trip/1", "alice").topics()
    assert [topic["id"] for topic in topics] == [topic.id for topic in known]
    assert sum(topic["exchanges"] for topic in topics) == 6
    listed = shared.ask("POST", f"{TALK}/directory", json={"budget": 300, "question": "the flight"}).json()
    assert set(listed["topics"]) == {topic["id"] for topic in topics}
    assert listed["tokens"] <= 300


def test_drift_is_what_the_last_message_read(here: World) -> None:
    turn = here.ask("POST", "/conversations/d/exchanges", json={"text": "a poem about winter"}).json()
    here.layer.clock.at -= 120  # type: ignore[attr-defined]  # the clock of the tests moves when it is asked
    read = here.ask("GET", "/conversations/d/drift").json()
    changing = {"alarm", "counted", "restarted"}
    assert {k: v for k, v in read.items() if k not in changing} == {
        k: v for k, v in turn["drift"].items() if k not in changing
    }
    assert here.ask("GET", "/conversations/d/drift").json()["messages"] == 1


def test_without_a_policy_nothing_is_judged() -> None:
    with world(policy=None) as here:
        for method, path, body in (
            ("POST", "/check", {"text": "x"}),
            ("POST", "/check/many", {"items": [{"text": "x"}]}),
            ("POST", "/calibrate", {"rows": LABELLED}),
            ("GET", f"{TALK}/drift", None),
        ):
            answer = here.ask(method, path, json=body)
            assert (answer.status_code, answer.json()["title"]) == (409, "no_policy"), path


def test_segment_is_the_segmenters(shared: World) -> None:
    messages = [{"role": "user", "text": text} for text in ("my flight is late", "the flight refund", "salt for pasta")]
    found = shared.ask("POST", "/segment", json={"messages": messages}).json()
    known = shared.layer.segmenter.segment([Message("user", one["text"]) for one in messages])
    assert found["topics"] == list(known.topics)
    assert [(one["first"], one["last"]) for one in found["segments"]] == [(s.first, s.last) for s in known.segments]
    assert all(one["labels"] for one in found["segments"])


def test_calibrate_reports_and_writes_nothing(shared: World) -> None:
    guard = shared.layer.guard
    assert guard is not None
    before = guard.policy
    report = shared.ask("POST", "/calibrate", json={"rows": LABELLED, "target": "flagged", "rate": 0.1}).json()
    assert report["rows"] == {"allowed": 12, "off_topic": 12}
    assert report["target"].startswith("at most 10.0%")
    assert report["sides"]["allowed"]["n"] == 24
    assert guard.policy is before
    few = shared.ask("POST", "/calibrate", json={"rows": LABELLED[:3]})
    assert (few.status_code, few.json()["title"]) == (422, "calibration")


def test_an_export_comes_back_the_same(here: World) -> None:
    before = here.everything("alice")
    lines = here.ask("GET", "/export")
    assert lines.headers["content-type"].startswith("application/x-ndjson")
    assert lines.text.splitlines() == before
    assert here.ask("POST", "/erase", json={"owner": "alice"}).json() == {"erased": 7}
    assert here.ask("GET", "/conversations").json()["conversations"] == []
    back = here.ask("POST", "/import", content=lines.content, headers=NDJSON)
    assert back.json() == {"conversations": 1, "exchanges": 7, "known": 0}
    assert here.everything("alice") == before
    again = here.ask("POST", "/import", content=lines.content, headers=NDJSON)
    assert again.json() == {"conversations": 0, "exchanges": 0, "known": 7}
    done = here.ask("POST", f"{TALK}/exchanges/open/reply", json={"text": "Yes, it is there."})
    assert done.status_code == 200


def test_an_export_of_one_conversation(here: World) -> None:
    here.layer.conversation("other", "alice").receive("hello")
    one = here.ask("GET", "/export", params={"conversation": "other"}).text
    assert MARKER not in one
    assert '"id":"other"' in one
    assert here.ask("GET", "/export", params={"conversation": "nope"}).status_code == 404


def test_an_export_is_sent_in_pieces(here: World) -> None:
    talk = here.layer.conversation("long", "alice")
    for number in range(12):
        talk.receive("flight " * 2000, id=str(number))
        talk.reply("x")
    with here.client.stream("GET", "/api/export", headers={"authorization": "Bearer alice-secret"}) as answer:
        pieces = list(answer.iter_raw())
    assert len(pieces) > 1
    assert b"".join(pieces).decode().splitlines() == here.everything("alice")


def test_a_reader_that_goes_lets_the_store_go(here: World) -> None:
    """The generator of the export is closed, wherever it was."""
    closed: list[int] = []

    def lines(*_: Any) -> Iterator[str]:
        try:
            for _number in range(1000):
                yield "x" * 100_000
        finally:
            closed.append(1)

    here.layer.store.export = lines  # type: ignore[method-assign, assignment]  # an export that takes long

    assert len(here.raw("/api/export", stay=False)) < 900
    assert closed == [1]


def test_ids_may_have_any_character(here: World) -> None:
    for name in ("a/b", "ü €", "100%", "a?b=c&d", "%2F", "😀", "a+b", "'; DROP"):
        path = f"/conversations/{quote(name, safe='')}"
        sent = here.ask("POST", f"{path}/exchanges", json={"text": "hello", "id": name})
        assert sent.status_code == 201, (name, sent.text)
        assert here.ask("GET", f"{path}/exchanges/{quote(name, safe='')}").json()["conversation"] == name
        assert here.layer.store.exchanges(Scope("alice", name))[0].id == name
        assert here.ask("DELETE", path).json() == {"erased": 1}
