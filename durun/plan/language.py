"""The JSON Schema of the plan language, for editors and other programs: made from the shapes, and what `check` adds to them.

Rules:
- every plan that `check` takes fits it; of what `check` refuses it refuses what a schema can say: unknown keys, keys that do not
  fit their kind, a missing `next`, a second kind, a value of the wrong form. What refers to something else is for `check`
- a value is described by the function of `words` that reads it, so a new way to read one must be told of here, or it is an error
- what a key means is what the documentation says of it: it comes in with the call
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType, NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from durun.plan import http, model, words
from durun.plan.canonical import ENDS
from durun.plan.names import BUILT_IN, PLAN
from durun.plan.schema import TYPES

Json = Any

DRAFT = "https://json-schema.org/draft/2020-12/schema"
LENGTH = r"([0-9]{1,9}d)?([0-9]{1,9}h)?([0-9]{1,9}m(?!s))?([0-9]{1,9}s)?([0-9]{1,15}ms)?"
DURATION: Json = {"$ref": "#/$defs/duration"}
SPAN: Json = {"anyOf": [DURATION, {"$ref": "#/$defs/expression"}]}
FILLED: Json = {"type": "string", "pattern": r"\S"}
PRIMITIVE: Json = {"type": ["string", "number", "boolean"]}
STATUS = "[2-9][0-9]{2}"
A_STATUS: Json = {
    "anyOf": [{"type": "integer", "minimum": 200, "maximum": 999}, {"type": "string", "pattern": f"^{STATUS}(-{STATUS})?$"}]
}
ERROR = (
    r"^(\*|exit:([01]?[0-9]{1,2}|2[0-4][0-9]|25[0-5])|killed:[A-Z0-9]+|http:[1-5]([0-9][0-9]|xx)|[A-Za-z][A-Za-z0-9_.-]{0,127})$"
)
A_SCHEMA: Json = {"$ref": "#/$defs/type"}
COMMAND: Json = {
    "anyOf": [
        {"type": "string", "pattern": r"\S", "not": {"pattern": r"\$\{\{"}},
        {"type": "array", "minItems": 1, "items": PRIMITIVE},
    ]
}


def _pattern(found: Any) -> Json:
    return {"type": "string", "pattern": f"^{found.pattern}$"}


# what a function of `words` that reads a value takes
READS: dict[Callable[..., Any], Json] = {
    words.text: {"type": "string"},
    words.filled: FILLED,
    words.span: SPAN,
    words.fixed_span: DURATION,
    words.leave: {"anyOf": [{"type": "boolean"}, DURATION]},
    words.number: {"type": "number", "minimum": 1, "maximum": 1000},
    words.error_name: {"type": "string", "pattern": r"^[A-Za-z][A-Za-z0-9_.-]{0,127}$", "not": {"enum": [*BUILT_IN]}},
    words.matcher: {"$ref": "#/$defs/error"},
    words.command: COMMAND,
    words.method: {**_pattern(words.METHOD), "not": {"enum": ["CONNECT", "TRACE"]}, "examples": [*words.METHODS]},
    words.header: _pattern(words.HEADER),
    words.body_size: {"type": "string", "pattern": r"^[0-9]+(B|KiB|MiB|GiB)$", "examples": ["64KiB", "1MiB"]},
    words.statuses: {"anyOf": [A_STATUS, {"type": "array", "minItems": 1, "items": A_STATUS}]},
    words.schema: A_SCHEMA,
    words.time: {"type": "string", "pattern": r"\$\{\{|^[0-9]{4}-[0-9]{2}-[0-9]{2}[Tt ][0-9:.]+([Zz]|[+-][0-9]{2}:[0-9]{2})$"},
    words.signal_name: {"type": "string", "pattern": r"^[A-Za-z][A-Za-z0-9_.-]{0,127}$"},
    words.option_name: _pattern(words.OPTION),
    words.failures: {
        "anyOf": [{"type": "integer", "minimum": 0}, {"const": "all"}, {"type": "string", "pattern": "^(100|[0-9]{1,2})%$"}],
    },
    words.now: {"const": "now"},
    words.variable: _pattern(words.VARIABLE),
    words.tool: {"type": "array", "minItems": 1, "items": {"type": "string"}},
    words.plan_name: _pattern(PLAN),
    words.language: {"const": 1},
    words.begun_rate: {"type": "string", "pattern": r"^[0-9]{1,9}/[smh]$", "examples": ["25/s", "100/m"]},
    words.stop: {"enum": ["stop", "compensate"]},
    words.on_drift: {"enum": ["ask", "continue"]},
}  # fmt: skip
# and those that take a short form beside the shape they make: the short form
SHORT: dict[Callable[..., Any], Json] = {
    words.output: {"enum": ["json", "text", "lines"]},
    words.option: _pattern(words.OPTION),
    words.secret: _pattern(words.VARIABLE),
}
ONE_OR_MANY = (words.a_list, words.rules)
NO_MORE = (words.longer, words.options, words.not_in_doubt)  # what they refuse is for `check`

NAMES: Json = {"$ref": "#/$defs/name"}
DEFINED: dict[str, Json] = {
    "duration": {"type": "string", "pattern": f"^(?=.){LENGTH}$", "examples": ["250ms", "30s", "5m", "1h30m", "7d"]},
    "expression": {"type": "string", "pattern": r"\$\{\{"},
    "type": {"anyOf": [{"enum": [*TYPES, "any"]}, {"type": ["object", "boolean"]}]},
    "error": {"type": "string", "pattern": ERROR, "not": {"const": "run_timeout"}},
    "name": {**_pattern(words.NAME), "not": {"enum": [*words.NO_NAMES]}},
}
STATES: Json = {"allOf": [NAMES], "not": {"enum": [*ENDS]}}
VALUES: Json = {"type": "object", "additionalProperties": PRIMITIVE}
VARIABLES: Json = {**VALUES, "propertyNames": {**_pattern(words.VARIABLE), "not": {"pattern": "^DURUN_"}}}
INPUT: Json = {"type": "object", "propertyNames": NAMES, "additionalProperties": A_SCHEMA}
A_URL: Json = {"type": "string", "pattern": r"^(\$\{\{|[Hh][Tt][Tt][Pp][Ss]?://)"}
# keys of which more is known than their shape says
KEYS: dict[tuple[str, str], Json] = {
    ("Plan", "input"): INPUT,
    ("Plan", "vars"): {"type": "object", "propertyNames": NAMES},
    ("Plan", "vars_schema"): {"type": "object"},
    ("Http", "url"): A_URL,
    ("Http", "headers"): {**VALUES, "propertyNames": _pattern(words.HEADER)},
    **{(shape, "env"): VARIABLES for shape in ("State", "Probe", "Compensation", "Notify", "Defaults")},
}
NAMED = {("Plan", "states"), ("Branch", "states"), ("Map", "states"), ("Parallel", "branches"), ("Plan", "limits")}


def _one_of(*words: str) -> Json:
    return {"oneOf": [{"required": [word]} for word in words]}


def _at_most_one(*words: str) -> Json:
    return {"not": {"anyOf": [{"required": [a, b]} for n, a in enumerate(words) for b in words[n + 1 :]]}}


NO_SHELL_FOR_A_LIST: Json = {"not": {"required": ["run", "shell"], "properties": {"run": {"type": "array"}}}}
# what a shape says only as a whole
WHOLE: dict[str, list[Json]] = {
    "Http": [_at_most_one(*http.BODIES)],
    "Auth": [{"oneOf": [{"required": ["bearer"]}, {"anyOf": [{"required": ["user"]}, {"required": ["password"]}]}]}],
    "SecretOf": [_at_most_one("file", "run")],
    "SharedLimit": [{"anyOf": [{"required": ["concurrency"]}, {"required": ["rate"]}]}],
    "Compensation": [_one_of("run", "http"), NO_SHELL_FOR_A_LIST],
    "Notify": [_one_of("run", "http"), NO_SHELL_FOR_A_LIST],
    "Probe": [NO_SHELL_FOR_A_LIST],
}
# and a state of a kind
OF_KIND: dict[str, list[Json]] = {
    "run": [NO_SHELL_FOR_A_LIST],
    "wait": [{"if": {"required": ["timeout"]}, "then": {"properties": {"wait": {"type": "object", "required": ["signal"]}}}}],
}
EFFECT: list[Json] = [
    {"not": {"required": ["poll", "retry"]}},
    {
        "if": {"required": ["background"], "properties": {"background": {"const": True}}},
        "then": {"properties": dict.fromkeys(("output", "poll", "pivot", "limit"), False)},
    },
]


def schema(says: Mapping[str, str] = MappingProxyType({})) -> dict[str, Json]:
    """The schema. `says`: what the documentation says of a key of a state."""
    made = _Maker(says)
    plan = made.shape(model.Plan)
    plan["patternProperties"] = {"^x-": True}
    return {
        "$schema": DRAFT,
        "title": "A plan of durun, language 1",
        **plan,
        "$defs": {**DEFINED, **dict(sorted(made.found.items()))},
    }


class _Maker:
    def __init__(self, says: Mapping[str, str]) -> None:
        self.says, self.found = says, dict[str, Json]()

    def of(self, hint: Any) -> Json:
        """What a value of this type looks like, as it is written."""
        if get_origin(hint) is Annotated:
            base, *more = get_args(hint)
            return self._annotated(base, more)
        if isinstance(hint, type) and issubclass(hint, model.Shape):
            return self._reference(hint)
        match get_origin(hint):
            case origin if origin is Literal:
                return {"enum": list(get_args(hint))}
            case origin if origin in (Union, UnionType):
                return _any_of(self.of(one) for one in get_args(hint))
            case origin if origin is list:
                return {"type": "array", "items": self.of(get_args(hint)[0])}
            case origin if origin is dict:
                return {"type": "object", "additionalProperties": self.of(get_args(hint)[1])}
        return {Any: {}, bool: {"type": "boolean"}, int: {"type": "integer"}, str: {"type": "string"}, NoneType: {"type": "null"}}[
            hint
        ]

    def _annotated(self, base: Any, more: list[Any]) -> Json:
        read = [one.func for one in more if hasattr(one, "func") and one.func is not words.way_to_wait]
        for one in read:
            if one in READS:
                return self._last(read, one)
            if one in SHORT:
                return _any_of([SHORT[one], self.of(base)])
        if words.something in read:
            return (
                _any_of(self.of(one) for one in get_args(base) if one is not NoneType)
                if base is not Any
                else {"not": {"type": "null"}}
            )
        if any(one in ONE_OR_MANY for one in read):
            many = self.of(base)
            return _any_of([many["items"], {**many, "minItems": 1} if _bounds(more) else many])
        unknown = [one for one in read if one not in NO_MORE and one in vars(words).values()]
        assert not unknown, unknown
        return {**self.of(base), **_bounds(more, "array" if get_origin(base) is list else "object")}

    def _last(self, read: list[Callable[..., Any]], first: Callable[..., Any]) -> Json:
        """Of several that read a value, the one that knows most of it: a text before what kind of text."""
        known = [one for one in read if one in READS and one is not words.text]
        return dict(READS[known[-1]] if known else READS[first])

    def _reference(self, shape: type[model.Shape]) -> Json:
        name = shape.__name__
        if name not in self.found:
            self.found[name] = {}  # it may hold itself
            self.found[name] = {"State": self._state, "Map": self._map}.get(name, lambda: self.shape(shape))()
        return {"$ref": f"#/$defs/{name}"}

    def shape(self, shape: type[model.Shape]) -> dict[str, Json]:
        """An object with the keys of a shape and no others."""
        required = [key for key, field in _fields(shape) if field.is_required()]
        whole = WHOLE.get(shape.__name__, [])
        return {
            "type": "object", "properties": self._properties(shape), **({"required": required} if required else {}),
            "additionalProperties": False, **({"allOf": whole} if whole else {}),
        }  # fmt: skip

    def _properties(self, shape: type[model.Shape]) -> dict[str, Json]:
        hints = get_type_hints(shape, vars(model), include_extras=True)
        made = {}
        for name, field in shape.model_fields.items():
            key = field.alias or name
            value = KEYS.get((shape.__name__, key)) or self.of(hints[name])
            names = STATES if key == "states" else NAMES
            made[key] = {**value, "propertyNames": names} if (shape.__name__, key) in NAMED else value
        return made

    def _state(self) -> dict[str, Json]:
        """A state: one kind, and the keys that fit it. All keys are named at the top, for editors that complete them."""
        properties = self._properties(model.State)
        for key, said in self.says.items():
            if key in properties:
                properties[key] = {**properties[key], "description": said}
        for kind in words.KINDS:
            needed = ["next"] if "next" in words.FITS[kind] else []
            self.found[f"State.{kind}"] = self._of_kind(kind, words.FITS[kind] | words.ALWAYS, needed)
        kinds = [{"if": {"required": [kind]}, "then": {"$ref": f"#/$defs/State.{kind}"}} for kind in words.KINDS]
        return {"type": "object", "properties": properties, **_one_of(*words.KINDS), "allOf": kinds}

    def _of_kind(self, kind: str, keys: Iterable[str], needed: list[str]) -> Json:
        more = [*OF_KIND.get(kind, []), *(EFFECT if kind in ("run", "http") else [])]
        names = {"propertyNames": {"enum": sorted(keys)}}
        return {**names, **({"required": needed} if needed else {}), **({"allOf": more} if more else {})}

    def _map(self) -> dict[str, Json]:
        """A map: with states, or with the keys of one effect beside its own."""
        long = self.shape(model.Map)
        own = sorted(key for key, _ in _fields(model.Map) if key not in ("start", "states", "output"))
        effects = [
            {
                "if": {"required": [kind]},
                "then": self._of_kind(kind, {*own, *words.FITS[kind], *words.ALWAYS}, []),
            }
            for kind in words.EFFECTS
        ]
        mine = {key: value for key, value in long["properties"].items() if key in own}
        state = {key: {"$ref": f"#/$defs/State/properties/{key}"} for key, _ in _fields(model.State)}
        short = {
            "type": "object",
            "properties": {**state, **mine},
            "required": ["items"],
            **_one_of(*words.EFFECTS),
            "allOf": effects,
        }
        has_states = {"anyOf": [{"required": ["states"]}, {"required": ["start"]}]}
        return {"type": "object", "if": has_states, "then": long, "else": short}


def _fields(shape: type[model.Shape]) -> list[tuple[str, Any]]:
    return [(field.alias or name, field) for name, field in shape.model_fields.items()]


def _any_of(found: Iterable[Json]) -> Json:
    several = list(found)
    return several[0] if len(several) == 1 else {"anyOf": several}


def _bounds(more: list[Any], what: str = "") -> Json:
    """The bounds that a `Field` sets, in JSON Schema's words."""
    words = {
        "ge": "minimum",
        "le": "maximum",
        "min_length": {"array": "minItems", "object": "minProperties"}.get(what, "minLength"),
    }
    metadata = [one for field in more for one in getattr(field, "metadata", [])]
    return {words[word]: getattr(one, word) for one in metadata for word in words if hasattr(one, word)}
