"""``onyxq demo``: a word count on a cluster, compared with a count in one process."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Any

from onyxq.core.errors import BadRequest
from onyxq.interfaces.cli.context import Context
from onyxq.interfaces.cli.processes.daemons import PEERS_MAX, run_in_trio

COMMON_WORDS = 10
EXIT_NOT_EXACT = 1


def demo(context: Context) -> int:
    """Count, compare and print; return 0 only if the counts are exact."""
    args = context.args
    if not 1 <= args.peers <= PEERS_MAX:
        raise BadRequest(f"peers must be 1 to {PEERS_MAX}, not {args.peers}", field="peers")

    from onyxq.interfaces.demo.corpus import chunks, default_directory, plain_count, text_files
    from onyxq.interfaces.demo.driver import Outcome, Voice, count_on_cluster, figures

    directory = Path(args.input).resolve() if args.input else default_directory()
    files = text_files(directory)
    shares = list(chunks(directory, files))
    context.out.note(f"{len(files)} text files under {directory}, {len(shares)} map tasks")
    data = Path(tempfile.mkdtemp(prefix="onyxq-demo-"))
    voice = Voice(progress=context.out.progress, note=context.out.note)
    outcomes: list[Outcome] = []

    async def count() -> None:
        outcomes.append(await count_on_cluster(directory, shares, peers=args.peers, data=data, voice=voice))

    try:
        run_in_trio(count)
    finally:
        if not args.keep:
            shutil.rmtree(data)
    (outcome,) = outcomes
    context.out.note("comparing with a count in one process")
    exact = plain_count(files) == outcome.counts
    shown = figures(outcome, files=len(files), size_bytes=sum(share.end - share.start for share in shares))
    _report(context, outcome.counts, exact=exact, shown={**shown, "data": str(data)} if args.keep else shown)
    return 0 if exact else EXIT_NOT_EXACT


def _report(context: Context, counts: dict[str, int], *, exact: bool, shown: dict[str, Any]) -> None:
    ranked = sorted(counts.items(), key=lambda item: (-item[1], item[0]))[:COMMON_WORDS]
    if context.out.as_json:
        context.out.document({"exact": exact, "common_words": [list(item) for item in ranked], **shown})
        return
    context.out.table(None, [{"word": word, "count": count} for word, count in ranked], ("word", "count"))
    context.out.text(f"\nexact: {'yes' if exact else 'no'}")
    context.out.fields(shown)
