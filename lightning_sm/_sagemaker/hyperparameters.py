"""``Hyperparameters``: the hyperparameters of a job, with the types that the user gave them."""

import json
import re
from dataclasses import dataclass, field
from typing import Any, Dict, List, Mapping, Optional, Sequence

from lightning_sm._sagemaker.json_input import expect_mapping
from lightning_sm.errors import HyperparameterError

__all__ = ["Hyperparameters", "is_reserved"]

_RESERVED_PREFIX = "sagemaker_"
# Names that the toolkit does not pass to the script, and `mp_parameters`, which it passes by mistake:
# sagemaker_training/params.py and mapping.py. SDK v3's drivers pass all of them.
_RESERVED_NAMES = frozenset({"_tuning_objective_metric", "default_user_module_name", "mp_parameters"})


def is_reserved(name: str) -> bool:
    """Whether a hyperparameter is SageMaker's own, so that the user's parser must not see it."""
    return name.startswith(_RESERVED_PREFIX) or name in _RESERVED_NAMES


@dataclass(frozen=True)
class Hyperparameters:
    """The hyperparameters of a training job: the user's, with their types, and SageMaker's own.

    :attr:`TrainingJob.hyperparameters <lightning_sm.TrainingJob>` holds them. Outside a SageMaker container there are
    none.

    File, written by the service on each host before the container starts:

    ``input/config/hyperparameters.json`` below the base directory
      A JSON object in which each value is a string. SDK v2 encodes each value as JSON, so that types are kept. SDK v3
      and plain API calls do not encode values, so that ``"5"`` may be a number or a string; :meth:`get` and parsers
      then convert it to the type that they need.

    Environment variables, set by the training toolkit; read only if that file does not exist:

    ``SM_HPS``
      A JSON object of the user's hyperparameters with their types.

    ``SM_FRAMEWORK_PARAMS``
      The same for SageMaker's own hyperparameters.

    Sources: ``sagemaker_training/params.py``, ``sagemaker_training/environment.py``.

    Args:
        values: The user's hyperparameters by name: numbers, booleans, ``None``, strings, lists and dicts.
        reserved: SageMaker's own (``sagemaker_*``, ``_tuning_objective_metric``, ``mp_parameters``).
        source: The file or variable that they were read from.
        texts: The strings of the file, before decoding.

    Raises:
        HyperparameterError: There is no hyperparameter of a name (``hyperparameters[name]``).

    Example::

        >>> hyperparameters = Hyperparameters({"lr": 0.1, "trainer.max_epochs": "5"})
        >>> hyperparameters["lr"]
        0.1
        >>> hyperparameters.get("trainer.max_epochs", 10), hyperparameters.get("batch_size", 32)
        (5, 32)
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
                hint="Add it to the job, or use get() with a default.",
            ) from None

    def __contains__(self, name: object) -> bool:
        return name in self.values

    def get(self, name: str, default: Any = None) -> Any:
        """Return a hyperparameter, converted to the type of ``default``; ``default`` if the job does not have it.

        Args:
            name: The name of the hyperparameter.
            default: A value of the type that the script needs. ``None``: the value is returned unconverted.

        Raises:
            HyperparameterError: The value cannot be converted to that type.
        """
        value = self.values.get(name, default)
        if default is None or value is None:
            return value
        try:
            return _as_kind(value, type(default), self.text(name) if name in self.values else "")
        except (TypeError, ValueError) as error:
            raise HyperparameterError(
                f"The hyperparameter {name!r} is {value!r}, but the script needs {type(default).__name__}, the type of "
                f"its default {default!r}.",
                hint="Correct the hyperparameter of the job, or the default in the script.",
            ) from error

    def as_hydra(self) -> List[str]:
        """Return the user's hyperparameters as command line arguments for Hydra, with their types.

        ``config-name``, ``config-path`` and ``config-dir`` become flags of Hydra, every other name ``name=value``.

        Raises:
            HyperparameterError: Hydra's command line cannot write a key of a dict.

        Example::

            >>> Hyperparameters({"lr": 0.1, "layers": [64, 64], "config-name": "big"}).as_hydra()
            ['--config-name=big', 'lr=0.1', 'layers=[64,64]']
        """
        flags = [f"--{name}={value}" for name, value in self.values.items() if name in _HYDRA_FLAGS]
        # Hydra accepts flags only before overrides.
        return flags + [
            # An unencoded value may be a number or a string; Hydra parses it as it does on its command line.
            f"{name}={_as_hydra(value, is_open=self.texts.get(name) == value)}"
            for name, value in self.values.items()
            if name not in _HYDRA_FLAGS
        ]

    @classmethod
    def from_file(cls, content: Any, source: str, *, sdk_v3: bool = False) -> "Hyperparameters":
        """Decode ``hyperparameters.json``, in which every value is a string.

        If one value is not JSON, such as the unquoted name of the script, the values are not encoded (plain API calls,
        SDK v3). Then what looks like a number, a boolean or null stays a string, which the user's parser converts to
        the type of the parameter.

        Args:
            content: The content of the file.
            source: Its path.
            sdk_v3: Whether the job is known to be started by SDK v3.

        Raises:
            JobConfigError: The content is not a JSON object.
        """
        raw = expect_mapping(content, source)
        # The service adds the name of the objective without quotes to what SDK v2 and `lightning-sm tune` have encoded.
        added = "_tuning_objective_metric" if str(raw.get("sagemaker_program", "")).startswith('"') else None
        plain = sdk_v3 or not all(_is_json(value) for name, value in raw.items() if name != added)
        values = {name: _typed(value, keep_text=plain) for name, value in raw.items()}
        return cls._split(values, source, {name: value for name, value in raw.items() if isinstance(value, str)})

    @classmethod
    def from_variables(cls, content: Any, framework: Any) -> "Hyperparameters":
        """Take the content of ``SM_HPS`` and ``SM_FRAMEWORK_PARAMS``, whose values have types.

        Raises:
            JobConfigError: One of them is not a JSON object.
        """
        values = {**expect_mapping(framework, "SM_FRAMEWORK_PARAMS"), **expect_mapping(content, "SM_HPS")}
        return cls._split(values, "SM_HPS", {})

    @classmethod
    def _split(cls, values: Dict[str, Any], source: str, texts: Mapping[str, str]) -> "Hyperparameters":
        users = {name: value for name, value in values.items() if not is_reserved(name)}
        reserved = {name: value for name, value in values.items() if is_reserved(name)}
        return cls(users, reserved, source, texts)

    def text(self, name: str) -> str:
        """The value of ``name`` as it was written; a string without quotes."""
        value = self.values[name]
        return value if isinstance(value, str) else self.texts.get(name, json.dumps(value))

    @property
    def objective(self) -> Optional[str]:
        """The name of the metric that a tuning job optimizes; ``None`` in other jobs.

        SDK v2 encodes it as JSON, as it does with all values, and plain API calls write it as it is.
        """
        text = self.texts.get("_tuning_objective_metric", self.reserved.get("_tuning_objective_metric"))
        value = _typed(text, keep_text=False) if isinstance(text, str) and text.startswith('"') else text
        return str(value) if value not in (None, "") else None

    def enabled(self, name: str) -> bool:
        """Whether one of SageMaker's own switches is on. The string ``"true"`` counts, as in the toolkit."""
        value = self.reserved.get(name)
        return value is True or (isinstance(value, str) and value.strip('"').lower() == "true")

    def typed(self, args: Sequence[str]) -> List[str]:
        """Return a command line without what a launcher wrote: ``--name value`` for each hyperparameter.

        Args:
            args: The command line without the program's name.
        """
        kept, left = [], list(args)
        while left:
            arg = left.pop(0)
            name, equals, _ = arg.lstrip("-").partition("=")
            values = [] if equals else left[:1]
            is_written = name in self.values and any(value in self.spellings(name) for value in values)
            if arg.startswith("-") and (is_reserved(name) or is_written):
                del left[: len(values)]
            else:
                kept.append(arg)
        return kept

    def spellings(self, name: str) -> List[str]:
        """The strings that a launcher may have written for the value of ``name`` on the command line.

        The toolkit writes ``str(value)``, nothing for ``None``, and ``a=1,b=x`` for a dict
        (``sagemaker_training/mapping.py``); SDK v3 writes JSON (``sagemaker/train/container_drivers``).
        """
        value = self.values[name]
        spellings = [value if isinstance(value, str) else json.dumps(value), str(value)]
        if isinstance(value, str):
            # The toolkit decodes it and writes "1.50" as 1.5.
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
    """Convert a value to ``kind``, from a string if necessary. Values of other kinds are returned unchanged.

    Raises:
        ValueError: It cannot be converted.
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
        raise ValueError(f"not of type {kind.__name__}")
    return value


def _hydra_key(key: str) -> str:
    """Return a key of a dict in Hydra's grammar, which has no quotes for it and escapes for few characters."""
    if not _HYDRA_KEY.fullmatch(key):
        raise HyperparameterError(
            f"A hyperparameter holds the key {key!r}, which Hydra's command line cannot write.",
            hint="Set it in a config file of the program, or use ASCII letters, digits and _ in the key.",
        )
    return re.sub(r"[\\()\[\]{}:=, \t]", r"\\\g<0>", key)


