"""A page is one file that fetches nothing, whatever it is given."""

import base64
import hashlib
import subprocess
import sys
import xml.etree.ElementTree as ET

from worldsize.report.markup import Html
from worldsize.report.page import Section, Tile, choice, command, commands, facts_table, render_page

EVIL = "</title></style><script>alert(1)</script><img src=http://example.org onerror=x>"


def parsed(page):
    """The page as a tree; all but the script is XML too."""
    start, end = page.index("<script>"), page.index("</script>") + len("</script>")
    return ET.fromstring(page[:start].removeprefix("<!doctype html>\n") + page[end:])


def evil_page():
    return render_page(
        EVIL,
        EVIL,
        [Tile(figure=EVIL, label=EVIL, note=EVIL)],
        [Section(title=EVIL, text=EVIL, content=[facts_table({EVIL: EVIL}), commands({EVIL: EVIL})])],
        {EVIL: EVIL},
        EVIL,
    )


def test_every_text_is_escaped():
    page = evil_page()
    assert page.count("<script") == page.count("</script>") == 1
    tree = parsed(page)
    assert not list(tree.iter("img"))
    assert tree.findtext(".//h1") == EVIL


def test_the_browser_is_told_to_fetch_nothing():
    policy = parsed(evil_page()).find(".//meta[@http-equiv]").get("content")
    assert "default-src 'none'" in policy
    assert "script-src 'sha256-" in policy


def test_nothing_is_loaded_from_anywhere():
    for node in parsed(evil_page()).iter():
        assert not {"src", "href", "srcset", "action"} & set(node.keys())
        assert node.tag not in ("link", "iframe", "object", "embed")
        assert "@import" not in (node.text or "")


def test_the_same_input_gives_the_same_bytes():
    assert evil_page() == evil_page()


def test_a_long_command_is_broken_as_a_shell_takes_it():
    text = command("worldsize train", [f"--flag-{i} value" for i in range(9)])
    assert all(len(line) <= 80 for line in text.splitlines())
    assert (
        text.replace("\\\n   ", "").split()
        == f"worldsize train {' '.join(f'--flag-{i} value' for i in range(9))}".split()
    )


def test_of_several_drawings_the_first_is_chosen_and_each_has_its_label():
    made = ET.fromstring(choice("axis", {"linear": Html("<p>a</p>"), EVIL: Html("<p>b</p>")}))
    boxes, labels = made.findall("input"), made.findall("label")
    assert [box.get("checked") for box in boxes] == ["checked", None]
    assert [box.get("id") for box in boxes] == [label.get("for") for label in labels]
    assert {box.get("name") for box in boxes} == {"axis"}
    assert [label.text for label in labels] == ["linear", EVIL]
    assert [part.findtext("p") for part in made.findall("div")] == ["a", "b"]


def test_a_page_can_have_style_and_script_of_its_own_and_the_browser_runs_them():
    page = render_page("t", "v", [], [], {}, css=".mine{}", script="const mine = 1")
    assert ".mine{}</style>" in page
    script = page[page.index("<script>") + 8 : page.index("</script>")]
    assert script.endswith("const mine = 1")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}'" in parsed(page).find(".//meta[@http-equiv]").get("content")


def test_pages_are_made_without_torch():
    pages = "worldsize.report.demo, worldsize.report.landscape, worldsize.report.run"
    code = f"import sys, {pages}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
