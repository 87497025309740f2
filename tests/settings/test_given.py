from lightning_sm._settings.given import Given
from lightning_sm._settings.line import Part

FILE = Part(
    "a.yaml", {"data.data_dir": "kept", "data.val_dir": None, "trainer.callbacks": [{"dirpath": "best"}]}, (), "a"
)
TYPED = Part("the command line", {"data.data_dir": "typed", "trainer.logger.save_dir": "logs"})
LATER = Part("b.yaml", {"data.data_dir": "later", "data": "m.D"}, path="b.yaml")


def test_who_set_a_key_last_decides_whether_it_stays():
    for parts, source, explicit in (
        ((FILE,), "a.yaml", False), ((FILE, TYPED), "the command line", True), ((FILE, TYPED, LATER), "b.yaml", False),
    ):  # fmt: skip
        given = Given({}, parts)
        assert (given.source_of("data.data_dir"), given.is_explicit("data.data_dir")) == (source, explicit)
    assert Given().source_of("data.data_dir") is None
    assert not Given({}, (LATER,)).is_explicit("data.val_dir")  # a class leaves its arguments open


def test_what_routing_replaces():
    assert Given({}, (FILE,)).replaced_by_routing("data.data_dir") == ("replaces kept from a.yaml", "kept")
    assert Given({}, (FILE,)).replaced_by_routing("data.val_dir") == (None, None)
    assert Given({"data": {"x": 1}}, ()).replaced_by_routing("data.x") == (None, None)


def test_arguments_of_one_of_several_classes():
    given = Given({}, (FILE, TYPED))
    assert given.source_in("trainer.callbacks", "dirpath", "best") == "a.yaml"
    assert given.source_in("trainer.callbacks", "dirpath", "other") is None
    assert given.explicit_texts("save_dir") == {"logs"}
    assert given.explicit_texts("dirpath") == frozenset()


def test_the_class_of_a_group():
    assert Given({"data": "m.D", "model": {"class_path": "m.M"}}).class_path("data") == "m.D"
    assert Given({"data": "m.D", "model": {"class_path": "m.M"}}).class_path("model") == "m.M"
    assert Given({"data": None}).class_path("data") is None
