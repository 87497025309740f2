import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from lightning_sm._export import ExportFormat, Serving, distribution_versions
from lightning_sm._export.serving import class_path
from lightning_sm.errors import ExportError
from tests.projects.nets import Net


def test_project_code_and_its_requirements(served, tmp_path):
    Path("requirements.txt").write_text(
        "# comment\n\ntimm==1.0\ntorch==2.0\npytorch_lightning>=1\nlightning-sm\ngit+https://example.com/x\n"
    )
    serving = Serving.collect(served, ExportFormat.STATE_DICT, "pytorch-lightning")
    assert {"served_net.py", "served_parts/__init__.py", "served_parts/blocks.py"} <= set(serving.sources)
    assert "never_imported.py" not in serving.sources
    assert not any(name.startswith(("lightning_sm", "torch/", "pytorch_lightning/")) for name in serving.sources)
    versions = distribution_versions(["pytorch-lightning", "torchmetrics"])
    pinned = [f"{name}=={version}" for name, version in versions.items()]
    assert set(pinned) | {"timm==1.0", "git+https://example.com/x"} <= set(serving.requirements)
    names = [line.split("=")[0] for line in serving.requirements]
    assert not {"torch", "numpy", "lightning-sm"} & set(names)
    assert len(names) == len(set(names))
    serving.write(str(tmp_path / "archive"))
    code = tmp_path / "archive" / "code"
    assert (code / "served_parts" / "blocks.py").read_text() == Path("served_parts/blocks.py").read_text()
    assert "def model_fn(model_dir" in (code / "inference.py").read_text()
    assert "timm==1.0\n" in (code / "requirements.txt").read_text()


def test_requirements_in_files_of_their_own_with_hashes(served):
    Path("more").mkdir()
    Path("requirements.txt").write_text("-r more/base.txt\n--requirement=requirements.txt\n-c more/pins.txt\n-e .\n")
    hashes = "--hash=sha256:12 \\\n    --hash=sha256:34"
    Path("more/base.txt").write_text(f"-r ./other.txt\ntorch==2.0 \\\n    {hashes}\ntimm==1.0 {hashes}  # why\n")
    Path("more/other.txt").write_text("einops @ https://example.com/einops.whl#sha256=1\n")
    found = Serving.collect(served, ExportFormat.STATE_DICT, "pytorch-lightning").requirements
    assert found[-2:] == ("einops @ https://example.com/einops.whl#sha256=1", "timm==1.0")
    assert all("==" in line for line in found[:-2])
    assert not [line for line in found if line.startswith(("-", "torch=="))]


@pytest.mark.parametrize("name", ["torchscript", "exported_program"])
def test_graph_formats_need_no_project_code(name):
    assert Serving.collect(Net, ExportFormat(name), "pytorch-lightning") == Serving()


def test_a_class_of_the_script_itself(monkeypatch):
    monkeypatch.setattr(Net, "__module__", "__main__")
    with pytest.raises(
        ExportError, match=r"Net is defined in the script itself, .* HINT: Move the class into a module"
    ):
        Serving.collect(Net, ExportFormat.STATE_DICT, "pytorch-lightning")
    Serving.collect(Net, ExportFormat.TORCHSCRIPT, "pytorch-lightning")


def test_a_class_that_cannot_be_imported(served):
    from served_net import in_a_function

    with pytest.raises(ExportError, match=r"as served_net\.in_a_function\.<locals>\.Net .* HINT: Define the class"):
        Serving.collect(in_a_function(), ExportFormat.STATE_DICT, "pytorch-lightning")


def test_a_model_that_torch_has_sharded_is_of_the_class_that_was_given(served):
    sharded = type("FSDPNet", (served,), {"__module__": "torch.distributed.fsdp._fully_shard._fully_shard"})
    assert class_path(sharded) == class_path(served)
    assert Serving.collect(sharded, ExportFormat.STATE_DICT, "pytorch-lightning").sources


def test_a_project_with_a_module_of_that_name(served, monkeypatch):
    Path("inference.py").write_text("")
    monkeypatch.setitem(sys.modules, "inference", SimpleNamespace(__file__=str(Path("inference.py").resolve())))
    with pytest.raises(ExportError, match=r"the project has a module inference at .*inference.py. HINT: Rename"):
        Serving.collect(served, ExportFormat.STATE_DICT, "pytorch-lightning")
