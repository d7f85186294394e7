"""Configuration of the documentation site; make it with ``python -m sphinx -W docs site``.

Pages are plain reStructuredText that can be read in the repository. They link to each other by file
name: ``making/links.py`` turns these into links of the site, and the lists of ``index.rst`` into
its contents. ``making/reference.py`` prints the reference from the code while the site is made.
"""

from __future__ import annotations

import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

from onyxq import __version__  # noqa: E402

project = "OnyxQ"
author = "the authors of OnyxQ"
copyright = author
version = release = __version__

extensions = ["sphinx.ext.autodoc", "making.links", "making.reference"]
exclude_patterns = ["making"]
default_role = "py:obj"
highlight_language = "none"
smartquotes = False

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
autodoc_use_type_comments = False

html_theme = "furo"
html_title = project
html_show_copyright = False
html_copy_source = False
