"""``Hyperparameters``: a job's hyperparameters with the types their author gave them."""

import json
from dataclasses import dataclass, field
from typing import Any, Dict, List, Mapping, Optional

from lightning_sm._reading import expect_mapping

__all__ = ["Hyperparameters", "is_reserved"]

_RESERVED_PREFIX = "sagemaker_"
# Names that the toolkit takes out of the script's arguments, and `mp_parameters`, which it forgets to take out:
# sagemaker_training/params.py and mapping.py; SDK v3's drivers take out none of them.
_RESERVED_NAMES = frozenset({"_tuning_objective_metric", "default_user_module_name", "mp_parameters"})


def is_reserved(name: str) -> bool:
    """Whether a hyperparameter is SageMaker's own, and so never reaches the user's parser."""
    return name.startswith(_RESERVED_PREFIX) or name in _RESERVED_NAMES


@dataclass(frozen=True)
class Hyperparameters:
    """The user's hyperparameters and SageMaker's own.

    Args:
        values: The user's, by their exact names: numbers, booleans, ``None``, strings, lists and dicts.
        reserved: SageMaker's own (``sagemaker_*``, ``_tuning_objective_metric``, ``mp_parameters``).
        source: The file or variable that they were read from.
        texts: What the file holds, before it was decoded.
    """

    values: Mapping[str, Any] = field(default_factory=dict)
    reserved: Mapping[str, Any] = field(default_factory=dict)
    source: Optional[str] = None
    texts: Mapping[str, str] = field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def from_file(cls, content: Any, source: str, *, sdk_v3: bool = False) -> "Hyperparameters":
        """Type the content of ``hyperparameters.json``, in which SageMaker keeps every value as a string.

        SDK v2 encodes each value as JSON, so the types come back whole. Plain API calls and SDK v3 leave strings as
        they are, so that ``"5"`` may be the number or the string. Such a job shows by a value that is no JSON (the
        script's name is one); there, what looks like a single number, boolean or null stays text, from which the
        parameter's own type decides, as it does on a command line.

        Args:
            content: What the file holds.
            source: Its path.
            sdk_v3: Whether it is known that SDK v3 started the job.

        Raises:
            JobConfigError: The content is no JSON object.
        """
        raw = expect_mapping(content, source)
        plain = sdk_v3 or not all(_is_json(value) for value in raw.values())
        values = {name: _typed(value, keep_text=plain) for name, value in raw.items()}
        return cls._split(values, source, {name: value for name, value in raw.items() if isinstance(value, str)})

    @classmethod
    def from_variable(cls, content: Any, framework: Any, source: str) -> "Hyperparameters":
        """Take the content of ``SM_HPS`` and ``SM_FRAMEWORK_PARAMS``, which are typed already.

        Raises:
            JobConfigError: One of them is no JSON object.
        """
        values = {**expect_mapping(framework, "SM_FRAMEWORK_PARAMS"), **expect_mapping(content, source)}
        return cls._split(values, source)

    @classmethod
    def _split(
        cls, values: Dict[str, Any], source: str, texts: Optional[Mapping[str, str]] = None
    ) -> "Hyperparameters":
        users = {name: value for name, value in values.items() if not is_reserved(name)}
        reserved = {name: value for name, value in values.items() if is_reserved(name)}
        return cls(users, reserved, source, texts or {})

    def text(self, name: str) -> str:
        """The value of ``name`` as it was written, a string without quotes."""
        value = self.values[name]
        return value if isinstance(value, str) else self.texts.get(name, json.dumps(value))

    def enabled(self, name: str) -> bool:
        """Whether one of SageMaker's own switches is on; ``"true"`` as a string counts, as it does for the toolkit."""
        value = self.reserved.get(name)
        return value is True or (isinstance(value, str) and value.strip('"').lower() == "true")

    def spellings(self, name: str) -> List[str]:
        """How a launcher may have written the value of ``name`` as an argument.

        The toolkit writes ``str(value)``, nothing for ``None``, and ``a=1,b=x`` for a dict
        (``sagemaker_training/mapping.py``); SDK v3 writes JSON (``sagemaker/train/container_drivers``).
        """
        value = self.values[name]
        spellings = [value if isinstance(value, str) else json.dumps(value), str(value)]
        if isinstance(value, str):
            # What stayed text may have been decoded by the toolkit: "1.50" is written as 1.5.
            decoded = _typed(value, keep_text=False)
            spellings += [str(decoded), "" if decoded is None else json.dumps(decoded)]
        if value is None:
            spellings.append("")
        if isinstance(value, dict):
            spellings.append(",".join(f"{key}={value[key]}" for key in sorted(value)))
        return spellings


def _is_json(value: Any) -> bool:
    if not isinstance(value, str):
        return True
    try:
        json.loads(value)
    except (ValueError, RecursionError):
        return False
    return True


def _typed(value: Any, *, keep_text: bool) -> Any:
    if not isinstance(value, str) or not _is_json(value):
        return value
    decoded = json.loads(value)
    return value if keep_text and not isinstance(decoded, (str, list, dict)) else decoded
