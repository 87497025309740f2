"""The command with the example's config files: two processes on CPUs train what DDP trains."""

from pathlib import Path

import pytest

pl = pytest.importorskip("pytorch_lightning", minversion="2.4", reason="FSDP2 needs Lightning 2.4")
pytest.importorskip("torch", minversion="2.4", reason="FSDP2 needs torch 2.4")

from tests.helpers.processes import Job, extended  # noqa: E402

pytestmark = pytest.mark.sharded
SCRIPT = Path(__file__).parent / "train_cli.py"
WORDS = (
    "--config=config.yaml",
    "--trainer.accelerator=cpu",
    "--trainer.max_steps=4",
    "--trainer.limit_val_batches=1",
    "--trainer.val_check_interval=4",
    "--trainer.enable_progress_bar=false",
    "--model.layers=2",
    "--model.width=16",
    "--model.heads=2",
    "--sagemaker.export=false",
)
# The strategies of Lightning's that run on GPUs only are replaced by subclasses for CPUs, with the file's arguments.
KINDS = {
    "fsdp2": (),
    "fsdp": ("--trainer.strategy=tests.sharded.cli_strategies.CPUFSDPStrategy",),
    "deepspeed_stage_2": ("--trainer.strategy=tests.sharded.cli_strategies.CPUDeepSpeedStrategy",),
    "deepspeed_stage_3": ("--trainer.strategy=tests.sharded.cli_strategies.CPUDeepSpeedStrategy",),
}
ARGUMENTS = {
    "fsdp": (
        "--trainer.strategy.auto_wrap_policy=[model.Block]",
        "--trainer.strategy.activation_checkpointing_policy=[model.Block]",
        "--trainer.strategy.state_dict_type=sharded",
    ),
    "deepspeed_stage_2": ("--trainer.strategy.stage=2",),
    "deepspeed_stage_3": ("--trainer.strategy.config=ds_config.json",),
}


def trained(folder, *words):
    job = Job(folder, SCRIPT, *WORDS, *words, timeout=240, SM_NUM_GPUS=0, CUDA_VISIBLE_DEVICES="")
    return job.torchrun(1, 2), job.results(2)


@pytest.fixture(scope="module")
def by_ddp(tmp_path_factory):
    """What two processes come to with DDP."""
    _, results = trained(tmp_path_factory.mktemp("ddp"), "--trainer.strategy=ddp")
    return [result["losses"] for result in results]


@pytest.mark.parametrize("kind", [kind if kind in ("fsdp2", "deepspeed_stage_3") else extended(kind) for kind in KINDS])
def test_the_examples_config_trains_what_ddp_trains(tmp_path, by_ddp, kind):
    if kind.startswith("deepspeed"):
        pytest.importorskip("deepspeed", reason="deepspeed is not installed")
    words = [f"--config={kind}.yaml", "--trainer.precision=32-true", *KINDS[kind], *ARGUMENTS.get(kind, ())]
    job, results = trained(tmp_path, *words)
    for result, losses in zip(results, by_ddp):
        assert result["world_size"] == 2
        assert result["losses"] == pytest.approx(losses, abs=1e-5)
    assert len(results[0]["losses"]) == 4
    if kind == "fsdp2":
        assert results[0]["strategy"] == "ModelParallelStrategy"
        assert results[0]["sizes"] == [2, 1]
        assert "trainer.strategy.init_args.data_parallel_size = 2 ← 2 processes by torchrun" in job.output
    elif kind == "fsdp":
        assert results[0]["strategy"] == "CPUFSDPStrategy"
        assert "model.Block" in results[0]["policy"]
    else:
        assert results[0]["config"]["zero_optimization"]["stage"] == int(kind[-1])
