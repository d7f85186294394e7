"""Web frameworks: pages about tasks, their progress as events, and answers for OnyxQ's errors (design: interfaces).

`onyxq.integrations.fastapi`, `onyxq.integrations.django` and `onyxq.integrations.flask` are thin. `task_views` has all
that they share. They use the client of the `onyxq.App` and nothing else, so they work with every cluster that it knows.
"""

from __future__ import annotations
