"""Turns links by file name, which work in the repository, into links of the site; the index gets its contents."""

from __future__ import annotations

import posixpath
from typing import Any

from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.transforms import SphinxTransform

INDEX = "index"
ELSEWHERE = {
    "README": INDEX,
    "CHANGELOG": "project/changelog",
    "CONTRIBUTING": "project/contributing",
    "bench/README": "project/benchmarks",
    "examples/jobs/README": "project/example-jobs",
    "examples/web/README": "project/example-shops",
}
"""Documents outside ``docs/``, without their ending, and the pages that include them."""


def page_of(target: str, docname: str, known: set[str]) -> str | None:
    """Return the page of a relative link: relative to the page or, in an included text, to its own folder."""
    for base in ("docs/" + posixpath.dirname(docname), "", *{posixpath.dirname(name) for name in ELSEWHERE}):
        path = posixpath.normpath(posixpath.join(base, target)).removesuffix(".rst")
        if path in ELSEWHERE:
            return ELSEWHERE[path]
        if path.removeprefix("docs/") in known:
            return path.removeprefix("docs/")
    return None


class FileLinks(SphinxTransform):
    """Turns each link to a document's file into a link to its page."""

    default_priority = 200

    def apply(self, **_: Any) -> None:
        """Change the document; a relative link without a page becomes plain text."""
        docname = self.env.docname
        for link in list(self.document.findall(nodes.reference)):
            target = link.get("refuri", "")
            if not target or "://" in target or target.startswith(("#", "mailto:")):
                continue
            page = page_of(target, docname, set(self.env.found_docs))
            if page is None:
                link.replace_self(nodes.literal("", link.astext()))
                continue
            inside = nodes.inline("", link.astext(), classes=["doc"])
            link.replace_self(
                addnodes.pending_xref(
                    "", inside, refdoc=docname, refdomain="std", reftype="doc", refexplicit=True, reftarget="/" + page
                )
            )
        if docname == INDEX:
            self._contents()

    def _contents(self) -> None:
        """Add a hidden table of contents after each section of the index, made from its links."""
        for section in self.document.findall(nodes.section):
            links = [link for link in section.findall(addnodes.pending_xref) if link["reftype"] == "doc"]
            pages = list(dict.fromkeys(link["reftarget"].lstrip("/") for link in links))
            if isinstance(section.parent, nodes.section) and pages:
                section += _toctree([page for page in pages if page != INDEX], section.next_node(nodes.title).astext())


def _toctree(pages: list[str], caption: str) -> nodes.Node:
    tree = addnodes.toctree(
        parent=INDEX,
        entries=[(None, page) for page in pages],
        includefiles=pages,
        caption=caption,
        rawcaption=caption,
        maxdepth=1,
        glob=False,
        hidden=True,
        includehidden=False,
        numbered=0,
        titlesonly=True,
    )
    return nodes.compound("", tree, classes=["toctree-wrapper"])


def setup(app: Sphinx) -> dict[str, Any]:
    """Register with Sphinx."""
    app.add_transform(FileLinks)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
