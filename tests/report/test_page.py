"""A page is one file that fetches nothing, whatever it is given."""

import subprocess
import sys
import xml.etree.ElementTree as ET

from worldsize.report.page import Section, Tile, command, commands, facts_table, render_page

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


def test_pages_are_made_without_torch():
    code = "import sys, worldsize.report.demo, worldsize.report.run; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
