"""`Sandbox`: runs chat templates that are not trusted.

Jinja's own sandbox keeps a template from Python's internals, but not from endless loops and growth.
So this one also allows only the filters, globals and methods that chat templates use. Each of them,
and each operator, has a cost, which is counted before it works (template_costs.py,
template_filters.py); `Rewriter` puts meters into the syntax tree for all other steps that can grow.
So no step in native code takes long, and a rendering can be ended between two steps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from string import Formatter
from types import BuiltinMethodType, MethodType
from typing import Any, NoReturn

from jinja2 import nodes
from jinja2.exceptions import SecurityError
from jinja2.runtime import (
    BlockReference,
    Context,
    LoopContext,
    Macro,
    TemplateReference,
    Undefined,
)
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace
from typing_extensions import override

from .format_fields import check_field, foresee_fields, percent_fields
from .metering import METER, Meter, RenderingAbandonedError, TemplateLimitError
from .template_costs import OPERATORS, method_cost
from .template_filters import FILTERS, TESTS
from .template_rewrite import GenerationTag, Rewriter, n_nodes_of

__all__ = ["RenderingAbandonedError", "Sandbox", "TemplateLimitError", "TemplateRefusedError"]

_MAX_SOURCE_CHARACTERS = 2**17
_MAX_NODES = 8192  # a template of 20 KB has 1,500; Python's compiler holds the GIL
_MAX_TIME_FORMAT = 256
_OF_JINJA = (LoopContext, Macro, Namespace, BlockReference, TemplateReference, Undefined)
"""Objects whose attributes are Jinja's own matter."""


class TemplateRefusedError(Exception):
    """Raised when a template calls `raise_exception`: it refuses the messages."""


class Sandbox:
    """One template, compiled. Any thread may render it, several at once.

    source: Jinja source. now: returns the time for the template's `strftime_now`.

    Raises jinja2.TemplateError, TemplateLimitError, or an error of Python's compiler for too deep
    nesting.
    """

    def __init__(self, source: str, now: Callable[[], datetime] = datetime.now) -> None:
        if len(source) > _MAX_SOURCE_CHARACTERS:
            raise TemplateLimitError(
                f"it has {len(source)} characters; expected at most {_MAX_SOURCE_CHARACTERS}"
            )
        self._template = _Environment(now).from_string(source)

    def render(
        self, variables: Mapping[str, Any], goes_on: Callable[[], bool] | None = None
    ) -> str:
        """Return the text. Raises any exception of the template's code.

        goes_on: called every few milliseconds; False ends the rendering with
            RenderingAbandonedError.
        """
        values = dict(variables)
        token = METER.set(Meter(values, goes_on))
        try:
            return self._template.render(values)
        finally:
            METER.reset(token)


class _Environment(ImmutableSandboxedEnvironment):
    """Jinja's sandbox with the settings of transformers, so that templates render the same."""

    intercepted_binops = frozenset(OPERATORS)

    def __init__(self, now: Callable[[], datetime]) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=["jinja2.ext.loopcontrols", GenerationTag],
            finalize=_counted,
        )
        self.filters = dict(FILTERS)
        self.tests = dict(TESTS)
        self.globals = {
            "range": self.globals["range"],  # the sandbox's own, of at most 100,000
            "dict": _make_dict,
            "namespace": _SafeNamespace,
            "raise_exception": _raise_exception,
            "strftime_now": lambda form: _format_time(now(), form),
        }

    @override
    def _generate(self, source: nodes.Template, *args: Any, **kwargs: Any) -> str:
        if n_nodes_of(source, _MAX_NODES) > _MAX_NODES:
            raise TemplateLimitError(f"it has more than {_MAX_NODES} names, values and statements")
        Rewriter().visit(source)
        return super()._generate(source, *args, **kwargs)

    @override
    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        if isinstance(obj, _OF_JINJA):
            return super().is_safe_attribute(obj, attr, value)
        # A group of `groupby` is a tuple with two names. No other value has attributes but methods.
        is_group = isinstance(obj, tuple) and attr in getattr(obj, "_fields", ())
        return is_group or method_cost(obj, attr) is not None

    @override
    def getitem(self, obj: Any, argument: Any) -> Any:
        if type(argument) is not str and type(argument) is not int:
            METER.get().spend_key(argument)
        return super().getitem(obj, argument)

    @override
    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        wrapped = super().wrap_str_format(value)
        if wrapped is None:
            return None
        pattern: str = value.__self__

        def bounded_format(*args: Any, **kwargs: Any) -> str:
            for _, _, spec, _ in Formatter().parse(pattern):
                check_field(spec or "")
            meter = METER.get()
            meter.spend(pattern.count(".") + pattern.count("["))  # each looks something up
            foresee_fields(meter, pattern.count("{"), (args, kwargs))
            return wrapped(*args, **kwargs)

        return bounded_format

    @override
    def call(self, context: Context, obj: Any, /, *args: Any, **kwargs: Any) -> Any:
        meter = METER.get()
        meter.spend(1)
        if isinstance(obj, (BuiltinMethodType, MethodType)):
            owner, name = obj.__self__, obj.__name__
            if isinstance(owner, LoopContext):
                meter.spend_value(args)  # `changed` compares them
            else:
                cost = method_cost(owner, name)
                if cost is None:
                    raise SecurityError(f"it calls {name}, which it may not")
                if name == "join" and args and isinstance(args[0], Iterator):
                    args = (list(args[0]), *args[1:])  # each item is counted when it is taken
                cost(meter, owner, args, kwargs)
        result = super().call(context, obj, *args, **kwargs)
        meter.spend_shallow(result)
        return result

    @override
    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        meter = METER.get()
        OPERATORS[operator](meter, left, right)
        result = super().call_binop(context, operator, left, right)
        meter.spend_shallow(result)
        return result


def _counted(value: Any) -> Any:
    """Count a value that a template writes, and return it."""
    METER.get().spend_value(value)
    return value


def _raise_exception(message: object = "no reason given") -> NoReturn:
    METER.get().spend_value(message)
    raise TemplateRefusedError(str(message)[:1000])


def _format_time(time: datetime, form: str) -> str:
    if len(form) > _MAX_TIME_FORMAT:
        raise TemplateLimitError(f"its time format has {len(form)} characters")
    for field in percent_fields(form):
        check_field(field)
    return time.strftime(form)


def _make_dict(*args: Any, **kwargs: Any) -> dict[Any, Any]:
    meter = METER.get()
    if len(args) == 1 and not isinstance(args[0], dict):
        pairs = [(key, value) for key, value in args[0]]
        meter.spend(len(pairs))
        for _ in meter.spend_keys(key for key, _ in pairs):
            pass
        args = (pairs,)
    made = dict(*args, **kwargs)
    meter.spend(len(made))
    return made


class _SafeNamespace(Namespace):
    """Jinja's namespace, without names that begin with an underscore."""

    def __init__(*args: Any, **kwargs: Any) -> None:  # as in jinja2, since `self` may be a key
        self, *rest = args
        values = _make_dict(*rest, **kwargs)
        for name in values:
            _check_name(name)
        Namespace.__init__(self, values)

    @override
    def __setitem__(self, name: str, value: Any) -> None:
        _check_name(name)
        super().__setitem__(name, value)


def _check_name(name: object) -> None:
    if not isinstance(name, str) or name.startswith("_"):
        raise SecurityError(f"it sets {name!r} on a namespace")
