"""Links from pages to the project's own files lead to pages of the site.

A Markdown file outside docs/ becomes the page project/PATH, any other text file the page source/PATH.md, a picture is
copied to project/PATH. A link to `FILE.py#name` leads to the line of that function, class or method. A line that is
such a link and begins with "Code:" is followed by the source itself, so an equation stands beside the code that
computes it. What does not exist stays as it is, and a strict build fails on it.
"""

import ast
import logging
import os
import re
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files, InclusionLevel
from mkdocs.structure.pages import Page

log = logging.getLogger("mkdocs.hooks.sources")
ROOT = Path(__file__).parents[2]
LINK = re.compile(r"(?<=\]\()((?:\.\./)*[\w./-]+?)(#[\w.-]+)?(?=\))")
LISTING = re.compile(r"^(Code: \[.*?\]\(([\w./-]+\.py)#([\w.]+)\).*)$", re.MULTILINE)
LINE = re.compile(r'href="([^"]*)" title="line (\d+)"')
PICTURES = (".png", ".svg")
ALWAYS = ("CHANGELOG.md", "bench/RESULTS.md", "kernels/README.md", "results/TABLE.md")  # in the navigation
LANGUAGES = {".py": "python", ".cpp": "cpp", ".cu": "cuda", ".cuh": "cuda", ".h": "cpp", ".sh": "sh", ".toml": "toml"}


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that others link to, and those that these link to."""
    waiting = [(file.src_uri, Path(file.abs_src_path or "")) for file in files.documentation_pages()]
    waiting = [(uri, path.relative_to(ROOT)) for uri, path in waiting if path.is_file()]
    waiting += [("", Path(name)) for name in ALWAYS]
    for name in ALWAYS:
        files.append(_page(Path(name), config))
    while waiting:
        _, path = waiting.pop()
        text = (ROOT / path).read_text(encoding="utf-8")
        for link, _ in LINK.findall(text):
            target = _target(path, link)
            if target is not None and files.get_file_from_path(_uri(target)) is None:
                files.append(_page(target, config))
                if target.suffix == ".md":
                    waiting.append((_uri(target), target))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Lead links out of docs/ to the pages made above."""
    uri = page.file.src_uri
    if uri.startswith("source/"):
        return markdown
    path = Path(uri).relative_to("project") if uri.startswith("project/") else Path("docs") / uri
    markdown = LISTING.sub(lambda found: f"{found[1]}\n\n{_listing(path, found[2], found[3])}", markdown)

    def led(found: re.Match[str]) -> str:
        target = _target(path, found[1])
        if target is None:
            return found[0]
        anchor = found[2] or ""
        if anchor and target.suffix == ".py":
            anchor = f' "line {_lines(target, anchor[1:])[0]}"'
        return os.path.relpath(_uri(target), os.path.dirname(uri)) + anchor

    return LINK.sub(led, markdown)


def on_page_content(content: str, **_: Any) -> str:
    """From titles to anchors: MkDocs does not know those of lines, and would call the links broken."""
    return LINE.sub(r'href="\1#__codelineno-0-\2"', content)


def _target(page: Path, link: str) -> Path | None:
    """The project's file that a page links to, if it is one and lies outside docs/."""
    path = Path(os.path.normpath(page.parent / link))
    outside = path.parts[0] not in ("docs", "..") and (ROOT / path).is_file()
    return path if outside or (path.suffix == ".py" and (ROOT / path).is_file()) else None


def _uri(path: Path) -> str:
    if path.suffix == ".md" or path.suffix in PICTURES:
        return f"project/{path.as_posix()}"
    return f"source/{path.as_posix()}.md"


def _page(path: Path, config: MkDocsConfig) -> File:
    if path.suffix in PICTURES or path.suffix == ".md":
        return File.generated(config, _uri(path), abs_src_path=str(ROOT / path))
    language = LANGUAGES.get(path.suffix, "text")
    text = (ROOT / path).read_text(encoding="utf-8")
    content = f'# `{path.as_posix()}`\n\n````` {{ .{language} linenums="1" }}\n{text}\n`````\n'
    return File.generated(config, _uri(path), content=content, inclusion=InclusionLevel.NOT_IN_NAV)


def _lines(path: Path, name: str) -> tuple[int, int]:
    """First and last line of a function, class or method `Class.method` of a file."""
    node: Any = ast.parse((ROOT / path).read_text(encoding="utf-8"))
    for part in name.split("."):
        node = next((each for each in node.body if getattr(each, "name", None) == part), None)
        if node is None:
            log.warning("%s has no %s", path, name)
            return 1, 1
    return node.lineno, node.end_lineno


def _listing(page: Path, link: str, name: str) -> str:
    """The source of a function as a code block, without the indentation of its class."""
    target = _target(page, link)
    if target is None:
        log.warning("%s: there is no %s", page, link)
        return ""
    first, last = _lines(target, name)
    lines = (ROOT / target).read_text(encoding="utf-8").splitlines()[first - 1 : last]
    indent = len(lines[0]) - len(lines[0].lstrip())
    body = "\n".join(line[indent:] for line in lines)
    return f"``` python\n{body}\n```\n"