# Hydra's own arguments that name a config: https://hydra.cc/docs/advanced/hydra-command-line-flags/
_HYDRA_FLAGS = ("config-name", "config-path", "config-dir")
_HYDRA_KEY = re.compile(r"[\w/\-\\+.$%*@?|()\[\]{}:=, \t]+", re.ASCII)
_PLAIN_TEXT = re.compile(r"[A-Za-z_][A-Za-z0-9_]*([./-][A-Za-z0-9_]+)*")


def _as_hydra(value: Any, *, is_open: bool = False) -> str:
    """Return a value in Hydra's grammar: https://hydra.cc/docs/advanced/override_grammar/basic/."""
    if isinstance(value, str):
        is_word = _PLAIN_TEXT.fullmatch(value) and value.lower() not in ("true", "false", "null", "nan", "inf")
        if is_word or (is_open and _is_json(value)):
            return value
        # Backslashes are escaped only before a quote.
        escaped = re.sub(r"(\\*)('|$)", lambda match: 2 * match.group(1) + (match.group(2) and "\\'"), value)
        return f"'{escaped}'"
    if isinstance(value, list):
        return f"[{','.join(map(_as_hydra, value))}]"
    if isinstance(value, dict):
        pairs = (f"{_hydra_key(str(key))}:{_as_hydra(value[key])}" for key in value)
        return f"{{{','.join(pairs)}}}"
    return "null" if value is None else str(value).lower() if isinstance(value, bool) else repr(value)
