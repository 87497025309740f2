"""A pytest plugin that puts our classes in the place of Lightning's before its tests import them, and notes outcomes.

Loaded with ``-p tools.peers.plugin``. Lightning's test files, ``conftest.py`` and settings stay as they are.
"""

import json
import re
from pathlib import Path
from typing import Any, Dict, Tuple

import pytest

__all__ = ["ALONE", "IMPORTED", "SWAPPED", "name_alone"]

ALONE = "alone"
IMPORTED = "imported"
SWAPPED = "swapped"

# Whose place each class takes. Lightning's tests have the names of classes in their parameters.
_THEIRS = {
    "SMDDPStrategy": "DDPStrategy",
    "SageMakerCLI": "LightningCLI",
    "SageMakerEnvironment": "LightningEnvironment",
}
_outcomes: Dict[str, Tuple[str, str]] = {}


def pytest_addoption(parser: Any) -> None:
    """Add the options that ``python -m tools.peers`` gives."""
    group = parser.getgroup("lightning_sm")
    group.addoption("--lightning-sm", choices=(ALONE, IMPORTED, SWAPPED), default=SWAPPED)
    group.addoption("--lightning-sm-outcomes", metavar="FILE", help="where to write each test's outcome")


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(early_config: Any) -> None:
    """Swap before the first ``conftest.py`` is imported."""
    mode = early_config.known_args_namespace.lightning_sm
    if mode == SWAPPED:
        swap()
    elif mode == IMPORTED:
        import lightning_sm  # noqa: F401


def swap() -> None:
    """Bind our classes to the names of those whose place they take."""
    import lightning.fabric.plugins.environments as fabric_environments
    import lightning.pytorch.cli as cli
    import lightning.pytorch.plugins.environments as environments
    import lightning.pytorch.strategies as strategies
    import lightning.pytorch.trainer.connectors.accelerator_connector as connector

    from lightning_sm import SageMakerEnvironment
    from lightning_sm._distributed.registry import strategy_class
    from lightning_sm._lightning import Namespace
    from lightning_sm.cli import sagemaker_cli_class

    namespace = Namespace("lightning.pytorch")
    theirs: Any = strategies.DDPStrategy
    ours: Any = strategy_class(namespace, "SMDDPStrategy")
    _bind("LightningCLI", sagemaker_cli_class(namespace), cli)
    _bind("LightningEnvironment", SageMakerEnvironment, fabric_environments, environments, connector)
    _bind("DDPStrategy", ours, strategies)
    for entry in strategies.StrategyRegistry.values():
        if entry["strategy"] is theirs:
            entry["strategy"] = ours


def _bind(name: str, ours: Any, *modules: Any) -> None:
    for module in modules:
        # A name that is not there any more would leave its tests to judge Lightning's own class.
        assert hasattr(module, name), f"{module.__name__} has no {name}"
        setattr(module, name, ours)


def pytest_collectreport(report: Any) -> None:
    """Note a file that cannot be collected."""
    if report.failed:
        _outcomes[name_alone(report.nodeid)] = ("failed", _message(report))


def pytest_runtest_logreport(report: Any) -> None:
    """Note the outcome of a test: the worst of its three parts, in the last of its runs."""
    name = name_alone(report.nodeid)
    if report.outcome == "rerun" or report.when == "setup":
        _outcomes.pop(name, None)
    if report.outcome in ("rerun", "passed") and report.when != "call":
        return
    if _outcomes.get(name, ("", ""))[0] == "failed":
        return
    outcome = report.outcome
    if hasattr(report, "wasxfail"):
        outcome = "xfailed" if report.skipped else "xpassed"
    _outcomes[name] = (outcome, _message(report) if report.failed else "")


def name_alone(nodeid: str) -> str:
    """Return the name that a test has when nothing is swapped."""
    for ours, theirs in _THEIRS.items():
        nodeid = re.sub(rf"(?<=[\[-]){ours}(?=[]-])", theirs, nodeid)
    return nodeid


def _message(report: Any) -> str:
    crash = getattr(report.longrepr, "reprcrash", None)
    text = str(report.longrepr) if crash is None else str(crash.message)
    return text.strip()[:500]


def pytest_sessionfinish(session: Any) -> None:
    """Write the outcomes."""
    path = session.config.getoption("lightning_sm_outcomes")
    if path:
        Path(path).write_text(json.dumps(_outcomes), encoding="utf-8")
