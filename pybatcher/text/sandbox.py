"""`Sandbox`: runs chat templates that are not trusted.

Jinja's own sandbox keeps a template from Python's internals, but not from endless loops and growth.
So this one also allows only the filters, globals and methods that chat templates use; it meters
every step whose cost can grow (`Rewriter` puts meters into the syntax tree; calls, filters, tests
and operators have their own); and it counts the work of a step that could explode before the step.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from string import Formatter
from typing import Any, NoReturn

from jinja2 import nodes
from jinja2.exceptions import SecurityError
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace
from typing_extensions import override

from .format_fields import check_field, foresee_fields, foresee_percents, percent_fields
from .metering import METER, Meter, TemplateLimitError
from .template_filters import FILTERS, TESTS
from .template_rewrite import GenerationTag, Rewriter

__all__ = ["Sandbox", "TemplateLimitError", "TemplateRefusedError"]

_MAX_SOURCE_CHARACTERS = 2**17
_MAX_INTEGER_BITS = 4096
_MAX_STRIPPED_CHARACTERS = 256
_MAX_TIME_FORMAT = 256
_TEXT_METHODS = """
    capitalize count endswith find format index isalnum isalpha isascii isdecimal isdigit islower
    isnumeric isspace istitle isupper join lower lstrip partition removeprefix removesuffix replace
    rfind rindex rpartition rsplit rstrip split splitlines startswith strip swapcase title upper
"""
_METHODS: dict[type, list[str]] = {
    str: _TEXT_METHODS.split(),
    dict: ["copy", "get", "items", "keys", "values"],
    list: ["copy", "count", "index"],
    tuple: ["count", "index"],
    int: [],
    float: [],
}


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

    def render(self, variables: Mapping[str, Any]) -> str:
        """Return the text. Raises any exception of the template's code."""
        values = dict(variables)
        token = METER.set(Meter(values))
        try:
            return self._template.render(values)
        finally:
            METER.reset(token)


class _Environment(ImmutableSandboxedEnvironment):
    """Jinja's sandbox with the settings of transformers, so that templates render the same."""

    intercepted_binops = frozenset(("+", "*", "**", "%"))

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
        Rewriter().visit(source)
        return super()._generate(source, *args, **kwargs)

    @override
    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        # Plain values have only the listed methods; jinja2's rule applies to all others.
        for kind, methods in _METHODS.items():
            if isinstance(obj, kind):
                return attr in methods
        return super().is_safe_attribute(obj, attr, value)

    @override
    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        wrapped = super().wrap_str_format(value)
        if wrapped is None:
            return None
        pattern: str = value.__self__

        def bounded_format(*args: Any, **kwargs: Any) -> str:
            for _, _, spec, _ in Formatter().parse(pattern):
                check_field(spec or "")
            foresee_fields(METER.get(), pattern.count("{"), (args, kwargs))
            return wrapped(*args, **kwargs)

        return bounded_format

    @override
    def call(self, context: Context, obj: Any, /, *args: Any, **kwargs: Any) -> Any:
        meter = METER.get()
        if getattr(obj, "__name__", None) == "join" and len(args) == 1:
            args = (list(args[0]),)  # a generator could not be counted
        meter.spend_value(args)
        meter.spend_value(kwargs)
        text = getattr(obj, "__self__", None)
        if isinstance(text, str):
            _foresee_method(meter, text, obj.__name__, args)
        result = super().call(context, obj, *args, **kwargs)
        meter.spend_value(result)
        return result

    @override
    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        meter = METER.get()
        meter.spend_value(left)
        meter.spend_value(right)
        if operator == "*":
            _foresee_product(meter, left, right)
        elif operator == "**":
            _foresee_power(left, right)
        elif operator == "%" and isinstance(left, str):
            foresee_percents(meter, left, right)
        result = super().call_binop(context, operator, left, right)
        meter.spend_value(result)
        return result


def _counted(value: Any) -> Any:
    """Count a value that a template writes, and return it."""
    METER.get().spend_value(value)
    return value


def _foresee_method(meter: Meter, text: str, method: str, args: tuple[Any, ...]) -> None:
    """Count the result of a method of `text` before it is made."""
    first = args[0] if args else None
    if method == "replace" and len(args) >= 2 and isinstance(first, str):
        meter.spend_characters(len(text) + len(str(args[1])) * (text.count(first) + 1))
    elif method == "join" and isinstance(first, list):
        meter.spend_characters(len(text) * len(first))
    elif method in ("split", "rsplit", "splitlines"):
        pieces = text.count(first) if isinstance(first, str) and first else len(text) // 2
        meter.spend(1 + pieces)
    elif method in ("strip", "lstrip", "rstrip") and isinstance(first, str):
        if len(first) > _MAX_STRIPPED_CHARACTERS:
            raise TemplateLimitError(f"it strips {len(first)} different characters")
        meter.spend_characters(len(text))
    else:
        meter.spend_characters(len(text))


def _foresee_product(meter: Meter, left: Any, right: Any) -> None:
    for value, times in ((left, right), (right, left)):
        if not isinstance(times, int):
            continue
        if isinstance(value, int) and value.bit_length() + times.bit_length() > _MAX_INTEGER_BITS:
            raise TemplateLimitError(f"it computes with more than {_MAX_INTEGER_BITS} bits")
        if isinstance(value, str):
            meter.spend_characters(len(value) * max(times, 0))
        elif isinstance(value, (list, tuple)):
            meter.spend(len(value) * max(times, 0))


def _foresee_power(base: Any, exponent: Any) -> None:
    if not isinstance(base, int) or not isinstance(exponent, int):
        return
    if base.bit_length() * abs(exponent) > _MAX_INTEGER_BITS:
        raise TemplateLimitError(f"it computes with more than {_MAX_INTEGER_BITS} bits")


def _raise_exception(message: object = "no reason given") -> NoReturn:
    raise TemplateRefusedError(str(message)[:1000])


def _format_time(time: datetime, form: str) -> str:
    if len(form) > _MAX_TIME_FORMAT:
        raise TemplateLimitError(f"its time format has {len(form)} characters")
    for field in percent_fields(form):
        check_field(field)
    return time.strftime(form)


def _make_dict(*args: Any, **kwargs: Any) -> dict[Any, Any]:
    return dict(*args, **kwargs)


class _SafeNamespace(Namespace):
    """Jinja's namespace, without names that begin with an underscore."""

    def __init__(*args: Any, **kwargs: Any) -> None:  # as in jinja2, since `self` may be a key
        self, *rest = args
        values = dict(*rest, **kwargs)
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
