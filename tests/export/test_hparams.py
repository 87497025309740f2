from lightning_sm._export import as_json_values, saved_hparams
from tests.projects.nets import Net


class Together(Net):
    def __init__(self, options, extra=1):
        super().__init__()
        self._hparams = {}
        self.save_hyperparameters(options)


def test_what_a_model_saved():
    assert saved_hparams(Net(width=3)) == {"width": 3, "lr": 0.1}


def test_options_in_one_argument():
    found = saved_hparams(Together({"depth": 2}))
    assert found["options"]["depth"] == 2


def test_a_model_that_saved_nothing():
    assert saved_hparams(object()) is None


def test_what_json_can_hold():
    assert as_json_values({"sizes": (1, 2), "name": "x"}) == {"sizes": [1, 2], "name": "x"}
    assert as_json_values({"loss": object()}) is None
    assert as_json_values({"lr": float("nan")}) is None
    assert as_json_values(None) is None
