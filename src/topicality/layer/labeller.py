"""The labeller beside a chat: conversations that were woken are relabelled in a thread, one after the other."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from topicality.core.book import Reading
from topicality.core.worker import Setup
from topicality.errors import TopicalityError
from topicality.layer.labelling import Background, Hold, Relabelled, relabel
from topicality.llm.asking import Asker, Stop
from topicality.ports import Store

_log = logging.getLogger("topicality")


class BackgroundLabeller:
    """Relabels conversations in one thread, while chatting goes on; the thread ends when there is nothing to do.

    `wake` returns at once. A conversation that waits already is not queued twice; when the queue is full, the wake is
    dropped, since a later exchange wakes it again. After a batch that was accepted the next one follows. Failures are logged,
    without text, and never reach the caller.

    Args:
        hold: see `Background`. on_done: told what came of each run, in the thread; it must not wait for it.
        waiting: most conversations in the queue. clock: seconds since the epoch.
    """

    def __init__(
        self,
        store: Store,
        asker: Asker,
        *,
        how: Setup | None = None,
        reading: Callable[[], Reading] = Reading,
        hold: Hold | None = None,
        on_done: Callable[[str, str, Relabelled], None] | None = None,
        waiting: int = 1000,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._store, self._asker, self._how, self._reading = store, asker, how, reading
        self._on_done, self._most = on_done, waiting
        self._stop = Stop()
        self._background = Background(hold, self._stop, clock)
        self._waiting: dict[tuple[str, str], None] = {}  # in order
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None

    def wake(self, owner: str, conversation: str) -> bool:
        """Have a look at a conversation when there is time; whether it waits now."""
        with self._changed:
            if self._stop.stopped:
                return False
            if (owner, conversation) not in self._waiting:
                if len(self._waiting) >= self._most:
                    return False
                self._waiting[owner, conversation] = None
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="topicality-labelling", daemon=True)
                self._thread.start()
            return True

    def wait(self, timeout: float | None = None) -> bool:
        """Until everything that was woken is done, or the time is up; whether it is done."""
        with self._changed:
            return self._changed.wait_for(lambda: self._thread is None, timeout)

    def close(self, timeout: float = 5.0) -> None:
        """Take nothing more, wait for no model any longer, and give what is being written `timeout` seconds to end."""
        with self._changed:
            self._waiting.clear()
            self._stop.set()
            thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(timeout)

    def _work(self) -> None:
        while True:
            with self._changed:
                job = next(iter(self._waiting), None)
                if job is None:
                    self._thread = None
                    self._changed.notify_all()
                    return
                del self._waiting[job]
            try:
                result = relabel(
                    self._store,
                    *job,
                    self._asker,
                    how=self._how,
                    reading=self._reading(),
                    background=self._background,
                )
                if result.reason == "accepted":
                    self.wake(*job)
                if self._on_done is not None:
                    self._on_done(*job, result)
            except TopicalityError as error:
                _log.warning("labelling a conversation failed: %s", type(error).__name__)
            except Exception as error:  # noqa: BLE001 - one conversation must not end the labelling of all others
                _log.error("labelling a conversation failed: %s", type(error).__name__)
