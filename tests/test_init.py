import subprocess
import sys
from pathlib import Path

import pytest

import lightning_sm

_ROOT = str(Path(lightning_sm.__file__).parents[1])


def test_import_loads_little_of_the_standard_library():
    """``typing`` and ``logging`` are half of what the import takes, and are needed by every program with torch."""
    code = f"""
import importlib, logging, sys, typing
sys.path.append({_ROOT!r})
before = set(sys.modules)
import lightning_sm
print(*set(sys.modules) - before)
print(lightning_sm.TrainingJob.resolve({{}}).in_container, lightning_sm.Topology.resolve({{}}).num_nodes)
"""
    done = subprocess.run([sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True, timeout=60)
    loaded, without_any_package = done.stdout.splitlines()
    assert without_any_package == "False 1"
    assert sorted(loaded.split()) == [
        "lightning_sm",
        "lightning_sm._lightning",
        "lightning_sm._lightning.import_hook",
        "lightning_sm._lightning.levels",
        "lightning_sm._lightning.namespaces",
        "lightning_sm._logging",
        "lightning_sm._register",
        "lightning_sm._sagemaker",
        "lightning_sm._sagemaker.in_job",
        "lightning_sm._version",
        "lightning_sm.errors",
        "lightning_sm_entry",
    ]


@pytest.mark.parametrize("level", ["INFO", "WARNING"])
def test_a_logging_configuration_disables_nothing_that_it_does_not_name(level):
    code = f"""
import logging.config, lightning_sm
logging.getLogger("lightning_sm").setLevel({level!r})
logging.config.dictConfig({{"version": 1}})
lightning_sm._logging.log.info("a line")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ("a line" in done.stderr) is (level == "INFO")


def test_unknown_name():
    with pytest.raises(AttributeError, match="'lightning_sm' has no attribute 'Nothing'"):
        _ = lightning_sm.Nothing
