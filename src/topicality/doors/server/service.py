"""What the rooms of the server share: one value, made at start and passed to each."""

from __future__ import annotations

from dataclasses import dataclass, field

from topicality.doors.server.bridge import Bridge
from topicality.doors.server.keys import Keys
from topicality.doors.server.operations.health import Readiness
from topicality.doors.server.operations.metrics import Metrics
from topicality.doors.server.settings import Settings
from topicality.layer.memory import Layer, open_layer
from topicality.llm import load_llm


@dataclass(frozen=True, slots=True)
class Service:
    """A running server.

    Attributes:
        settings: what it was told. layer: guard and memory; synchronous, so only called through `bridge`.
        bridge: the pool of threads. keys: who may ask for what. metrics: what is counted.
        readiness: whether it can take requests.
    """

    settings: Settings
    layer: Layer
    bridge: Bridge
    keys: Keys
    metrics: Metrics = field(default_factory=Metrics)
    readiness: Readiness = field(default_factory=Readiness)

    @classmethod
    def start(cls, settings: Settings) -> Service:
        """Open the store and load the encoder. Slow: seconds. Close it with `close`."""
        llm = load_llm(settings.llm, settings.llm_url)
        layer = open_layer(settings.store, settings.policy, settings.encoder, llm=llm)
        return cls(settings, layer, Bridge(settings.limits.threads, settings.limits.waiting), Keys(settings))

    def close(self) -> None:
        """Wait for what the engine is doing, then close the store."""
        self.bridge.close()
        self.layer.close()
