"""Plans that tessera.attention keeps, the least recently used leaving first."""
from __future__ import annotations

import itertools
import threading
from typing import Any

LIMIT = 64


class Entry:
    """A kept plan; its key, which ends with the layout of q, k and v; and when it was used last."""

    __slots__ = ("key", "layout", "plan", "used")

    def __init__(self, key: tuple, plan: Any, used: int):
        self.key, self.layout, self.plan, self.used = key, key[-1], plan, used


class Cache:
    """At most `limit` plans by what they depend on. A miss makes a plan: packing the pattern's lists, and on CUDA an
    upload that waits for the stream. Time grows with the tiles listed."""

    def __init__(self, limit: int = LIMIT):
        self.limit, self.misses = limit, 0
        self.plans: dict[int, tuple[Entry, ...]] = {}  # by number of the pattern: comparing few keys beats hashing one
        self.clock = itertools.count()
        self.lock = threading.Lock()
        self.pinned: dict[int, Any] = {}  # plans that captured graphs may replay

    def find(self, number: int, key: tuple) -> Entry | None:
        """The entry of a pattern's number and a key."""
        for entry in self.plans.get(number, ()):
            if entry.key == key:
                entry.used = next(self.clock)
                return entry
        return None

    def keep(self, number: int, key: tuple, plan: Any) -> Entry:
        """Keeps a plan that was just made, and answers its entry."""
        entry = Entry(key, plan, next(self.clock))
        with self.lock:
            self.misses += 1
            self.plans[number] = (entry, *self.plans.get(number, ()))
            self.trim()
        return entry

    def trim(self) -> None:
        while len(self) > self.limit:
            number, oldest = min(((number, x) for number, entries in self.plans.items() for x in entries),
                                 key=lambda found: found[1].used)
            kept = tuple(x for x in self.plans[number] if x is not oldest)
            if kept:
                self.plans[number] = kept
            else:
                del self.plans[number]

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
        return sum(map(len, list(self.plans.values())))


plan_cache = Cache()
