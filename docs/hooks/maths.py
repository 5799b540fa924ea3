"""Equations as MathML, made when the site is built: browsers draw it themselves.

pymdownx.arithmatex finds $...$ and $$...$$ and leaves \\(...\\) and \\[...\\] in elements of the class arithmatex.
"""

import html
import re
from typing import Any

from latex2mathml.converter import convert

INLINE = re.compile(r'<span class="arithmatex">\\\((.*?)\\\)</span>', re.DOTALL)
DISPLAY = re.compile(r'<div class="arithmatex">\s*\\\[(.*?)\\\]\s*</div>', re.DOTALL)


def on_page_content(content: str, **_: Any) -> str:
    """The page's HTML with MathML in place of TeX."""
    content = INLINE.sub(lambda found: convert(html.unescape(found[1]).strip()), content)
    return DISPLAY.sub(
        lambda found: f'<div class="equation">{convert(html.unescape(found[1]).strip(), display="block")}</div>',
        content,
    )
