"""Errors: of a kind that a caller would expect, with an exit code, and known by their names."""

import re

from worldsize import errors


def test_every_error_of_ours_is_also_of_the_kind_a_caller_would_expect():
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, Exception)]
    assert len(kinds) >= 9
    for kind in kinds:
        assert issubclass(kind, errors.WorldsizeError)
        assert kind is errors.WorldsizeError or issubclass(kind, ValueError | RuntimeError)
        assert errors.by_name(kind.__name__, "x").exit_code == (2 if issubclass(kind, errors.Misuse) else 1)
    assert errors.by_name("ValueError", "x") is None


def test_the_tree_at_the_top_of_the_module_is_that_of_the_classes():
    found = {name: kind.__bases__[0].__name__ for name, kind in vars(errors).items() if isinstance(kind, type)}
    told, above = {}, ["Exception"]
    for indent, name in re.findall(r"^    ([ │├└─]*)(\w+)", errors.__doc__, re.MULTILINE):
        depth = len(indent) // 4
        told[name] = above[depth]
        above[depth + 1 :] = [name]
    assert told == found


def test_an_error_goes_by_name_with_its_words():
    made = errors.by_name("ResumeError", "no such step")
    assert (type(made), str(made)) == (errors.ResumeError, "no such step")
    assert errors.by_name("by_name", "x") is None, "a name of this module that is no error"
