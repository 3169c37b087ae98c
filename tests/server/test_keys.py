"""Keys: who gets in, whose data they reach, and what a web page cannot do to a server without keys."""

from __future__ import annotations

from hashlib import sha256
from typing import Any

import pytest

from topicality.doors.server.keys import Caller, Keys
from topicality.doors.server.problems import RefusedError
from topicality.doors.server.settings import Settings

ALICE, HASHED, TRUSTED = "alice-secret-key", "hashed-secret-key", "trusted-secret-key"


@pytest.fixture
def keys() -> Keys:
    return Keys(
        Settings.model_validate(
            {
                "host": "0.0.0.0",  # noqa: S104 - not listened on
                "keys": [
                    {"name": "alice", "key": ALICE, "owner": "alice"},
                    {
                        "name": "hashed",
                        "sha256": sha256(HASHED.encode()).hexdigest(),
                        "owner": "bob",
                        "scopes": ["read"],
                    },
                    {"name": "backend", "key": TRUSTED, "scopes": ["chat", "read", "write", "erase", "override"]},
                ],
            }
        )
    )


def ask(keys: Keys, token: str | None = None, **headers: str) -> Caller:
    given = {name.replace("_", "-"): value for name, value in headers.items()}
    return keys.caller(given if token is None else {"authorization": f"Bearer {token}", **given})


def refused(keys: Keys, token: str | None = None, **headers: str) -> tuple[int, str]:
    with pytest.raises(RefusedError) as caught:
        ask(keys, token, **headers)
    return caught.value.status, caught.value.code


def test_a_key_opens_its_owners_data_as_far_as_its_scopes_go(keys: Keys) -> None:
    caller = ask(keys, ALICE)
    assert (caller.key, caller.owner, caller.bound) == ("alice", "alice", True)
    assert caller.scopes == {"chat", "read", "write"}
    caller.need("write")
    with pytest.raises(RefusedError, match="lacks the scope 'erase'") as caught:
        caller.need("erase")
    assert caught.value.status == 403


def test_a_key_may_be_given_as_its_hash(keys: Keys) -> None:
    assert ask(keys, HASHED).owner == "bob"
    assert refused(keys, sha256(HASHED.encode()).hexdigest()) == (401, "unauthorized")


@pytest.mark.parametrize(
    "token", ["", " ", "wrong-secret-key", ALICE[:-1], ALICE + "x", ALICE.upper(), "ä" * 9, "\x00", "a" * 100_000]
)
def test_a_wrong_key_is_refused_and_not_repeated(keys: Keys, token: str) -> None:
    with pytest.raises(RefusedError) as caught:
        ask(keys, token)
    assert (caught.value.status, caught.value.headers) == (401, {"www-authenticate": "Bearer"})
    assert len(token.strip()) < 2 or token not in caught.value.detail


@pytest.mark.parametrize("header", [None, "", ALICE, f"Basic {ALICE}", f"Bearer{ALICE}", f"Bearer {ALICE} {ALICE}"])
def test_only_a_bearer_key_counts(keys: Keys, header: str | None) -> None:
    assert refused(keys, **({} if header is None else {"authorization": header})) == (401, "unauthorized")


@pytest.mark.parametrize("header", [f"bearer {ALICE}", f"BEARER   {ALICE} "])
def test_the_word_bearer_is_read_as_http_wants(keys: Keys, header: str) -> None:
    assert keys.caller({"authorization": header}).key == "alice"


def test_a_bound_key_reaches_no_other_owner(keys: Keys) -> None:
    assert ask(keys, ALICE, x_topicality_owner="alice").owner == "alice"
    for other in ("bob", "Alice", "alice ", "", "default"):
        assert refused(keys, ALICE, x_topicality_owner=other) == (403, "forbidden")
        with pytest.raises(RefusedError):
            ask(keys, ALICE).for_owner(other)


def test_a_trusted_key_names_the_owner(keys: Keys) -> None:
    assert ask(keys, TRUSTED).owner == "default"
    caller = ask(keys, TRUSTED, x_topicality_owner="carol")
    assert (caller.owner, caller.bound) == ("carol", False)
    assert caller.for_owner("dave") == "dave"
    assert caller.for_owner(None) == "carol"
    assert ask(keys, TRUSTED).owner == "default", "one request's owner is not the next one's"


@pytest.mark.parametrize("owner", ["", "  ", "a\nb", "a\x1b[31m", "x" * 201, "a\u2028b"])
def test_an_unusable_owner_is_refused(keys: Keys, owner: str) -> None:
    assert refused(keys, TRUSTED, x_topicality_owner=owner) == (400, "bad_owner")


@pytest.fixture
def nobody() -> Keys:
    return Keys(Settings.model_validate({"cors": ["https://chat.example"]}))


def test_without_keys_each_token_is_an_owner_of_its_own(nobody: Keys) -> None:
    first, second = ask(nobody, "sk-first"), ask(nobody, "sk-second")
    assert first.owner != second.owner
    assert first.owner == ask(nobody, "sk-first").owner
    assert "sk-first" not in first.owner
    assert ask(nobody).owner == ask(nobody, "").owner == "default"
    assert ask(nobody, "sk-first", x_topicality_owner="carol").owner == "carol"
    first.need("erase")


@pytest.mark.parametrize(
    "host",
    [
        "localhost",
        "localhost:8000",
        "127.0.0.1:8000",
        "[::1]:8000",
        "box:8000",
        "app.localhost",
        "",
        "[2001:db8::1]:80",
    ],
)
def test_without_keys_this_machines_names_are_answered(nobody: Keys, host: str) -> None:
    assert ask(nobody, host=host).key == "open"


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "evil.example:8000",
        "127.0.0.1.evil.example",
        "localhost.evil.example:80",
        "10.0.0.7",
        "[",
        "x@evil.example",
    ],
)
def test_without_keys_a_name_that_was_made_to_lead_here_is_refused(nobody: Keys, host: str) -> None:
    assert refused(nobody, host=host) == (403, "foreign_host")


@pytest.mark.parametrize(
    "origin",
    ["http://localhost:3000", "https://127.0.0.1", "http://app.localhost", "https://chat.example", "http://box:8000"],
)
def test_without_keys_pages_of_this_machine_and_of_the_listed_origins_may_call(nobody: Keys, origin: str) -> None:
    assert ask(nobody, host="box:8000", origin=origin).key == "open"


@pytest.mark.parametrize(
    "origin",
    [
        "https://evil.example",
        "null",
        "",
        "http://intranet",
        "http://[2001:db8::1]",
        "https://chat.example.evil.example",
        "chrome-extension://localhost",
        "file://",
        "https://localhost.evil.example",
    ],
)
def test_without_keys_no_page_of_another_origin_gets_in(nobody: Keys, origin: str) -> None:
    assert refused(nobody, host="127.0.0.1:8000", origin=origin) == (403, "foreign_origin")


def test_with_keys_names_and_origins_do_not_matter(keys: Keys) -> None:
    headers: dict[str, Any] = {"host": "chat.example", "origin": "https://page.example"}
    assert ask(keys, ALICE, **headers).key == "alice"
