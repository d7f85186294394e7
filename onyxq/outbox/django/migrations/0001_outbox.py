"""Create the table of the outbox."""

from __future__ import annotations

from typing import ClassVar

from django.db import migrations

from onyxq.outbox.rows import TABLE, create_table


class Migration(migrations.Migration):
    """The table, as the relay reads it."""

    initial = True
    dependencies: ClassVar[list[tuple[str, str]]] = []
    operations: ClassVar[list[migrations.RunSQL]] = [
        migrations.RunSQL(sql=create_table(), reverse_sql=f"DROP TABLE {TABLE}")
    ]
