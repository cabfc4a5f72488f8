"""Markup that escapes what it is given: text becomes `Html` through `element` alone."""

import re
from html import escape as _escape

# What XML 1.0 does not allow even when escaped: most control characters, lone surrogates, two non-characters.
_FORBIDDEN = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff\ufffe\uffff]")


class Html(str):
    """Finished markup; every other string is text and will be escaped."""

    __slots__ = ()


def escape(text: object) -> Html:
    """Text as markup that shows it, in HTML and in XML.

    >>> escape('<script>"1 & 2"')
    '&lt;script&gt;&quot;1 &amp; 2&quot;'
    """
    return text if isinstance(text, Html) else Html(_escape(_FORBIDDEN.sub("\ufffd", str(text))))


def join(parts: "list[Html]", between: str = "") -> Html:
    """Finished parts one after the other."""
    return Html(between.join(parts))


def element(name: str, /, *content: object, **attributes: object) -> Html:
    """One element with its content; attributes that are None are left out, `class_` becomes class, `data_x` data-x.

    >>> element("p", "1 < 2", element("br"), class_="note")
    '<p class="note">1 &lt; 2<br/></p>'
    """
    given = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{escape(_brief(value))}"'
        for key, value in attributes.items()
        if value is not None
    )
    if not content:
        # HTML knows the first three as void; the others are SVG shapes.
        return Html(f"<{name}{given}/>" if name in _EMPTY else f"<{name}{given}></{name}>")
    return Html(f"<{name}{given}>{''.join(map(escape, content))}</{name}>")


_EMPTY = {"br", "input", "meta", "path", "rect", "line", "circle"}


def _brief(value: object) -> object:
    """A coordinate with one decimal, which is finer than a pixel on any screen."""
    return f"{value:.1f}".removesuffix(".0") if isinstance(value, float) else value
