"""What the CEL library says of a fault, said again in durun's words. Knows its messages, and nothing else of it."""

from __future__ import annotations

import difflib
import re

from durun.values import NamedTuple

FUNCTIONS = re.findall(
    r"\w+",
    "has size int uint double string bytes bool type dyn timestamp duration sum sort flatten keys json "
    "matches contains startsWith endsWith charAt indexOf lastIndexOf lowerAscii upperAscii replace split join substring trim "
    "format reverse all exists exists_one map filter or orValue hasValue value optMap optFlatMap getFullYear getMonth getDate "
    "getDayOfMonth getDayOfWeek getDayOfYear getHours getMinutes getSeconds getMilliseconds",
)
OWN = ("sum", "sort", "flatten", "keys", "json")
KINDS = {
    "int64": "an integer",
    "int": "an integer",
    "uint64": "an unsigned integer",
    "uint": "an unsigned integer",
    "double": "a double",
    "string": "a string",
    "bool": "a boolean",
    "null_type": "null",
    "list": "a list",
    "map": "an object",
    "bytes": "bytes",
    "timestamp": "a timestamp",
    "Timestamp": "a timestamp",
    "duration": "a duration",
    "Duration": "a duration",
    "type": "a type",
    "optional": "an optional",
    "optional_type": "an optional",
    "*opaque*": "an optional",
    "google.protobuf.Timestamp": "a timestamp",
    "google.protobuf.Duration": "a duration",
    "dyn": "any value",
}
PLACED = re.compile(r"ERROR: <input>:(-?\d+):(-?\d+): ([^\n]*)")
CODE = re.compile(r"^(?:[A-Z_]+: )+(?:ERROR: )?(?:<input>:-?\d+:-?\d+: )?")
TOO_LONG = "it is nested too deeply, or one chain in it is too long (about 30 links): work it out in two steps"
NO_LIST = "only a list can be walked over"
NO_ORDER = "an object has no order: walk over keys(…) of it"

# the beginning of what the library says -> what durun says; {0} is the first group, in durun's word for it
SAYINGS = [
    (r"durun: (.*)", "{0}"),
    (r"Exceeded max recursion depth|Expression recursion limit|.*recursion limit", TOO_LONG),
    (r"Iteration budget", "it walks over too many items: let a command do that"),
    (r"Key not found in map : (.*)", "an object has no {0}"),
    (r"No value with name \"(.*)\"", "`{0}` is not there"),
    (r"Applying SELECT to non-message", "a field is asked of something that is no object"),
    (r"expression of type '([^']*)' cannot be the operand of a select", "a field is asked of {0}, which is no object"),
    (r"Invalid container type: '(.*)'", "`[ ]` is asked of {0}, which is no list or object"),
    (r"Index error: index=(-?\d+) size=(\d+)", "the list has {1} items and none at {0}"),
    (r"Index error: expected integer type, got (\S+)", "a list is asked for an item by {0}; that takes an integer"),
    (r"divide by zero|modulus by zero", "a division by zero"),
    (r".*(?:unsigned integer overflow|out of uint64 range|invalid uint literal)", "an unsigned integer is out of its range"),
    (r".*(?:integer overflow|out of int64 range|invalid int literal)", "an integer has more than 64 bits"),
    (r"cannot convert string to (\w+)", "a string cannot be read as {0}"),
    (r"String to (\w+) conversion failed", "a string cannot be read as {0}"),
    (r"optional.none\(\) dereference", "an optional has no value: end it with .orValue(…)"),
    (r"Unable to convert|.* returned a result with an exception set", "it gives an optional: end it with .orValue(…)"),
    (r"reserved identifier: (\w+)", "`{0}` is a word CEL keeps for itself"),
    (r"Invalid (?:string|bytes) literal: (?:Illegal escape sequence: )?(.*)", "a string is not written right: {0}"),
    (r"Syntax error: token recognition error at: '(.*)'", "`{0}` cannot be read"),
    (r"Syntax error: (?:extraneous|mismatched) input '(.*?)' expecting", "`{0}` is not expected here"),
    (r"Syntax error: no viable alternative at input '(.*)'", "it cannot be read after `{0}`"),
    (r"has\(\) argument must be", "has takes a field, as in has(vars.x)"),
    (r"expected type 'optional_type\(.*\)' but found '(.*)'", "`?` wants an optional, as in {{?'a': x.?a}}, not {0}"),
    (r"Invalid map key type", "the keys of an object must be strings"),
    (r"Type conversion error from '(.*)' to '(.*)'", "{0} cannot be read as {1}"),
    (r"duplicate key in map", "an object has the same key twice"),
    (r"malformed UTF-8", "bytes that are no UTF-8"),
    (r".*'utf-8' codec", "text with half a surrogate cannot be used"),
]  # fmt: skip


