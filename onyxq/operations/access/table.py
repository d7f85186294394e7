"""The needs of all operations."""

from onyxq.operations.table.access import Access, everywhere
