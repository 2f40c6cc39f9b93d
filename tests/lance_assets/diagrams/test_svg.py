"""SVG: any text gives valid and small XML, and long text is truncated."""

import base64
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lance_assets.diagrams.svg import Picture, escape, shorten, text_width

SVG = "{http://www.w3.org/2000/svg}"


def drawn(picture: Picture) -> ElementTree.Element:
    return ElementTree.fromstring(picture.svg())


@given(st.text(alphabet=st.characters(exclude_categories=())))
def test_any_text_gives_valid_xml(words: str) -> None:
    picture = Picture(100, 20)
    picture.text(0, 10, words)
    picture.rect(0, 0, 10, 10, fill=words)
    (text,) = drawn(picture).iter(f"{SVG}text")
    assert "".join(text.itertext()) is not None
    assert not list(text)


@pytest.mark.parametrize(
    "words", ["</text><script>alert(1)</script>", '"/><a href="javascript:1">', "a & b", "\x00\ud800"]
)
def test_text_is_not_markup(words: str) -> None:
    picture = Picture(100, 20)
    picture.text(0, 10, words, fill=words)
    root = drawn(picture)
    assert {each.tag for each in root.iter()} == {f"{SVG}svg", f"{SVG}rect", f"{SVG}text"}
    (text,) = root.iter(f"{SVG}text")
    assert text.text == words.replace("\x00", "\N{REPLACEMENT CHARACTER}").replace(
        "\ud800", "\N{REPLACEMENT CHARACTER}"
    )


def test_every_shape_is_drawn() -> None:
    picture = Picture(200, 100.04, background=None)
    picture.rect(1, 2, 30, -4, fill="#fff", stroke="#000", radius=3, dashed=True)
    picture.circle(5, 5, 2)
    picture.line((0, 0), (10.26, 5))
    picture.path([(0, 0), (1, 1), (2, 0)], closed=True)
    picture.path([])
    picture.curve((0, 0), (10, 10), dashed=True)
    picture.arrowhead((10, 10))
    root = drawn(picture)
    assert [each.tag.removeprefix(SVG) for each in root] == ["rect", "circle", "line", "path", "path", "path"]
    rect, _, line, path, curve, head = root
    assert rect.attrib == {
        "x": "1", "y": "2", "width": "30", "height": "0", "rx": "3", "fill": "#fff", "stroke": "#000",
        "stroke-dasharray": "4 3",
    }  # fmt: skip
    assert line.get("x2") == "10.3"
    assert path.get("d") == "M0 0L1 1L2 0Z"
    assert curve.get("d") == "M0 0C5 0 5 10 10 10"
    assert (head.get("d"), head.get("stroke")) == ("M10 10L4 7L4 13Z", None)
    assert root.get("viewBox") == "0 0 200 100"


def test_markdown_embeds_the_image() -> None:
    picture = Picture(10, 10)
    picture.text(0, 0, "größer")
    markdown = picture.markdown("a](x)\n![b")
    assert markdown.startswith("![a x b](data:image/svg+xml;base64,")
    assert markdown.endswith(")")
    data = markdown.removesuffix(")").partition("base64,")[2]
    assert base64.b64decode(data).decode() == picture.svg()


def test_text_is_truncated_by_width() -> None:
    words = "x" * 100
    assert shorten(words, text_width(words)) == words
    assert text_width(shorten(words, 200, 10), 10) <= 200


def test_escaped() -> None:
    assert escape("<a href=\"b\">'&'</a>") == "&lt;a href=&quot;b&quot;&gt;&#39;&amp;&#39;&lt;/a&gt;"
