"""``Hyperparameters``: a job's hyperparameters with the types their author gave them."""

import json
import re
from dataclasses import dataclass, field
from typing import Any, Dict, List, Mapping, Optional

from lightning_sm._sagemaker.json_input import expect_mapping
from lightning_sm.errors import HyperparameterError

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

    def __getitem__(self, name: str) -> Any:
        try:
            return self.values[name]
        except KeyError:
            raise HyperparameterError(
                f"The job has no hyperparameter {name!r}. It has: {', '.join(sorted(self.values)) or 'none'}.",
                hint="Give it one, or read it with get() and a default.",
            ) from None

    def __contains__(self, name: object) -> bool:
        return name in self.values

    def get(self, name: str, default: Any = None) -> Any:
        """Return a hyperparameter with the type of ``default``, or ``default`` where the job has none of that name.

        SDK v3 and plain API calls leave numbers and booleans as text, which is then read as that type.

        Args:
            name: The hyperparameter's exact name.
            default: A value of the type that the script needs; without one the value is returned as the job has it.

        Raises:
            HyperparameterError: The value is of another type.
        """
        value = self.values.get(name, default)
        if default is None or value is None:
            return value
        try:
            return _as_kind(value, type(default), self.text(name) if name in self.values else "")
        except (TypeError, ValueError) as error:
            raise HyperparameterError(
                f"The hyperparameter {name!r} is {value!r}, and the script needs {type(default).__name__}, as its "
                f"default {default!r} is.",
                hint="Correct the hyperparameter of the job, or the default in the script.",
            ) from error

    def as_hydra(self) -> List[str]:
        """Return the user's hyperparameters as words of a command line of Hydra, with their types.

        ``config-name``, ``config-path`` and ``config-dir`` become Hydra's flags, any other name ``name=value``.
        """
        flags = [f"--{name}={value}" for name, value in self.values.items() if name in _HYDRA_FLAGS]
        # Hydra reads flags before overrides only.
        return flags + [
            # What was not encoded may be a number as well as text, and Hydra reads it as on its command line.
            f"{name}={_as_hydra(value, is_open=self.texts.get(name) == value)}"
            for name, value in self.values.items()
            if name not in _HYDRA_FLAGS
        ]

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


def _as_kind(value: Any, kind: type, text: str) -> Any:
    """Return a value as a number, boolean, text, list or dict, from text where that means one; others as they are.

    Raises:
        ValueError: It is none.
    """
    if kind is str:
        return value if isinstance(value, str) else text
    if kind not in (bool, int, float, list, tuple, dict):
        return value
    if isinstance(value, str):
        value = float(value) if kind is float else json.loads(value.lower() if kind is bool else value)
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if kind is int and isinstance(value, float) and value.is_integer():
        return int(value)
    if kind is tuple and isinstance(value, list):
        return tuple(value)
    if type(value) is not kind:
        raise ValueError(f"it is no {kind.__name__}")
    return value


# Hydra's own arguments that name a config: https://hydra.cc/docs/advanced/hydra-command-line-flags/
_HYDRA_FLAGS = ("config-name", "config-path", "config-dir")
_PLAIN_TEXT = re.compile(r"[A-Za-z_][A-Za-z0-9_]*([./-][A-Za-z0-9_]+)*")


def _as_hydra(value: Any, *, is_open: bool = False) -> str:
    """Return a value in Hydra's grammar: https://hydra.cc/docs/advanced/override_grammar/basic/."""
    if isinstance(value, str):
        is_word = _PLAIN_TEXT.fullmatch(value) and value.lower() not in ("true", "false", "null", "nan", "inf")
        if is_word or (is_open and _is_json(value)):
            return value
        # A backslash counts only before a quote, and there twice.
        escaped = re.sub(r"(\\*)('|$)", lambda match: 2 * match.group(1) + (match.group(2) and "\\'"), value)
        return f"'{escaped}'"
    if isinstance(value, list):
        return f"[{','.join(map(_as_hydra, value))}]"
    if isinstance(value, dict):
        pairs = (re.sub(r"[^\w./-]", r"\\\g<0>", str(key)) + ":" + _as_hydra(value[key]) for key in value)
        return f"{{{','.join(pairs)}}}"
    return "null" if value is None else str(value).lower() if isinstance(value, bool) else repr(value)
