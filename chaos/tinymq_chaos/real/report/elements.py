"""HTML, assembled from elements: text stays text.

The standard library's ElementTree writes it. This module has what it lacks for HTML: the doctype, a filter for
characters that no document may hold, and data for scripts.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any
from xml.etree.ElementTree import Element, tostring

Child = Element | str | None

# characters that HTML cannot hold, and surrogates, which no encoding can
_UNFIT = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ufdd0-\ufdef\ufffe\uffff\ud800-\udfff]")


def element(name: str, attributes: Mapping[str, object] | None = None, *children: Child) -> Element:
    """Make an element.

    A child that is None adds nothing. An attribute that is True gets its name as its value. An attribute that is None
    or False is left out.
    """
    present = {key: value for key, value in (attributes or {}).items() if value is not None and value is not False}
    made = Element(name, {key: key if value is True else clean(str(value)) for key, value in present.items()})
    add(made, *children)
    return made


def add(parent: Element, *children: Child) -> None:
    for child in children:
        if child is None:
            continue
        if isinstance(child, Element):
            parent.append(child)
        elif len(parent):
            parent[-1].tail = (parent[-1].tail or "") + clean(child)
        else:
            parent.text = (parent.text or "") + clean(child)


def name(text: str, shown: str | None = None) -> Element:
    """Show a name that a user chose: it does not change the text direction around it, and it may break anywhere.

    `shown` replaces it, with the whole as its title.
    """
    return element("bdi", {"class": "name", "title": None if shown is None else text}, text if shown is None else shown)


def data(identifier: str, values: Any) -> Element:
    """Return an element with JSON for the page's script. No character of the data can end the element."""
    text = json.dumps(values, separators=(",", ":")).replace("<", "\\u003c").replace(">", "\\u003e")
    return element("script", {"type": "application/json", "id": identifier}, text)


def document(html: Element) -> str:
    return "<!doctype html>\n" + tostring(html, encoding="unicode", method="html") + "\n"


def clean(text: str) -> str:
    return _UNFIT.sub("\ufffd", text)
