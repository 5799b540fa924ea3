"""The page: one HTML file with everything in it, no script or picture from elsewhere."""

import base64
from importlib import resources
from typing import NamedTuple

import jinja2

from psdrl.report import paper
from psdrl.report.style import Picture
from psdrl.report.tables import Table, sort_value
from psdrl.version import __version__

PIXELS = 100  # of the page, per inch of a figure
# Columns whose numbers come from the paper, and hence from no run.
PUBLISHED = {*paper.COLUMNS, *(f"{column}_spread" for column in paper.COLUMNS), *paper.Constants._fields}


class Section(NamedTuple):
    """A part of the page: figures and tables under one heading."""

    name: str
    title: str
    pictures: list[Picture]
    tables: list[Table]


def _part(name: str) -> str:
    return (resources.files("psdrl.report") / "page" / name).read_text(encoding="utf-8")


def render(sections: list[Section], notices: list[str], unreadable: list[str], summary: str, live: bool) -> str:
    """The page; `live`: it asks its server for news, and loads itself again."""
    environment = jinja2.Environment(
        autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined
    )
    environment.filters["base64"] = lambda data: base64.b64encode(data).decode()
    environment.filters["sort_value"] = sort_value
    return environment.from_string(_part("page.html")).render(
        sections=sections,
        notices=notices,
        unreadable=unreadable,
        summary=summary,
        live=live,
        version=__version__,
        pixels=PIXELS,
        published=PUBLISHED,
        css=_part("page.css"),
        js=_part("page.js") + (_part("live.js") if live else ""),
    )
