"""Who asks: a bearer key opens one owner's data, or any owner's for a trusted back end, as far as its scopes go."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from hashlib import sha256
from urllib.parse import urlsplit

from topicality.doors.server.problems import RefusedError
from topicality.doors.server.settings import SCOPES, Scope, Settings, is_loopback

OWNER_HEADER = "x-topicality-owner"
CALLER = "topicality.caller"  # where a request's scope has its `Caller`, once it is let in
_LONGEST = 200  # characters of an owner's name
_ALL: frozenset[Scope] = frozenset(SCOPES)


@dataclass(frozen=True, slots=True)
class Caller:
    """Who asks, and what for.

    Attributes:
        key: name of the key, for logs and metrics; "open" where the server has none. owner: whose data this request is about.
        bound: whether the key belongs to that owner alone. scopes: what the key may do.
    """

    key: str
    owner: str
    bound: bool
    scopes: frozenset[Scope]

    def need(self, scope: Scope) -> None:
        """Refuse (403) unless the key has this scope."""
        if scope not in self.scopes:
            raise RefusedError(403, "forbidden", f"the key {self.key!r} lacks the scope {scope!r}")

    def for_owner(self, owner: str | None) -> str:
        """The owner a request is about: the caller's, or the named one where the key may choose.

        Raises:
            RefusedError: 403, the key belongs to another owner.
        """
        if owner is None or owner == self.owner:
            return self.owner
        if self.bound:
            raise RefusedError(403, "forbidden", f"the key {self.key!r} belongs to one owner and was asked for another")
        return _named(owner)


class Keys:
    """The keys of a server. `caller` is the only way in."""

    def __init__(self, settings: Settings) -> None:
        # found by hash: how long that takes says nothing about a key
        self._keys = {
            key.digest: Caller(key.name, key.owner or "default", key.owner is not None, frozenset(key.scopes))
            for key in settings.keys
        }
        self._origins = frozenset(settings.cors)

    @property
    def open(self) -> bool:
        """Whether the server has no keys, so that whoever reaches it is trusted."""
        return not self._keys

    def caller(self, headers: Mapping[str, str]) -> Caller:
        """Who asks, by the headers (names in lower case).

        Raises:
            RefusedError: 401, no key or a wrong one; 403, an owner-bound key names another owner; 400, an unusable owner.
        """
        kind, _, given = headers.get("authorization", "").partition(" ")
        token = given.strip() if kind.lower() == "bearer" else ""
        digest = sha256(token.encode()).hexdigest()
        if self.open:
            self._local(headers)
            caller = Caller("open", f"key-{digest[:16]}" if token else "default", False, _ALL)
        else:
            found = self._keys.get(digest)
            if not token or found is None:
                told = {"www-authenticate": "Bearer"}
                raise RefusedError(401, "unauthorized", "a bearer key is needed: Authorization: Bearer KEY", told)
            caller = found
        owner = caller.for_owner(headers.get(OWNER_HEADER))
        return caller if owner == caller.owner else replace(caller, owner=owner)

    def _local(self, headers: Mapping[str, str]) -> None:
        """Refuse what a web page makes a browser send to a server that trusts everyone on this machine.

        A page of another origin names it in `Origin`. A page whose own name was made to lead here (DNS rebinding) has that
        name in `Host`; such a name has a dot. Browsers always send one.
        """
        host = headers.get("host", "")
        name = _host_of(f"//{host}")
        if not _is_here(name) and "." in name:
            told = "a server without keys answers under the names of this machine only"
            raise RefusedError(403, "foreign_host", told)
        origin = headers.get("origin")
        if origin is None or origin in self._origins or origin.partition("://")[2] == host:
            return
        if not origin.startswith(("http://", "https://")) or not _is_here(_host_of(origin)):
            raise RefusedError(403, "foreign_origin", "a server without keys answers no web page of another origin")


def _is_here(name: str) -> bool:
    return is_loopback(name) or name.endswith(".localhost")


def _host_of(address: str) -> str:
    try:
        return urlsplit(address).hostname or ""
    except ValueError:
        return "."  # no name at all, so not ours


def _named(owner: str) -> str:
    if not owner.strip() or len(owner) > _LONGEST or not owner.isprintable():
        raise RefusedError(400, "bad_owner", f"an owner is 1 to {_LONGEST} printable characters")
    return owner
