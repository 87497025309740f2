"""The names of the metrics that a model logs, read from its source without running it.

Followed are the model's hooks and the methods that they call with ``self``. Names are read where they are literals,
f-strings or concatenations of known strings: of an argument that a hook passes (``self.step(batch, "val")``), of a
local variable, of a loop over literals, or of an attribute of the model. Everything else is reported with its place.
"""

import ast
import inspect
import itertools
import textwrap
from dataclasses import dataclass, field
from typing import Any, Dict, List, Mapping, Optional, Set, Tuple

__all__ = ["STEP_HOOKS", "LoggedNames", "logged_names"]

# Hooks in which Lightning logs each step by default. Source: `_FxValidator.functions` in
# lightning/pytorch/trainer/connectors/logger_connector/fx_validator.py.
STEP_HOOKS = (
    *("training_step", "training_step_end", "on_train_batch_start", "on_train_batch_end", "on_before_backward"),
    *("on_after_backward", "on_before_optimizer_step", "on_before_zero_grad", "backward", "optimizer_step"),
    *(
        "optimizer_zero_grad",
        "configure_gradient_clipping",
        "clip_gradients",
        "lr_scheduler_step",
        "on_batch_start",
        "on_batch_end",
    ),
)
_EPOCH_HOOKS = (
    *("validation_step", "validation_step_end", "on_validation_batch_start", "on_validation_batch_end"),
    *("on_train_start", "on_train_epoch_start", "on_train_epoch_end", "training_epoch_end", "on_epoch_start"),
    *("on_validation_start", "on_validation_epoch_start", "on_validation_epoch_end", "validation_epoch_end"),
    *("on_validation_end", "on_epoch_end"),
)
_TEST_HOOKS = (
    *("test_step", "test_step_end", "on_test_batch_start", "on_test_batch_end", "on_test_start"),
    *("on_test_epoch_start", "on_test_epoch_end", "test_epoch_end"),
)
_LIBRARIES = ("lightning", "pytorch_lightning", "lightning_fabric", "torch", "torchmetrics", "builtins", "abc")
_POSITIONS = {"log": ("name", "value"), "log_dict": ("dictionary",)}
_FLAGS = ("prog_bar", "logger", "on_step", "on_epoch")


@dataclass(frozen=True)
class LoggedNames:
    """What the source of a model says about the metrics that it logs.

    Args:
        names: The names that loggers get, in the order of the hooks; those of ``test`` are the last.
        unknown: Calls whose names cannot be read, as ``file:line: code``.
    """

    names: Tuple[str, ...]
    unknown: Tuple[str, ...]


def logged_names(model: Any) -> LoggedNames:
    """Read the metrics that a ``LightningModule`` logs.

    Args:
        model: The class or an instance, whose attributes are then known as well.
    """
    reader = _Reader(model)
    for hook in (*STEP_HOOKS, *_EPOCH_HOOKS, *_TEST_HOOKS):
        reader.read(hook, {}, hook)
    return LoggedNames(tuple(reader.names), tuple(reader.unknown))


@dataclass
class _Method:
    node: Any
    file: str
    line: int  # of the class, as an offset of the node's lines
    owner: type


@dataclass
class _Reader:
    model: Any
    names: Dict[str, None] = field(default_factory=dict)
    unknown: Dict[str, None] = field(default_factory=dict)
    done: Set[Any] = field(default_factory=set)

    def __post_init__(self) -> None:
        cls = self.model if isinstance(self.model, type) else type(self.model)
        self.mro = cls.__mro__
        owners = [each for each in self.mro if each.__module__.split(".")[0] not in _LIBRARIES]
        self.methods: Dict[str, List[_Method]] = {}
        for owner in owners:
            for method in self._methods_of(owner):
                self.methods.setdefault(method.node.name, []).append(method)
        # An attribute is known if nothing sets it later than the model was looked at.
        late = [
            method.node
            for name, methods in self.methods.items()
            for method in methods
            if name != "__init__" or isinstance(self.model, type)
        ]
        stored = (each for node in late for each in ast.walk(node) if isinstance(each, ast.Attribute))
        self.changing = {each.attr for each in stored if isinstance(each.ctx, ast.Store)}

    def _methods_of(self, owner: type) -> List[_Method]:
        try:
            lines, first = inspect.getsourcelines(owner)
            file = inspect.getsourcefile(owner) or "?"
            (tree,) = ast.parse(textwrap.dedent("".join(lines))).body
        except (OSError, TypeError, SyntaxError, ValueError) as error:
            self.unknown[f"{owner.__module__}.{owner.__qualname__}: the source cannot be read ({error})"] = None
            return []
        body = getattr(tree, "body", [])
        return [_Method(node, file, first, owner) for node in body if isinstance(node, ast.FunctionDef)]

    def above(self, name: str, owner: type) -> int:
        """How many definitions of a method stand in this class or before it in the MRO."""
        place = self.mro.index(owner)
        return sum(self.mro.index(method.owner) <= place for method in self.methods.get(name, []))

    def read(self, name: str, given: Mapping[str, Optional[str]], hook: str, above: int = 0) -> None:
        """Read a method with these arguments; ``above`` of the classes of the MRO that define it are skipped."""
        found = self.methods.get(name, [])[above:]
        key = (name, above, hook, tuple(sorted(given.items())))
        if not found or key in self.done:
            return
        self.done.add(key)
        _Body(self, found[0], dict(given), hook).read(found[0].node.body)


