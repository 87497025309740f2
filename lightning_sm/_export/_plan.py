"""``ExportPlan``: what of a model is exported, and how."""

from dataclasses import dataclass
from typing import Optional, Sequence, Tuple, Union

from lightning_sm._export._format import Format
from lightning_sm._export._formats import FORMATS
from lightning_sm.errors import ExportError

__all__ = ["ExportPlan"]


@dataclass(frozen=True)
class ExportPlan:
    """What is exported. Read it with :meth:`read`.

    Args:
        format_name: A name of :data:`FORMATS`.
        weights: ``best`` or ``last``.
        submodule: The path of a part of the model; ``None`` for the whole.
        example_shape: The shape of an input.
        serving: Whether the code for an inference container is written, too.
    """

    format_name: str = "state_dict"
    weights: str = "best"
    submodule: Optional[str] = None
    example_shape: Optional[Tuple[int, ...]] = None
    serving: bool = False

    @property
    def format(self) -> Format:
        """The format."""
        return FORMATS[self.format_name]

    @classmethod
    def read(
        cls,
        export: Union[bool, str] = True,
        weights: str = "best",
        submodule: Optional[str] = None,
        example_input: Optional[Sequence[int]] = None,
        serving: bool = False,
    ) -> Optional["ExportPlan"]:
        """Read the options of the group ``sagemaker``; ``None`` where nothing is to be exported.

        Raises:
            ExportError: An option has no meaning, or the format cannot be written here.
        """
        if export is False or str(export).lower() == "false":
            return None
        name = "state_dict" if export is True or str(export).lower() == "true" else str(export)
        if name not in FORMATS:
            raise ExportError(f"sagemaker.export is {export!r}.", hint=f"Set it to {_or([*FORMATS, 'false'])}.")
        if weights not in ("best", "last"):
            raise ExportError(f"sagemaker.export_weights is {weights!r}.", hint="Set it to best or last.")
        if submodule is not None and not all(submodule.split(".")):
            raise ExportError(
                f"sagemaker.export_submodule is {submodule!r}.",
                hint="Name a part of the model, as in backbone.encoder.",
            )
        if submodule is not None and name == "checkpoint":
            raise ExportError(
                f"sagemaker.export is checkpoint and sagemaker.export_submodule is {submodule}, but a checkpoint is of "
                "the whole model.",
                hint="Set sagemaker.export to state_dict, or leave export_submodule out.",
            )
        shape = None if example_input is None else tuple(example_input)
        if shape is not None and not (shape and all(type(size) is int and size > 0 for size in shape)):
            raise ExportError(
                f"sagemaker.export_example_input is {list(shape)!r}.",
                hint="Set it to the sizes of an input's dimensions, the batch first, as in [1, 3, 32, 32].",
            )
        plan = cls(name, weights, submodule, shape, bool(serving))
        plan.format.check()
        return plan


def _or(names: Sequence[str]) -> str:
    return f"{', '.join(names[:-1])} or {names[-1]}"
