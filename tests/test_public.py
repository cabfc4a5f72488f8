"""The public names: few, all there, and cheap to import."""

import importlib.util
import subprocess
import sys

import pytest

import worldsize


def modules_after(statement: str) -> set[str]:
    """What a new interpreter has loaded after this statement."""
    program = f"import sys\n{statement}\nprint(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def test_public_names_are_few_and_all_resolve():
    assert len(worldsize.__all__) == len(set(worldsize.__all__)) <= 15
    for name in worldsize.__all__:
        assert getattr(worldsize, name) is not None
    assert {*worldsize._HOME, "__version__"} == set(worldsize.__all__)


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="module 'worldsize' has no attribute 'trian'"):
        worldsize.trian  # noqa: B018  # the access is what is tested


def test_importing_worldsize_does_not_import_torch():
    loaded = modules_after("import worldsize")
    assert "worldsize" in loaded
    assert not {"torch", "numpy"} & loaded


def test_importing_the_command_line_does_not_import_torch():
    if importlib.util.find_spec("worldsize.cli") is None:
        pytest.skip("worldsize.cli is not written yet")
    loaded = modules_after("import worldsize.cli")
    assert "worldsize.cli" in loaded
    assert not {"torch", "numpy"} & loaded
