"""The replica at any position: cached replicas are few and spread, and a trimmed log is reported."""

from __future__ import annotations

import re
from pathlib import Path

import httpx
from attrs import evolve

from onyxq.client import Client
from onyxq.core.replica import EMPTY
from onyxq.interfaces.http.past import KEPT_MAX, Past
from tests.interfaces.live_world import running


def test_few_replicas_are_kept_and_spread_over_the_log() -> None:
    """In any order of positions; the first replica is always kept."""
    for positions in (range(4_000), reversed(range(4_000))):
        past = Past()
        past._keep(EMPTY)
        for position in positions:
            past._keep(evolve(EMPTY, position=position))
        known = sorted(past._kept)
        assert len(known) == KEPT_MAX and known[0] == EMPTY.position
        assert max(high - low for low, high in zip(known, known[1:], strict=False)) <= 4 * 4_000 / KEPT_MAX
        nearest = past._nearest(EMPTY, 2_000).position
        assert nearest <= 2_000 < known[known.index(nearest) + 1]


def test_what_was_trimmed_is_told() -> None:
    """The slider begins at the snapshot, an earlier position redirects there, and a story reports missing records."""
    with running(http=True) as cluster, Client(cluster.addresses[0]) as client:
        task = client.enqueue("a", b"1")
        client.complete(client.claim("a", wait_ms=30_000))
        with httpx.Client(base_url=f"http://{cluster.http_addresses[0]}", timeout=60, trust_env=False) as http:
            assert "These are all entries" in http.get(f"/ui/tasks/{task.hex()}/story").text
            origin = http.post("/v1/gc").json()["position"]
            page = http.get("/ui/log?at=0").text
            assert (
                f"The replica at {origin}<" in page and f'min="{origin}"' in page and "Earlier ones are trimmed" in page
            )
            known = http.get("/v1/replica").json()
            page = http.get(f"/ui/log?at={known['position']}").text
            assert known["digest"] in re.findall(r"<code>([0-9a-f]{32})</code>", page)
            story = http.get(f"/ui/tasks/{task.hex()}/story").text
            assert f"Records up to {origin} are trimmed" in story and "from the store" in story


def test_an_archive_has_what_was_trimmed(tmp_path: Path) -> None:
    """The slider begins before collections, and an archived position shows the same replica as before they trimmed it.

    For a position whose file is missing, the next replica after it is shown.
    """
    kept = tmp_path / "archive"
    with running(http=True, first={"archive": str(kept)}) as cluster, Client(cluster.addresses[0]) as client:
        with httpx.Client(base_url=f"http://{cluster.http_addresses[0]}", timeout=60, trust_env=False) as http:
            digests: dict[int, str] = {}
            origins = []
            for number in range(3):
                client.pause(f"queue-{number}", by="ann", why="a record of the log")
                at = int(http.get("/v1/replica").json()["position"])
                digests[at] = digest_of(http.get(f"/ui/log?at={at}").text)
                origins.append(http.post("/v1/gc").json()["position"])
            page = http.get(f"/ui/log?at={min(digests)}").text
            assert 'min="0"' in page and "come from this peer's archive" in page.replace("&#39;", "'")
            assert "is paused by ann (a record of the log)" in page
            for at, digest in digests.items():
                assert digest_of(http.get(f"/ui/log?at={at}").text) == digest
            second = sorted(kept.iterdir())[1]
            second.unlink()
            lost = sorted(digests)[1]
            assert f"The replica at {origins[1]}<" in http.get(f"/ui/log?at={lost}").text


def digest_of(page: str) -> str:
    """Return the digest on a page of the log."""
    (found,) = re.findall(r"<code>([0-9a-f]{32})</code>", page)
    return str(found)
