"""Who asks: a bearer key opens one owner's data, or any owner's for a trusted back end, as far as its scopes go."""

from __future__ import annotations

import hmac
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256

from topicality.doors.server.problems import RefusedError
from topicality.doors.server.settings import SCOPES, Scope, Settings

OWNER_HEADER = "x-topicality-owner"
_LONGEST = 200  # characters of an owner's name


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
        self._keys = settings.keys
        self._all = frozenset(SCOPES)

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
        wish = headers.get(OWNER_HEADER)
        if self.open:
            name = f"key-{sha256(token.encode()).hexdigest()[:16]}" if token else "default"
            return Caller("open", name if wish is None else _named(wish), False, self._all)
        digest = sha256(token.encode()).hexdigest()
        found = [key for key in self._keys if hmac.compare_digest(key.digest, digest)]  # all are compared
        if not token or not found:
            raise RefusedError(401, "unauthorized", "a bearer key is needed: Authorization: Bearer KEY")
        key = found[0]
        if key.owner is None:
            return Caller(key.name, "default" if wish is None else _named(wish), False, frozenset(key.scopes))
        caller = Caller(key.name, key.owner, True, frozenset(key.scopes))
        caller.for_owner(wish)
        return caller


def _named(owner: str) -> str:
    if not owner.strip() or len(owner) > _LONGEST or not owner.isprintable():
        raise RefusedError(400, "bad_owner", f"an owner is 1 to {_LONGEST} printable characters")
    return owner
