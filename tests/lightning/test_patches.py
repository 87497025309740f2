"""The table of patches tells of functions that are there."""

import importlib

import pytest

from lightning_sm._lightning.patches import PATCHES


@pytest.mark.parametrize("patch", PATCHES, ids=lambda patch: patch.function)
def test_each_patch_is_a_function_with_a_link_and_an_end(patch):
    module, _, name = patch.function.partition(".")
    assert callable(getattr(importlib.import_module(f"lightning_sm._lightning.{module}"), name))
    assert patch.link.startswith("https://github.com/")
    assert patch.replaced
    assert patch.versions
    assert patch.ends
