"""What the rooms of the server share: one value, made at start and passed to each."""

from __future__ import annotations

from dataclasses import dataclass

from topicality.doors.server.bridge import Bridge
from topicality.doors.server.keys import Keys
from topicality.doors.server.settings import Settings
from topicality.layer.memory import Layer, open_layer


@dataclass(frozen=True, slots=True)
class Service:
    """A running server.

    Attributes:
        settings: what it was told. layer: guard and memory; synchronous, so only called through `bridge`.
        bridge: the pool of threads. keys: who may ask for what.
    """

    settings: Settings
    layer: Layer
    bridge: Bridge
    keys: Keys

    @classmethod
    def start(cls, settings: Settings) -> Service:
        """Open the store and load the encoder. Slow: seconds. Close it with `close`."""
        layer = open_layer(settings.store, settings.policy, settings.encoder)
        return cls(settings, layer, Bridge(settings.limits.threads, settings.limits.waiting), Keys(settings))

    def close(self) -> None:
        """Wait for what the engine is doing, then close the store."""
        self.bridge.close()
        self.layer.close()
