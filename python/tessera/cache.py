"""Plans that tessera.attention keeps, the least recently used leaving first."""
from __future__ import annotations

import collections
import threading
from typing import Any

LIMIT = 64


class Cache:
    """At most `limit` plans by what they depend on. A miss makes a plan: packing the pattern's lists, and on CUDA an
    upload that waits for the stream. Time grows with the tiles listed."""

    def __init__(self, limit: int = LIMIT):
        self.limit, self.misses = limit, 0
        self.plans: collections.OrderedDict[Any, Any] = collections.OrderedDict()
        self.lock = threading.Lock()
        self.pinned: dict[int, Any] = {}  # plans that captured graphs may replay

    def find(self, key: Any) -> Any:
        """The plan of a key, or None."""
        plan = self.plans.get(key)
        if plan is not None:
            try:
                self.plans.move_to_end(key)
            except KeyError:
                pass  # another thread has put it out
        return plan

    def keep(self, key: Any, plan: Any) -> Any:
        """Keeps a plan that was just made, and answers it."""
        with self.lock:
            self.misses += 1
            self.plans[key] = plan
            self.trim()
        return plan

    def trim(self) -> None:
        while len(self.plans) > self.limit:
            self.plans.popitem(last=False)

    def resize(self, limit: int) -> None:
        """Keeps at most so many plans from now on; 0 keeps none."""
        with self.lock:
            self.limit = limit
            self.trim()

    def clear(self) -> None:
        """Drops all plans, those of captured graphs too: they must not be replayed any more."""
        with self.lock:
            self.plans.clear()
            self.pinned.clear()

    def __len__(self) -> int:
        return len(self.plans)


plan_cache = Cache()
