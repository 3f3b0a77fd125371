"""`--markdown`: read by a Markdown parser, the text is what the terminal shows, whatever names hold."""

from __future__ import annotations

import io
from html.parser import HTMLParser

import pytest
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from traceable.protocol.environment import escape_unprintable
from traceable.report.layout import Cells
from traceable.report.markdown_output import MarkdownPage

HOSTILE = (
    *(
        "a|b",
        "`code`",
        "<script>alert(1)</script>",
        "<!-- x",
        "[x](http://h)",
        "![i](u)",
        "**b** _i_ ~~s~~",
        "\\",
        "\\|",
    ),
    *(
        "# head",
        "- item",
        "1. item",
        "> quote",
        "---",
        "===",
        "&amp;",
        "a\nb\n\n# c",
        "\x1b[31m",
        "$x$",
        "\t x",
        "a  \nb",
    ),
)


class Text(HTMLParser):
    """The text of HTML, and the names of its elements."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.text = ""
        self.elements: list[str] = []
        self.cells: list[str] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.elements.append(tag)
        if tag in ("td", "th"):
            self.cells.append("")

    def handle_data(self, data: str) -> None:
        self.text += data
        if self.cells:
            self.cells[-1] += data.strip("\n")


def render(markdown: str) -> Text:
    return Text(MarkdownIt("commonmark").enable(["table", "strikethrough"]).render(markdown))


def write(*lines: str) -> str:
    stream = io.StringIO()
    page = MarkdownPage(stream)
    for line in lines:
        page.write_line(line)
    return stream.getvalue()


def normalize(text: str) -> str:
    return text.replace("\N{NO-BREAK SPACE}", " ").strip()


@pytest.mark.parametrize("text", HOSTILE)
def test_a_line_is_one_paragraph_with_this_text(text: str) -> None:
    rendered = render(write(text))
    assert rendered.elements == ["p"]
    assert normalize(rendered.text) == escape_unprintable(text).strip()


@given(st.text(min_size=1).filter(lambda text: escape_unprintable(text).strip()))
def test_any_text_is_one_paragraph_with_this_text(text: str) -> None:
    rendered = render(write(text))
    assert rendered.elements == ["p"]
    assert normalize(rendered.text).split() == escape_unprintable(text).split()


@pytest.mark.parametrize("text", HOSTILE)
def test_a_cell_is_one_cell_with_this_text(text: str) -> None:
    stream = io.StringIO()
    columns = [Cells("range", [text, "next"], is_text=True), Cells("mean", ["1 us", "2 us"])]
    MarkdownPage(stream).write_table(columns)
    rendered = render(stream.getvalue())
    assert [
        element for element in rendered.elements if element not in ("table", "thead", "tbody", "tr", "th", "td")
    ] == []
    assert [normalize(cell) for cell in rendered.cells] == [
        *("range", "mean", escape_unprintable(text).strip(), "1 us", "next", "2 us")
    ]


def test_nobody_is_mentioned() -> None:
    assert "@someone" not in write("of @someone")
    assert normalize(render(write("of @someone")).text) == "of @someone"


def test_leading_spaces_of_a_tree_are_kept() -> None:
    stream = io.StringIO()
    MarkdownPage(stream).write_table([Cells("range", ["step", "  forward"], is_text=True)])
    assert render(stream.getvalue()).cells[-1] == "\N{NO-BREAK SPACE}" * 2 + "forward"
