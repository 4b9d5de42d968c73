"""HTML, put together from elements: whatever is given as text is text, and can be nothing else.

The standard library's ElementTree writes it; here are what it lacks for HTML: the doctype, text that no document may
hold, and data for scripts.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any
from xml.etree.ElementTree import Element, tostring

Child = Element | str | None

# What HTML cannot hold, and half characters, which no encoding can.
_UNFIT = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ufdd0-\ufdef\ufffe\uffff\ud800-\udfff]")


def element(name: str, attributes: Mapping[str, object] | None = None, *children: Child) -> Element:
    """None among the children is nothing; an attribute that is True has its name for a value, None and False are
    none."""
    given = {key: value for key, value in (attributes or {}).items() if value is not None and value is not False}
    made = Element(name, {key: key if value is True else clean(str(value)) for key, value in given.items()})
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
    """A name that someone else has chosen: it does not turn the direction of the text around it, and it may be
    broken anywhere. `shown`: instead of it, with the whole as its title."""
    return element("bdi", {"class": "name", "title": None if shown is None else text}, text if shown is None else shown)


def data(identifier: str, values: Any) -> Element:
    """JSON for a script of the page. Nothing in it ends the element."""
    text = json.dumps(values, separators=(",", ":")).replace("<", "\\u003c").replace(">", "\\u003e")
    return element("script", {"type": "application/json", "id": identifier}, text)


def document(html: Element) -> str:
    return "<!doctype html>\n" + tostring(html, encoding="unicode", method="html") + "\n"


def clean(text: str) -> str:
    return _UNFIT.sub("\ufffd", text)