class _Body:
    """One method, read statement by statement."""

    def __init__(self, reader: _Reader, method: _Method, known: Dict[str, Optional[str]], hook: str) -> None:
        self.reader, self.method, self.known, self.hook = reader, method, known, hook
        self.dicts: Dict[str, Any] = {}
        arguments = method.node.args
        self.own = arguments.args[0].arg if arguments.args else ""
        positional = arguments.args[len(arguments.args) - len(arguments.defaults) :]
        for argument, default in [
            *zip(positional, arguments.defaults),
            *zip(arguments.kwonlyargs, arguments.kw_defaults),
        ]:
            if default is not None:
                self.known.setdefault(argument.arg, self._string(default))

    def read(self, statements: List[Any]) -> None:
        for statement in statements:
            if isinstance(statement, (ast.Assign, ast.AnnAssign, ast.AugAssign)):
                self._calls(statement)
                self._assign(statement)
            elif isinstance(statement, ast.If):
                self._calls(statement.test)
                truth = self._truth(statement.test)
                if truth is None:
                    self._branches(statement.body, statement.orelse)
                else:
                    self.read(statement.body if truth else statement.orelse)
            elif isinstance(statement, ast.For):
                self._calls(statement.iter)
                self._loop(statement)
            elif isinstance(statement, ast.With):
                for item in statement.items:
                    self._calls(item)
                self.read(statement.body)
            elif isinstance(statement, ast.While):
                self._calls(statement.test)
                self._forget(*statement.body)
                self._branches(statement.body, statement.orelse)
            elif isinstance(statement, ast.Try):
                handlers = [handler.body for handler in statement.handlers]
                self._branches(statement.body, *handlers, statement.orelse)
                self.read(statement.finalbody)
            else:
                self._calls(statement)

    def _branches(self, *branches: List[Any]) -> None:
        """Read blocks of which some are run; what they assign is unknown afterwards."""
        before = dict(self.known), dict(self.dicts)
        for branch in branches:
            self.known, self.dicts = map(dict, before)
            self.read(branch)
        self.known, self.dicts = map(dict, before)
        for branch in branches:
            self._forget(*branch)

    def _loop(self, loop: ast.For) -> None:
        listed = loop.iter.elts if isinstance(loop.iter, (ast.Tuple, ast.List, ast.Set)) else [None]
        self._forget(*loop.body)
        for element in listed:
            self._forget(loop.target)
            if isinstance(loop.target, ast.Name):
                self.known[loop.target.id] = self._string(element)
            self._branches(loop.body)
        self._forget(loop.target)
        self.read(loop.orelse)

    def _assign(self, node: Any) -> None:
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        value = self._string(node.value)
        self._forget(*targets)
        if not isinstance(node, ast.AugAssign) and len(targets) == 1 and isinstance(targets[0], ast.Name):
            self.known[targets[0].id] = value
            if isinstance(node.value, ast.Dict):
                self.dicts[targets[0].id] = node.value

    def _forget(self, *nodes: Any) -> None:
        """Forget the names that these targets or statements assign to, and the dicts that they change."""
        for each in itertools.chain.from_iterable(map(ast.walk, nodes)):
            if isinstance(getattr(each, "ctx", None), (ast.Store, ast.Del)):
                changed = getattr(each, "value", each)
                if isinstance(changed, ast.Name):
                    self.known[changed.id] = None
                    self.dicts.pop(changed.id, None)

    def _calls(self, node: Any) -> None:
        if node is None:
            return
        called = [each for each in ast.walk(node) if isinstance(each, ast.Call)]
        functions = {id(call.func) for call in called}
        for call in called:
            self._call(call)
        for each in ast.walk(node):
            # Handed on as a function.
            if isinstance(each, ast.Attribute) and self._is_own(each.value) and id(each) not in functions:
                if each.attr in _POSITIONS:
                    self._add(each, None)
                for method in self.reader.methods.get(each.attr, [])[:1]:
                    unknown = dict.fromkeys(argument.arg for argument in method.node.args.args[1:])
                    self.reader.read(each.attr, unknown, self.hook)

    def _is_own(self, node: Any) -> bool:
        return isinstance(node, ast.Name) and node.id == self.own

    def _call(self, call: ast.Call) -> None:
        function = call.func
        owner = getattr(function, "value", None)
        name = getattr(function, "attr", "")
        if self._is_own(owner) and name in _POSITIONS:
            self._log(call, name)
            return
        if (
            name == "log_metrics"
            and getattr(owner, "attr", "") == "logger"
            and self._is_own(getattr(owner, "value", 0))
        ):
            self._add(call, self._keys(_arguments(call, ("metrics", "step")).get("metrics")))
            return
        if self._is_own(owner):
            self._follow(call, name, 0)
        elif isinstance(owner, ast.Call) and getattr(owner.func, "id", "") == "super":
            self._follow(call, name, self.reader.above(name, self._super_of(owner)))
        # What is called may add to a dict.
        for each in (owner, *call.args, *(keyword.value for keyword in call.keywords)):
            self.dicts.pop(getattr(each, "id", ""), None)

    def _super_of(self, call: ast.Call) -> type:
        """The class that ``super()`` or ``super(Class, self)`` stands above."""
        named = getattr(call.args[0], "id", None) if call.args else None
        owners = (each for each in self.reader.mro if each.__name__ == named)
        return next(owners, self.method.owner)

    def _follow(self, call: ast.Call, name: str, above: int) -> None:
        found = self.reader.methods.get(name, [])[above:]
        if found:
            parameters = [argument.arg for argument in found[0].node.args.args[1:]]
            is_plain = not any(isinstance(argument, ast.Starred) for argument in call.args)
            given = _arguments(call, parameters) if is_plain else dict.fromkeys(parameters)
            self.reader.read(name, {key: self._string(value) for key, value in given.items()}, self.hook, above)

    def _log(self, call: ast.Call, kind: str) -> None:
        arguments = _arguments(call, (*_POSITIONS[kind], *_FLAGS))
        if getattr(arguments.get("logger"), "value", None) is False:
            return
        named = arguments.get(_POSITIONS[kind][0])
        names = self._keys(named) if kind == "log_dict" else _alone(self._string(named))
        if any(keyword.arg is None for keyword in call.keywords) or any(isinstance(a, ast.Starred) for a in call.args):
            names = None
        flags = []
        for flag in ("on_step", "on_epoch"):
            node = arguments.get(flag, _NONE)
            is_default = isinstance(node, ast.Constant) and node.value is None
            truth = (self.hook in STEP_HOOKS) == (flag == "on_step") if is_default else self._truth(node)
            names = None if truth is None else names
            flags.append(truth)
        if names is not None and all(flags):
            names = tuple(f"{name}_{suffix}" for name in names for suffix in ("step", "epoch"))
        self._add(call, names if flags != [False, False] else ())

    def _add(self, node: Any, names: Optional[Tuple[str, ...]]) -> None:
        if names is None:
            line = self.method.line + node.lineno - 1
            code = " ".join(ast.unparse(node).split()) if hasattr(ast, "unparse") else "a call of log"
            self.reader.unknown[f"{self.method.file}:{line}: {code}"] = None
        self.reader.names.update(dict.fromkeys(names or ()))

    def _keys(self, node: Any) -> Optional[Tuple[str, ...]]:
        if isinstance(node, ast.Name):
            node = self.dicts.get(node.id)
        if not isinstance(node, ast.Dict):
            return None
        found = [self._string(key) for key in node.keys]
        return None if None in found else tuple(dict.fromkeys(filter(None, found)))

    def _truth(self, node: Any) -> Optional[bool]:
        """Whether a condition is true; ``None`` if that is unknown."""
        if isinstance(node, ast.Constant):
            return bool(node.value)
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            truth = self._truth(node.operand)
            return None if truth is None else not truth
        if isinstance(node, ast.Compare) and len(node.ops) == 1:
            left, operator, right = self._string(node.left), node.ops[0], node.comparators[0]
            listed = right.elts if isinstance(right, (ast.Tuple, ast.List, ast.Set)) else [right]
            among = [self._string(each) for each in listed]
            is_list = isinstance(operator, (ast.In, ast.NotIn)) and listed is not None and listed != [right]
            if left is not None and None not in among and (is_list or isinstance(operator, (ast.Eq, ast.NotEq))):
                return (left in among) != isinstance(operator, (ast.NotIn, ast.NotEq))
        return None

    def _string(self, node: Any) -> Optional[str]:
        """The string that an expression is; ``None`` if it is unknown."""
        if isinstance(node, ast.Constant):
            return node.value if isinstance(node.value, str) else None
        if isinstance(node, ast.Name):
            return self.known.get(node.id)
        if isinstance(node, ast.Attribute) and self._is_own(node.value):
            value = inspect.getattr_static(self.reader.model, node.attr, None)
            return value if isinstance(value, str) and node.attr not in self.reader.changing else None
        parts: List[Any] = []
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
            parts = [node.left, node.right]
        elif isinstance(node, ast.JoinedStr):
            parts = node.values
        elif isinstance(node, ast.FormattedValue) and node.format_spec is None and node.conversion == -1:
            parts = [node.value]
        found = [self._string(part) for part in parts]
        return None if None in found or not parts else "".join(filter(None, found))


_NONE = ast.Constant(value=None)


def _alone(name: Optional[str]) -> Optional[Tuple[str, ...]]:
    return None if name is None else (name,)


def _arguments(call: ast.Call, names: Any) -> Dict[str, Any]:
    return {**dict(zip(names, call.args)), **{keyword.arg: keyword.value for keyword in call.keywords if keyword.arg}}