class Said(NamedTuple):
    """One fault: in our words, and its place as line and column from 1 where the library gave one."""

    message: str
    line: int
    column: int
    raw: str


def faults(message: str) -> list[Said]:
    """What the library said when it would not compile."""
    found = [Said(in_our_words(text), int(line), int(column), text) for line, column, text in PLACED.findall(message)]
    first = found[0] if found else None
    if first is None:
        return [Said(in_our_words(message), 0, 0, message)]
    # of a text it cannot read, only the first place is to be trusted
    if "Syntax error" in message or first.line < 0:
        return [first]
    seen: dict[str, Said] = {}
    for said in found:
        seen.setdefault(said.message, said)
    return list(seen.values())[:5]


def in_our_words(message: str) -> str:
    """One line, without the library's codes."""
    line = CODE.sub("", message.strip().split("\n")[0])
    line = re.sub(r" \[[A-Z_]+\]$", "", line)
    overload = re.match(r"No matching overloads? found : ([^(\s]+|\([^)]*\)\.\w+)(?:\((.*)\))?$", line)
    if overload:
        return _no_overload(overload.group(1), overload.group(2))
    overload = re.match(r"found no matching overload for '(.*?)' applied to '(.*?\.)?\((.*)\)'", line)
    if overload:
        return _no_overload(overload.group(1), overload.group(3))
    undeclared = re.match(r"undeclared reference to '([^']*)'", line)
    if undeclared:
        return _undeclared(undeclared.group(1))
    for begins, ours in SAYINGS:
        found = re.match(begins, line)
        if found:
            return ours.format(*(_kind(word) for word in found.groups()))
    return " ".join(line.split())[:300]


def missing_key(message: str) -> str | None:
    """The key or name the library found missing; None where it complains of something else."""
    found = re.search(r"Key not found in map : \"(.*?)\"|No value with name \"(.*?)\"", message, re.S)
    return (found.group(1) or found.group(2) or "") if found else None


def _undeclared(name: str) -> str:
    if name in OWN:
        return f"`{name}` is written as {name}(…), not after a dot"
    near = difflib.get_close_matches(name, FUNCTIONS, 1)
    return f"there is no function or name `{name}`" + (f"; did you mean `{near[0]}`?" if near and near[0] != name else "")


def _no_overload(what: str, given: str | None) -> str:
    method = re.fullmatch(r"\((.*)\)\.(\w+)", what)
    if method:
        what, given = method.group(2), ", ".join(v for v in (method.group(1), given) if v)
    kinds = [_kind(one) for one in _parted(given or "")]
    if what == "<jump_condition>" or what == "_?_:_":
        return "what stands before `?` must be true or false, and what it chooses between of one kind"
    sign = what.replace("@in", "in").replace("math.@", "math.").strip("_").replace("_", "") or what
    if sign == "[?]":
        return "`.?` is asked of something that is no object"
    if "null" in kinds:
        return f"null where a value is wanted, in `{sign}`"
    if sorted(kinds) == ["a double", "an integer"]:
        return f"integers and doubles do not mix in `{sign}`: write double(x)"
    if sign in ("&&", "||", "!"):
        return f"`{sign}` takes only true and false"
    return f"`{sign}` does not take {' and '.join(kinds)}" if kinds else f"`{sign}` does not take what it is given"


def _parted(given: str) -> list[str]:
    """The types between commas, brackets left whole."""
    parts, depth, at = [], 0, 0
    for n, sign in enumerate(given):
        depth += (sign == "(") - (sign == ")")
        if sign == "," and depth == 0:
            parts.append(given[at:n].strip())
            at = n + 1
    return [p for p in [*parts, given[at:].strip()] if p]


def _kind(name: str) -> str:
    return KINDS.get(name) or KINDS.get(re.split(r"\(.*\)$", name)[0], name)
