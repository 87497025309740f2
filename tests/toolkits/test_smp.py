"""``--distribution smp``: a job on two hosts over the stand-in for AWS's model parallel library 1.x."""

import json
import shutil
import tarfile
from pathlib import Path

import pytest

from tests.helpers.processes import assert_equal
from tests.helpers.rehearsal import needs

from .running import rehearse

pytestmark = pytest.mark.full

_TESTS = Path(__file__).parents[1]
_PARAMETERS = {"partitions": 2, "microbatches": 2}


@needs("netns", torch=True, mpi=True)
def test_a_model_in_two_parts_on_two_hosts_is_that_of_one_process(tmp_path):
    from tests.helpers.smp import fit_plain

    source = tmp_path / "source"
    shutil.copytree(_TESTS / "standins" / "smdistributed", source / "smdistributed")
    for path in (_TESTS / "helpers" / "smp.py", _TESTS / "toolkits" / "train_smp.py"):
        shutil.copy(path, source)
    words = ("train_smp.py", "--mp_parameters", json.dumps(_PARAMETERS))
    done = rehearse(source, tmp_path / "out", "--hosts", 2, "--distribution", "smp", *words)
    assert done.summary["distribution"] == "smp"
    plain = fit_plain(8, gradient_clip_val=0.05)
    for rank in (0, 1):
        (seen,) = done.on(f"algo-{rank + 1}")
        assert seen["world"] == [rank, 2, "SMPStrategy"]
        assert_equal(seen["weights"], plain["weights"], abs=1e-6)
        assert seen["metrics"]["val_loss"] == pytest.approx(plain["metrics"]["val_loss"], abs=1e-6)
    with tarfile.open(tmp_path / "out" / "model.tar.gz") as archive:
        assert "model.pt" in archive.getnames()
