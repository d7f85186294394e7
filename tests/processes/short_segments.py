"""``onyxq`` as a program whose log starts a new segment after ``SEGMENT_RECORDS`` records instead of 2^30."""

from __future__ import annotations

import os
from functools import partial

from onyxq.interfaces.cli.main import main
from onyxq.log import backends

if __name__ == "__main__":
    records = int(os.environ["SEGMENT_RECORDS"])
    backends.opened = partial(backends.opened, segment_records=records)
    main()
