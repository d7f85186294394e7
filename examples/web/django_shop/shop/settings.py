"""Settings of the example shop. ``PGHOST``, ``PGUSER`` and so on name the database."""

from __future__ import annotations

import os

SECRET_KEY = "an example keeps no secrets"
DEBUG = True
ALLOWED_HOSTS = ["127.0.0.1"]
ROOT_URLCONF = "shop.urls"
INSTALLED_APPS = ["shop", "onyxq.outbox.django"]
MIDDLEWARE = ["onyxq.integrations.django.ErrorMiddleware"]
USE_TZ = True
DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": os.environ.get("PGDATABASE", "postgres"),
        "USER": os.environ.get("PGUSER", "postgres"),
        "HOST": os.environ.get("PGHOST", ""),
        "PORT": os.environ.get("PGPORT", ""),
    }
}
