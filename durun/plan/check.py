"""What shapes cannot say: one kind a state, keys that fit it, names. It asks `references` for the rest, `form` for the plan.

`read` takes plain data and gives the canonical plan with every fault as (path, message, offset, at_the_key); `load` turns the
paths into lines and columns. No stage waits for another: what is wrong with the shapes does not hide a state that is misspelt.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Any

from durun.plan import http, pinned, scripts, words
from durun.plan.canonical import Plan, State, pinned_names
from durun.plan.form import canonical
from durun.plan.names import BUILT_IN
from durun.plan.references import (
    Expressions,
    Found,
    all_states,
    is_fixed,
    items,
    levels,
    mapping,
    misplaced,
    reach,
    rounds,
    schemas,
    targets,
)
from durun.plan.schema import validate
from durun.plan.shapes import keys, taken
from durun.plan.words import cut, nearest, not_yet, shown

Json = Any
Where = tuple[str | int, ...]

NOT_KNOWN = "when the run goes on it has not happened yet"
Child = Plan | str  # a plan that is called, or why it cannot be

__all__ = ["Child", "Found", "called", "read"]


def read(
    written: dict[str, Json],
    spelt: Mapping[Where, str] = MappingProxyType({}),
    children: Mapping[str, Child] = MappingProxyType({}),
    files: Mapping[str, Json] = MappingProxyType({}),
) -> tuple[Plan | None, list[Found], list[Found]]:  # fmt: skip
    """The canonical plan, the faults, the warnings, at the paths of what was written.

    `spelt`: numbers that would not be written as they stand in the text. `children`: the plans it calls, by the file it names.
    `files`: those it pins.
    """
    data, short = long_form({k: v for k, v in written.items() if not k.startswith("x-")})
    plan, faults, warnings = _read(data, _numbers(written, spelt), children, files)
    return plan, [_as_written(f, short) for f in faults], [_as_written(w, short) for w in warnings]


def _read(
    data: dict[str, Json], numbers: Iterator[Found], children: Mapping[str, Child], files: Mapping[str, Json]
) -> tuple[Plan | None, list[Found], list[Found]]:  # fmt: skip
    faults = [*_later(data), *misplaced(data)]
    shaped = taken(data)
    if shaped is None:
        from durun.plan.misshapen import judged

        shaped, wrong = judged(data)
        known = {f.path for f in faults}
        faults += [f for f in wrong if f.path not in known]
    expressions = Expressions(data)
    further = [
        *_kinds(data),
        *_names(data),
        *_limits(data),
        *numbers,
        *_children(data, children),
        *_secrets_alike(data, children),
        *_of_notify(data),
        *pinned.faults(data, files),
        *targets(data),
        *reach(data),
        *schemas(data),
        *expressions.faults,
    ]
    told = {f.path for f in faults if not f.key}
    faults += [f for f in further if f.path not in told]
    if faults or shaped is None:
        return None, faults, []
    plan = canonical(shaped, {file: child for file, child in children.items() if not isinstance(child, str)}, dict(files))
    heard = [*_warnings(data), *_unused(data), *_unheard(data, children), *pinned.warnings(data, files), *scripts.warnings(data)]
    return plan, [], [*heard, *rounds(data), *expressions.warnings]


def called(data: dict[str, Json]) -> Iterator[str]:
    """The files of the plans that a plan calls, as it names them."""
    for _, _, state in all_states(long_form(data)[0]):
        file = mapping(state.get("plan")).get("file")
        if isinstance(file, str) and file.strip() and "${{" not in file:
            yield file


def _children(data: dict[str, Json], children: Mapping[str, Child]) -> Iterator[Found]:
    """Plans that are called: that they can be read, and that their input is named."""
    for at, _, state in all_states(data):
        given = mapping(state.get("plan"))
        file = given.get("file")
        child = children.get(file) if isinstance(file, str) else None
        if isinstance(child, str):
            yield Found((*at, "plan", "file"), child)
        if not isinstance(child, dict):
            continue
        if ends := [name for name, inner in child["states"].items() if "compensated" in _leads_to(inner)]:
            said = f"its state `{ends[0]}` leads to `compensated`: it is the calling run that compensates, all of it"
            yield Found((*at, "plan", "file"), f"{file} cannot be called: {said}")
        values = mapping(given.get("input"))
        for name in values:
            if name not in child["input"]:
                yield Found(
                    (*at, "plan", "input", name), f"`{cut(name)}` is no input of {file}{nearest(name, child['input'])}", key=True
                )
        for name, what in child["input"].items():
            if what["required"] and name not in values:
                yield Found((*at, "plan"), f"{file} wants the input `{name}`, which has no default", key=True)
            elif name in values and is_fixed(values[name]) and (unfit := validate(what["schema"], values[name])):
                yield Found((*at, "plan", "input", name), f"the input `{name}` of {file}: {unfit}")


def _secrets_alike(data: dict[str, Json], children: Mapping[str, Child]) -> Iterator[Found]:
    """Secrets that this plan and those it calls name alike and read elsewhere, or that one of them pins: in a run a name is one."""
    given = ({"name": one} if isinstance(one, str) else one for one in items(data.get("secrets")))
    secrets: dict[str, tuple[Json, str]] = {str(one.get("name")): (one, "this plan") for one in given if isinstance(one, dict)}
    pinned = dict.fromkeys(map(str, items(mapping(data.get("pins")).get("env"))), "this plan")
    for at, _, state in all_states(data):
        file = mapping(state.get("plan")).get("file")
        child = children.get(file) if isinstance(file, str) else None
        if not isinstance(child, dict):
            continue
        for one in child.get("secrets", []):
            name = one["name"]
            spec, whose = secrets.setdefault(name, (one, str(file)))
            if any(spec.get(word) != one.get(word) for word in ("file", "run")):
                said = f"the secret {name} is read {_source(one)} in {file}, and {_source(spec)} in {whose}"
                yield Found((*at, "plan", "file"), f"{said}: the two are one in a run; give one of them another name")
            if name in pinned:
                said = f"{name} is a secret in {file}, and pinned in {pinned[name]}, so that it would be stored"
                yield Found((*at, "plan", "file"), f"{said}: give one of them another name")
        for name in pinned_names(child):
            if name in secrets and pinned.setdefault(name, str(file)) == file:
                said = f"{name} is pinned in {file}, so that it would be stored, and a secret in {secrets[name][1]}"
                yield Found((*at, "plan", "file"), f"{said}: give one of them another name")


def _source(secret: Mapping[str, Json]) -> str:
    """Where a secret is read, in words."""
    if secret.get("file") is not None:
        return f"from the file {shown(secret['file'])}"
    if secret.get("run") is not None:
        command = secret["run"]
        return f"from the command {shown(' '.join(map(str, command)) if isinstance(command, list) else command)}"
    return "from the environment"


def _leads_to(state: State) -> set[str]:
    lines: list[Any] = [state, *state["catch"], *state.get("choice", [])]
    return {line["next"] for line in lines if "next" in line}


# --- the short form of a map of one effect ---


def long_form(data: dict[str, Json]) -> tuple[dict[str, Json], dict[Where, Where]]:
    """The plan with each short map written out, and where the states stand that this made: their path -> the path of the map."""
    made: dict[Where, Where] = {}
    return _long_level(data, (), set(), made), made


def _long_level(level: Json, where: Where, outer: set[str], made: dict[Where, Where]) -> Json:
    if not isinstance(level, dict) or not isinstance(level.get("states"), dict):
        return level
    names = outer | {name for name in level["states"] if isinstance(name, str)}
    states = {name: _long_state(state, (*where, "states", name), names, made) for name, state in level["states"].items()}
    return {**level, "states": states}


def _long_state(state: Json, at: Where, outer: set[str], made: dict[Where, Where]) -> Json:
    if not isinstance(state, dict):
        return state
    if isinstance(state.get("map"), dict):
        state = {**state, "map": _long_map(state["map"], (*at, "map"), outer, made)}
    branches = mapping(mapping(state.get("parallel")).get("branches"))
    if branches:
        inner = {name: _long_level(b, (*at, "parallel", "branches", name), outer, made) for name, b in branches.items()}
        state = {**state, "parallel": {**state["parallel"], "branches": inner}}
    return state


def _long_map(given: dict[str, Json], at: Where, outer: set[str], made: dict[Where, Where]) -> dict[str, Json]:
    kind = next((kind for kind in words.EFFECTS if kind in given), None)
    if kind is None or "states" in given or "start" in given:
        return _long_level(given, at, outer, made)  # type: ignore[no-any-return]
    name = kind
    while name in outer:
        name += "_"
    own = keys("Policy") | {"items", "label"}
    inner = {**{key: value for key, value in given.items() if key not in own}, "next": "succeeded"}
    made[*at, "states", name] = at
    rest = {key: value for key, value in given.items() if key in own}
    return {**rest, "start": name, "states": {name: inner}, "output": f"${{{{ states.{name}.output }}}}"}


def _as_written(found: Found, made: dict[Where, Where]) -> Found:
    """A fault at the path of what was written."""
    for long, at in made.items():
        if found.path[: len(long)] == long:
            return found._replace(path=(*at, *found.path[len(long) :]))
    return found


# --- words of a later day ---


def _later(data: dict[str, Json]) -> Iterator[Found]:
    """Keys that belong to the language and are not built yet."""
    for place, where, value in _places_of_later(data):
        for key in value:
            if key in words.LATER[place]:
                yield Found((*where, key), not_yet(key), key=True)


def _places_of_later(data: dict[str, Json]) -> Iterator[tuple[str, Where, dict[str, Json]]]:
    yield "plan", (), data
    yield "pins", ("pins",), mapping(data.get("pins"))
    for at, _, state in all_states(data):
        yield "state", at, state
        yield "probe", (*at, "probe"), mapping(state.get("probe"))


# --- kinds ---


def _kinds(data: dict[str, Json]) -> Iterator[Found]:
    """One kind a state, keys that fit it, a `next` where it goes on."""
    for level in levels(data):
        names = list(level.states)
        for n, (name, state) in enumerate(level.states.items()):
            follows = names[n + 1] if n + 1 < len(names) else "succeeded"
            yield from _kind(level.at(name), name, state, follows, data)


def _kind(where: Where, name: str, state: dict[str, Json], follows: str, data: dict[str, Json]) -> Iterator[Found]:
    kinds = [k for k in (*words.KINDS, *words.LATER_KINDS) if k in state]
    if len(kinds) != 1:
        yield Found(where, f"state `{cut(name)}` {_no_one_kind(state, kinds)}", key=True)
        return
    kind = kinds[0]
    if kind in words.LATER_KINDS:
        return
    for key in state:
        if key in keys("State") and key not in words.FITS[kind] | words.ALWAYS:
            why = words.WHY.get((kind, key))
            yield Found((*where, key), f"`{key}` says nothing to a `{kind}`" + (f": {why}" if why else ""), key=True)
    if "next" not in state and "next" in words.FITS[kind]:
        said = "a transition is never implied by the order of lines"
        yield Found(where, f"state `{cut(name)}` has no `next`: {said}; did you mean `next: {cut(follows)}`?", key=True)
    if kind in ("run", "http"):
        yield from _of_effect(where, state, data)
        yield from _of_background(where, state, data)
        yield from _of_compensation((*where, "compensate"), state.get("compensate"))
    if kind == "choice":
        yield from _of_choice(where, state)
    if kind in ("parallel", "map"):
        yield from _of_policy((*where, kind), mapping(state[kind]))
    if kind == "wait" and "timeout" in state and "signal" not in mapping(state["wait"]):
        yield Found((*where, "timeout"), f"`timeout` says nothing to a `wait`: {words.WHY['wait', 'timeout']}", key=True)
    yield from _of_catch(where, state)


def _of_policy(where: Where, given: dict[str, Json]) -> Iterator[Found]:
    """More than there are can never be enough."""
    branches, enough = given.get("branches"), given.get("enough")
    if isinstance(branches, dict) and isinstance(enough, int) and enough > len(branches):
        yield Found((*where, "enough"), f"there are {len(branches)} branches: {enough} of them can never succeed")


def _no_one_kind(state: dict[str, Json], kinds: list[str]) -> str:
    if kinds:
        return f"is several things at once, {', '.join(kinds)}: it is one of them"
    unknown = [key for key in state if key not in keys("State")]
    near = next((said for key in unknown if (said := nearest(key, words.KINDS))), "")
    return f"has no kind: it is one of {', '.join(words.KINDS)}{near}"


def _of_effect(where: Where, state: dict[str, Json], data: dict[str, Json]) -> Iterator[Found]:
    probe = mapping(state.get("probe"))
    for at, act in ((where, state), ((*where, "probe"), probe)):
        yield from (Found(*fault) for fault in http.faults((*at, "http"), act.get("http")))
        if isinstance(act.get("run"), list) and "shell" in act:
            yield Found((*at, "shell"), "`shell` says nothing to a list: it is begun without a shell", key=True)
    yield from _of_answers((*where, "probe"), probe)
    if "poll" not in state:
        return
    asked = http.may_be_repeated(state.get("http"))
    if not state.get("idempotent", mapping(data.get("defaults")).get("idempotent", asked)) and not probe:
        yield Found((*where, "poll"), "a poll repeats its effect: it must be `idempotent`, or have a `probe`", key=True)
    if "retry" in state:
        yield Found((*where, "retry"), "a poll has no `retry` of its own: a round that fails counts as not yet", key=True)


def _of_background(where: Where, state: dict[str, Json], data: dict[str, Json]) -> Iterator[Found]:
    """What the run does not wait for can give it nothing, and is sent again where nobody knows."""
    if not state.get("background"):
        return
    asked = http.may_be_repeated(state.get("http"))
    if not state.get("idempotent", mapping(data.get("defaults")).get("idempotent", asked)) and "probe" not in state:
        said = "in the background an effect may be delivered again: it must be `idempotent`, or have a `probe`"
        yield Found((*where, "background"), said, key=True)
    for word, why in (("output", "the run does not wait for it"), ("poll", "nobody waits for its answer"), ("pivot", NOT_KNOWN)):
        if word in state:
            yield Found((*where, word), f"`{word}` says nothing in the background: {why}", key=True)


def _of_notify(data: dict[str, Json]) -> Iterator[Found]:
    for n, given in enumerate(items(data.get("notify"))):
        at, kinds = ("notify", n), [kind for kind in ("run", "http") if kind in mapping(given)]
        if isinstance(given, dict) and len(kinds) != 1:
            yield Found(at, "whoever is told is told by one command or one request: `run` or `http`", key=True)
        yield from (Found(*fault) for fault in http.faults((*at, "http"), mapping(given).get("http")))
        yield from _variables((*at, "env"), mapping(given).get("env"))
        if isinstance(mapping(given).get("run"), list) and "shell" in mapping(given):
            yield Found((*at, "shell"), "`shell` says nothing to a list: it is begun without a shell", key=True)


def _of_compensation(at: Where, given: Json) -> Iterator[Found]:
    if not isinstance(given, dict):
        return
    kinds = [kind for kind in ("run", "http") if kind in given]
    if len(kinds) != 1:
        yield Found(at, "an undo is one command or one request: `run` or `http`" + (", not both" if kinds else ""), key=True)
    yield from (Found(*fault) for fault in http.faults((*at, "http"), given.get("http")))
    yield from _of_answers((*at, "probe"), mapping(given.get("probe")))
    if isinstance(given.get("run"), list) and "shell" in given:
        yield Found((*at, "shell"), "`shell` says nothing to a list: it is begun without a shell", key=True)


def _of_answers(at: Where, probe: dict[str, Json]) -> Iterator[Found]:
    """What means both yes and no."""
    if "http" in probe and "run" not in probe:
        try:
            ranges = [words.statuses(probe.get(word, default)) for word, default in (("yes", ["200-299"]), ("no", [404]))]
        except ValueError:
            return  # that fault is told of already
        both = [max(a[0], b[0]) for a in ranges[0] for b in ranges[1] if max(a[0], b[0]) <= min(a[1], b[1])]
        if both:
            yield Found(at, f"the status {both[0]} means both yes and no", key=True)
        return
    yes, no = ([given] if isinstance(given, int) else items(given) for given in (probe.get("yes", 0), probe.get("no", 1)))
    for code in yes:
        if probe and code in no:
            yield Found(at, f"the exit code {shown(code)} means both yes and no", key=True)


def _of_choice(where: Where, state: dict[str, Json]) -> Iterator[Found]:
    lines = items(state["choice"])
    for n, line in enumerate(lines[:-1]):
        if isinstance(line, dict) and "when" not in line:
            yield Found((*where, "choice", n), "only the last line may have no `when`: what follows is never reached")


def _of_catch(where: Where, state: dict[str, Json]) -> Iterator[Found]:
    """Lines that an earlier one leaves nothing to."""
    taken: set[str] = set()
    for n, line in enumerate(items(state.get("catch"))):
        given = mapping(line).get("on")
        names = [name for name in (given if isinstance(given, list) else [given]) if isinstance(name, str)]
        left = [name for name in names if name == "in_doubt" or "any" not in taken]
        if names and not [name for name in left if name not in taken]:
            yield Found((*where, "catch", n), "the lines above take all of this: it is never reached")
        taken |= {"any" if name == "*" else name for name in names}


# --- names and values ---


def _names(data: dict[str, Json]) -> Iterator[Found]:
    """Names of inputs, vars, states, branches and environment variables; vars that are assigned and not declared."""
    for word in ("input", "vars"):
        yield from _named((word,), mapping(data.get(word)))
    yield from _variables(("defaults", "env"), mapping(data.get("defaults")).get("env"))
    for level in levels(data):
        yield from _named((*level.where, "states"), level.states)
    yield from _of_secrets(data)
    declared = mapping(data.get("vars"))
    for at, _, state in all_states(data):
        yield from _named((*at, "parallel", "branches"), mapping(mapping(state.get("parallel")).get("branches")))
        yield from _variables((*at, "env"), state.get("env"))
        yield from _variables((*at, "probe", "env"), mapping(state.get("probe")).get("env"))
        yield from _variables((*at, "compensate", "env"), mapping(state.get("compensate")).get("env"))
        assigned: list[tuple[Where, Json]] = [((*at, "assign"), state.get("assign"))]
        for n, catch in enumerate(items(state.get("catch"))):
            assigned.append(((*at, "catch", n, "assign"), mapping(catch).get("assign")))
        for path, given in assigned:
            for var in mapping(given):
                if var not in declared:
                    yield Found((*path, var), f"`{cut(var)}` is none of the vars{nearest(var, declared)}", key=True)


def _named(path: Where, names: Iterable[str]) -> Iterator[Found]:
    for name in names:
        if name in words.NO_NAMES:
            yield Found((*path, name), f"`{name}` means something else in an expression", key=True)
        elif not words.NAME.fullmatch(name):
            said = f"`{cut(name)}` is no name: small letters, digits and `_`, a letter first, at most 64"
            yield Found((*path, name), said, key=True)


def _of_secrets(data: dict[str, Json]) -> Iterator[Found]:
    pinned = items(mapping(data.get("pins")).get("env"))
    names: list[Json] = []
    for n, given in enumerate(items(data.get("secrets"))):
        name = given.get("name") if isinstance(given, dict) else given
        at = ("secrets", n)
        if name in names:
            yield Found(at, f"the secret {shown(name)} is named twice")
        if name in pinned:
            yield Found(at, f"{shown(name)} is pinned too, and what is pinned is stored: take it out of pins.env")
        names.append(name)


def _variables(path: Where, env: Json) -> Iterator[Found]:
    for name, value in mapping(env).items():
        at = (*path, name)
        if not words.VARIABLE.fullmatch(name):
            yield Found(at, f"`{cut(name)}` is no name of an environment variable", key=True)
        elif name.startswith("DURUN_"):
            yield Found(at, f"`{cut(name)}`: names that begin with DURUN_ are durun's", key=True)
        if value is None or isinstance(value, list | dict):
            yield Found(at, f"a text, a number or a boolean is wanted here, not {shown(value)}")


def _limits(data: dict[str, Json]) -> Iterator[Found]:
    """Limits that are declared and limit nothing, and those that a state names and nobody declares."""
    declared = mapping(data.get("limits"))
    yield from _named(("limits",), declared)
    for name, given in declared.items():
        if isinstance(given, dict) and not {"concurrency", "rate"} & set(given):
            yield Found(("limits", name), f"the limit `{cut(name)}` has neither `concurrency` nor `rate`: give it one", key=True)
    for at, _, state in all_states(data):
        named = state.get("limit")
        if isinstance(named, str) and named not in declared:
            there = nearest(named, declared) if declared else "; they are declared at the top of the plan"
            yield Found((*at, "limit"), f"`{cut(named)}` is none of the plan's `limits`{there}")


def _unused(data: dict[str, Json]) -> Iterator[Found]:
    used = [state.get("limit") for _, _, state in all_states(data)]
    for name in mapping(data.get("limits")):
        if name not in used:
            yield Found(("limits", name), f"no state has the limit `{name}`", key=True)


# how many names of a path lead into a state, a level or what a state does
STEPS = {"states": 2, "defaults": 1, "probe": 1, "compensate": 1, "map": 1, "parallel": 3}


def _numbers(data: dict[str, Json], spelt: Mapping[Where, str]) -> Iterator[Found]:
    """Numbers in argv, env and stdin that a command would not see as they are written."""
    for path, text in spelt.items():
        place = path
        while steps := STEPS.get(str(place[0]) if place else ""):
            place = place[steps:]
        if place[:1] in (("run",), ("env",)) or place == ("stdin",) or place[:2] in (("http", "headers"), ("http", "form")):
            at: Any = data
            for part in path:
                at = at[part]
            yield Found(path, f"as a number `{cut(text)}` reaches the command as {at!r}: put it in quotes")


# --- warnings ---


def _unheard(data: dict[str, Json], children: Mapping[str, Child]) -> Iterator[Found]:
    """What a plan that is called says of the whole run, where the calling plan says something else."""
    for at, _, state in all_states(data):
        file = mapping(state.get("plan")).get("file")
        child = children.get(file) if isinstance(file, str) else None
        for word in ("on_error", "on_cancel"):
            if isinstance(child, dict) and word in child and data.get(word) != "compensate":
                said = f"`{word}: compensate` of {file} is not heard where it is called: what it did is undone with the whole run"
                yield Found((*at, "plan", "file"), f"{said}, by this plan's own `{word}` or `durun compensate`")
        if isinstance(child, dict) and "notify" in child:
            said = f"`notify` of {file} is not heard where it is called: this plan's own tells of the whole run"
            yield Found((*at, "plan", "file"), said)
        for word in ("group", "timeout"):
            if isinstance(child, dict) and word in child:
                said = "is not heard where it is called: it is of runs, and a child is a part of one"
                yield Found((*at, "plan", "file"), f"the `{word}` of {file} {said}")


def _warnings(data: dict[str, Json]) -> Iterator[Found]:
    default = mapping(data.get("defaults")).get("idempotent", False)
    for at, name, state in all_states(data):
        catches = items(state.get("catch"))
        for word, lines in (("catch", catches), ("retry", _as_list(state.get("retry")))):
            for n, line in enumerate(lines):
                for matcher in map(str, _as_list(mapping(line).get("on"))):
                    if ":" not in matcher and matcher not in BUILT_IN and (near := nearest(matcher, BUILT_IN)):
                        yield Found((*at, word, n, "on"), f"`{matcher}` is no error durun gives itself{near}")
        if "approval" in state:
            yield from _of_options((*at, "approval", "options"), mapping(state["approval"]).get("options"))
        repeatable = state.get("idempotent", http.may_be_repeated(state.get("http")) or default)
        if ("run" in state or "http" in state) and not repeatable and not {"probe", "compensate"} & set(state):
            if any("in_doubt" in _as_list(mapping(catch).get("on")) for catch in catches):
                continue
            message = f"state `{name}` can neither be repeated, probed nor undone: interrupted, it asks a person"
            yield Found(at, message, key=True)


def _as_list(value: Json) -> list[Json]:
    return value if isinstance(value, list) else [] if value is None else [value]


def _of_options(at: Where, options: Json) -> Iterator[Found]:
    """Answers that sound like a no, and are none."""
    if any(mapping(option).get("reject") for option in items(options)):
        return
    for n, option in enumerate(items(options)):
        name = mapping(option).get("name") if isinstance(option, dict) else option
        if str(name).lower() in ("no", "reject", "rejected", "deny", "denied", "never"):
            said = f"`{name}` goes on like any other answer: `{{name: {name}, reject: true}}` is a no"
            yield Found((*at, n), said)
