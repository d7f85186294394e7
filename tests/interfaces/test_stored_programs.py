"""Programs of updates and claims, many at a time, on a store that is closed meanwhile and opened again.

``ONYXQ_TEST_PROGRAMS`` is the number of programs of five requests, instead of the usual few.
"""

from __future__ import annotations

import os
import random
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import onyxq
from onyxq.core.replica import EMPTY
from onyxq.errors import StoreRefused, Unavailable
from onyxq.history.following import drive, records
from onyxq.interfaces.embedded import Embedded
from onyxq.system.extensions import installed
from simulation.world.stored import Requests, Truth, as_answered

PROGRAMS = int(os.environ.get("ONYXQ_TEST_PROGRAMS", "160"))
TOGETHER = 2_000
"""Programs between two openings of the store."""
THREADS = 8
REQUESTS = 5
"""Requests of one program."""
CLOSED_S = 20
"""Longest close; a call without an answer would wait for half a minute."""
GROUPS = ("map", "reduce/1")


class Programs:
    """Random requests of several threads at a time, each with a client of its own, and their answers."""

    def __init__(self, seed: int) -> None:
        self.requests = Requests(random.Random(seed), GROUPS)
        self.asked: dict[int, Any] = {}
        """Mark -> the answer; None if it was lost."""
        self._lock = threading.Lock()

    def run(self, opened: Embedded, client: int, programs: int) -> None:
        """Run programs one after the other, until the store is closed."""
        with suppress(Unavailable):
            for _ in range(programs * REQUESTS):
                self._request(opened, client)

    def _request(self, opened: Embedded, client: int) -> None:
        with self._lock:
            mark, kind, args = self.requests.next()
            self.asked[mark] = None
        answer = opened.call(f"taskstore.{kind}", {"client": client, **args})
        if refused := answer.get("refused"):
            error = StoreRefused(refused)
            self.asked[mark] = [None, error.changes, error.deletes, error.depends, error.owned]
            return
        with self._lock:
            self.asked[mark] = [list(task) for task in answer["tasks"]]
            self.requests.seen += [task[0] for task in answer["tasks"]]

    def together(self, opened: Embedded, programs: int, *, close: bool) -> None:
        """Run a number of programs side by side; with ``close``, close the store in the middle."""
        half = self.requests.marks + programs * REQUESTS // 2
        threads = [
            threading.Thread(target=self.run, args=(opened, client, programs // THREADS))
            for client in range(1, THREADS + 1)
        ]
        for thread in threads:
            thread.start()
        while close and self.requests.marks < half and any(thread.is_alive() for thread in threads):
            opened.call("taskstore.groups", {})
        if close:
            began = time.monotonic()
            opened.close()
            assert time.monotonic() - began < CLOSED_S, "nobody is waited for"
        for thread in threads:
            thread.join()


@pytest.mark.long
@pytest.mark.parametrize("place", range(max(1, PROGRAMS // TOGETHER)))
def test_answers_are_the_models_although_the_store_is_closed_under_them(place: int, tmp_path: Path) -> None:
    """Each equals the model's at the request's place in the log; unanswered ones may have an effect or not."""
    programs, wanted = Programs(place), min(PROGRAMS, TOGETHER)
    programs.together(onyxq.open(tmp_path), wanted // 2, close=True)
    cut_off = programs.requests.marks
    with onyxq.open(tmp_path) as opened:
        programs.together(opened, wanted - cut_off // REQUESTS, close=False)
        last = opened.call("log", {"limit": 1})["position"]
        truth = Truth()
        truth.follow(EMPTY, drive(records(0, last), opened.call), installed())
    answered = {mark: answer for mark, answer in programs.asked.items() if answer is not None}
    for mark, answer in answered.items():
        assert answer in [as_answered(one) for one in truth.answers[mark]], mark
    assert set(truth.answers) <= set(programs.asked)
    assert len(programs.asked) - len(answered) <= THREADS, "one of each thread is cut off"
    assert len(answered) > wanted * REQUESTS // 2
