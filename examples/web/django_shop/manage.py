"""The commands of Django for the example shop: ``python manage.py migrate``, ``python manage.py runserver``."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from django.core.management import execute_from_command_line

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # shop_tasks, which the examples share
os.environ.setdefault("DJANGO_SETTINGS_MODULE", "shop.settings")

if __name__ == "__main__":
    execute_from_command_line(sys.argv)
