"""The Hydra example, run as SageMaker's toolkit runs it, and Hydra's grammar."""

import shutil

import pytest

from lightning_sm import Hyperparameters, TrainingJob
from lightning_sm._export import load_file
from tests.helpers.processes import ROOT, local_rendezvous, run_python

pytest.importorskip("hydra", reason="hydra-core is not installed")
EXAMPLE = ROOT / "examples" / "hydra"


@pytest.fixture
def run(opt_ml):
    """Return a function that runs a copy of the example in a container's code folder, as the toolkit runs it."""
    pytest.importorskip("lightning.pytorch", reason="the example uses lightning.pytorch")
    shutil.copytree(EXAMPLE, opt_ml.base / "code", ignore=shutil.ignore_patterns("outputs", "__pycache__"))
    opt_ml.host("algo-1").write("inputdataconfig.json", {"training": {"TrainingInputMode": "File"}})
    channel = opt_ml.base / "input" / "data" / "training"
    channel.mkdir(parents=True)
    (channel / "numbers.txt").write_text("0 1\n1 2\n2 3\n3 4\n")

    def run(hyperparameters, **options):
        opt_ml.hyperparameters(**hyperparameters)
        words = [word for name, value in hyperparameters.items() for word in (f"--{name}", str(value))]
        places = {"SM_MODEL_DIR": opt_ml.base / "model", "SM_OUTPUT_DATA_DIR": opt_ml.base / "output" / "data"}
        environ = opt_ml.environ(SM_NUM_GPUS=0, **places)
        return run_python("train.py", *words, folder=opt_ml.base / "code", **environ, **options)

    return run


@pytest.mark.full
def test_in_a_job_of_two_processes_that_lightning_starts(opt_ml, run):
    hyperparameters = {"model": "large", "model.lr": 0.01, "trainer.max_epochs": 2, "+trainer.log_every_n_steps": 1}
    hyperparameters.update({"+trainer.devices": 2, "config-name": "config"})
    _, address, _, port = local_rendezvous()
    done = run(hyperparameters, MASTER_ADDR=address, MASTER_PORT=port)
    assert "distributed_backend=gloo" in done.stderr
    assert "All distributed processes registered. Starting with 2 processes" in done.stderr
    assert load_file(str(opt_ml.base / "model" / "model.pt"), weights_only=True)["layers.0.weight"].shape == (64, 1)
    output = opt_ml.base / "output" / "data"
    assert list(output.rglob("metrics.csv"))
    assert "max_epochs: 2" in (output / "hydra" / ".hydra" / "config.yaml").read_text()
    assert {path.name for path in (opt_ml.base / "code").iterdir()}.isdisjoint({"logs", "outputs"})
    assert "test_loss" in done.stdout


@pytest.mark.full
def test_an_error_is_the_failure_reason(opt_ml, run):
    run({"model.hiden": 3}, code=1)
    assert "Key 'hiden' is not in struct" in (opt_ml.base / "output" / "failure").read_text()


VALUES = [
    1, -2, 1.5, 1e-7, True, False, None, "", "resnet", "a/b.c", "s3://bucket/x y", "1", "1e5", "true", "null", "NaN",
    "it's", 'a "b"', "a=b,c", "{x}", "[x]", "(x)", "\\", "x\\", "\\'", "a\\\\'b", "x\\\\", "ä", "a: b", " x ",
    [1, "2", [None, True]], {"a": 1, "b": {"c": "3"}}, {"a b": ["x y"], "2": "it's"}, [], {},
    *({key: 1} for key in ["a@b", "+", "$x", "${x}", "50%", "a*?|b", "\\", "a\\b", "\\,", "(a)", "[]", "a:b=c,d"]),
]  # fmt: skip


@pytest.mark.parametrize("value", VALUES, ids=repr)
def test_hydra_reads_the_value_that_was_meant(value):
    from hydra._internal.config_loader_impl import ConfigLoaderImpl
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from omegaconf import OmegaConf

    (override,) = OverridesParser.create().parse_overrides(Hyperparameters({"model.x": value}).as_hydra())
    assert not override.is_sweep_override()
    config = OmegaConf.create({"model": {"x": "before"}})
    ConfigLoaderImpl._apply_overrides_to_config([override], config)
    found = OmegaConf.select(config, "model.x")
    found = OmegaConf.to_container(found) if OmegaConf.is_config(found) else found
    if isinstance(value, dict):
        # Hydra takes a key that looks like a number for one.
        found = {str(key): entry for key, entry in found.items()}
    assert (found, type(found)) == (value, type(value))


@pytest.mark.parametrize(
    ("typed", "expected"),
    [
        (["--x", "1", "--config-name", "small"], ["--config-name=small", "x=1"]),  # the toolkit
        ([], ["--config-name=small", "x=1"]),  # SDK v3's command, an entry point of the container's own
        (["x=2"], ["--config-name=small", "x=2"]),
        (["--config-name", "big", "y=3", "--x", "1"], ["--config-name", "big", "y=3", "x=1"]),
        (["--config-name=small", "x=1", "hydra.run.dir=y"], ["--config-name=small", "x=1", "hydra.run.dir=y"]),
    ],
)
def test_hyperparameters_stand_beside_what_was_typed(typed, expected):
    job = TrainingJob(in_container=True, hyperparameters=Hyperparameters({"x": 1, "config-name": "small"}))
    assert job.hydra_overrides(typed) == expected
    assert TrainingJob().hydra_overrides(typed) == typed
