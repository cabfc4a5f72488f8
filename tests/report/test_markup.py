"""Markup: whatever a text holds, it is shown as it stands and changes nothing around it."""

import xml.etree.ElementTree as ET

from hypothesis import example, given
from hypothesis import strategies as st

from worldsize.report.markup import Html, element, escape, join

# What XML reads back as it stands: no control characters, and no \r, which every parser turns into \n.
TEXTS = st.text(st.characters(exclude_categories=("Cc", "Cs"), exclude_characters="\ufffe\uffff"))


@given(TEXTS)
@example("<script>&amp;</p>\"'")
def test_any_text_is_read_back_as_content_and_as_an_attribute(text):
    read = ET.fromstring(element("p", text, element("br"), class_=text))
    assert (read.text or "") == text
    assert read.get("class") == text
    assert [child.tag for child in read] == ["br"]


@given(st.text(st.characters()))
def test_a_text_that_xml_forbids_is_still_a_page(text):
    ET.fromstring(element("p", text, title=text))


def test_finished_markup_is_not_escaped_again():
    inner = element("b", "1 < 2")
    assert escape(inner) is inner
    assert element("p", inner) == "<p><b>1 &lt; 2</b></p>"
    assert element("p", str(inner) + "") != element("p", inner), "a string of its own is text"
    assert isinstance(join([inner, inner], " "), Html)


def test_attributes_are_named_as_html_does_and_left_out_when_there_is_none():
    made = element("div", class_="scroll", aria_label="table", id=None, data_x=0)
    assert made == '<div class="scroll" aria-label="table" data-x="0"></div>'


def test_a_coordinate_has_one_decimal_at_most():
    assert element("line", x1=1.0, x2=2.345, y1=3) == '<line x1="1" x2="2.3" y1="3"/>'
