"""What a plan names: where its states lead, and what its expressions read. Works on plain data that may be wrong in any way.

- what is certain to fail is a fault; what fails only on some ways is a warning
- a path is held against what is declared: inputs, vars, states, the schemas of inputs and outputs; where nothing is declared
  nothing is said
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from durun.plan import fits, http, schema
from durun.plan.canonical import ENDS
from durun.plan.expressions import SECRET, Hole, Path, Reading, SyntaxFault, inspect, split
from durun.plan.form import input_of, schema_of, type_of
from durun.plan.words import nearest, not_yet, shown
from durun.values import NamedTuple

Json = Any
Where = tuple[str | int, ...]


class Found(NamedTuple):
    """A fault at a path of the plan: at its value, `offset` characters inside it, or at its key."""

    path: Where
    message: str
    offset: int = 0
    key: bool = False


ROOTS = frozenset({"input", "vars", "error", "states", "run", "pins"})
ENTERED = ROOTS | {"visit"}
ACTING = ENTERED | {"key"}
UNDOING = ACTING | {"output", "undo_key"}
INSIDE = frozenset({"item", "index"})  # in what a map does for each of its items
LATER_NAMES: frozenset[str] = frozenset()
SECRET_WORDS = ("env", "stdin")  # of a command; of a request, `http.WORDS`
RUN_FIELDS = ("id", "name", "version", "started_at")
ERROR_FIELDS = ("name", "message", "state", "visit", "attempt", "exit", "status", "output", "stderr")
SEEN = ("output", "error", "visits", "exit", "items", "run")


def mapping(value: Json) -> dict[str, Json]:
    return value if isinstance(value, dict) else {}


def items(value: Json) -> list[Json]:
    return value if isinstance(value, list) else []


class Level(NamedTuple):
    """States to walk through: those of the plan, of a branch, or of what a map does for each item."""

    where: Where  # of the mapping that has them
    data: dict[str, Json]
    outer: Level | None = None
    holder: str = ""  # the state of the outer level that holds it
    kind: str = "plan"  # plan | branch | item

    @property
    def states(self) -> dict[str, dict[str, Json]]:
        return {name: mapping(state) for name, state in mapping(self.data.get("states")).items()}

    @property
    def start(self) -> Json:
        return self.data.get("start")

    def at(self, name: str) -> Where:
        return (*self.where, "states", name)

    def around(self) -> list[Level]:
        """This level and those around it, the innermost first."""
        return [self, *(self.outer.around() if self.outer is not None else [])]


def levels(data: dict[str, Json]) -> list[Level]:
    """All of a plan's levels, the outer ones first."""
    found = [Level((), data)]
    for level in found:  # grows while it is walked
        for name, state in level.states.items():
            at = level.at(name)
            branches = mapping(mapping(state.get("parallel")).get("branches"))
            for branch, inner in branches.items():
                found.append(Level((*at, "parallel", "branches", branch), mapping(inner), level, name, "branch"))
            if isinstance(state.get("map"), dict):
                found.append(Level((*at, "map"), state["map"], level, name, "item"))
    return found


def all_acts(data: dict[str, Json]) -> Iterator[tuple[Where, dict[str, Json]]]:
    """Whatever may hold a command or a request, as it is written, and where: states, notifies, probes, undos and their probes."""
    told = [(("notify", n), mapping(one)) for n, one in enumerate(items(data.get("notify")))]
    for at, state in [*((at, state) for at, _, state in all_states(data)), *told]:
        undo = mapping(state.get("compensate"))
        yield at, state
        yield (*at, "probe"), mapping(state.get("probe"))
        yield (*at, "compensate"), undo
        yield (*at, "compensate", "probe"), mapping(undo.get("probe"))


def all_states(data: dict[str, Json]) -> Iterator[tuple[Where, str, dict[str, Json]]]:
    """Every state of a plan, with where it stands and its name."""
    for level in levels(data):
        for name, state in level.states.items():
            yield level.at(name), name, state


# --- where states lead ---


class Way(NamedTuple):
    path: Where
    target: str
    caught: bool  # by a catch: the state has no output then


def ways(state: dict[str, Json], at: Where) -> Iterator[Way]:
    if isinstance(state.get("next"), str):
        yield Way((*at, "next"), state["next"], False)
    for word in ("choice", "catch"):
        for n, line in enumerate(items(state.get(word))):
            target = mapping(line).get("next")
            if isinstance(target, str):
                yield Way((*at, word, n, "next"), target, word == "catch")


def targets(data: dict[str, Json]) -> Iterator[Found]:
    for level in levels(data):
        yield from _targets(level)


def _targets(level: Level) -> Iterator[Found]:
    states, start = level.states, level.start
    here = "this plan" if level.outer is None else "what is inside"
    outer = {name for around in level.around()[1:] for name in around.states}
    if isinstance(start, str) and states and start not in states:
        yield Found((*level.where, "start"), f"`{start}` is no state of {here}{nearest(start, states)}")
    for name, state in states.items():
        if name in ENDS:
            yield Found(level.at(name), f"`{name}` is a built-in end, no name for a state", key=True)
        if name in outer:
            yield Found(level.at(name), f"a state around this one has the name `{name}` already: take another", key=True)
        for way in ways(state, level.at(name)):
            if way.target == "compensated" and level.outer is not None:
                yield Found(way.path, "inside a branch or item there is no `compensated`: it is the run that compensates")
            elif way.target not in states and way.target not in ENDS:
                yield Found(way.path, f"`{way.target}` is no state of {here}{nearest(way.target, [*states, *ENDS])}")


def reach(data: dict[str, Json]) -> Iterator[Found]:
    """States that nothing leads to."""
    for level in levels(data):
        states, start = level.states, level.start
        if not isinstance(start, str) or start not in states:
            continue
        seen: set[str] = set()
        todo = [start]
        while todo:
            name = todo.pop()
            if name in states and name not in seen:
                seen.add(name)
                todo += [way.target for way in ways(states[name], level.at(name))]
        for name in states:
            if name not in seen:
                yield Found(level.at(name), f"state `{name}` is never reached from `{start}`", key=True)


def rounds(data: dict[str, Json]) -> Iterator[Found]:
    """Rings of `pass` that nothing but `max_visits` ends."""
    for level in levels(data):
        yield from _rounds(level)


def _rounds(level: Level) -> Iterator[Found]:
    states = level.states
    done: set[str] = set()
    for name in states:
        walked: dict[str, None] = {}
        at: Json = name
        while isinstance(at, str) and at in states and at not in walked and at not in done and _only_passes(states[at]):
            walked[at] = None
            at = states[at].get("next")
        if isinstance(at, str) and at in walked:
            ring = [*walked][[*walked].index(at) :]
            shown = ring if len(ring) <= 5 else [*ring[:4], "…"]
            yield Found((*level.at(at), "next"), f"{' -> '.join([*shown, at])} goes round until `max_visits` ends it")
        done |= set(walked)


def _only_passes(state: dict[str, Json]) -> bool:
    return "pass" in state and "catch" not in state


# --- which outputs are there ---


MANY = 2000  # states: beyond, nothing is said of outputs that may not be there


class Ended(NamedTuple):
    """For each state and for "succeeded": the states that have ended on every way to it, and on some way; a bit each."""

    bits: dict[str, int]
    always: dict[str, int]
    sometimes: dict[str, int]

    def on_every_way(self, name: str, to: str) -> bool:
        return bool(self.always[to] & self.bits.get(name, 0))

    def on_some_way(self, name: str, to: str) -> bool:
        return bool(self.sometimes[to] & self.bits.get(name, 0))


def ended_before(level: Level, *, caught: bool) -> Ended:
    """`caught`: a state left by its catch counts too (it has an error and an exit, but no output)."""
    states, start = level.states, level.start
    bits = {name: 1 << n for n, name in enumerate(states)}
    everything = (1 << len(states)) - 1
    always = {name: 0 if name == start else everything for name in (*states, *ENDS)}
    sometimes = dict.fromkeys(always, 0)
    todo = [start] if isinstance(start, str) and start in states else []
    met: set[str] = set()
    while todo:
        name = todo.pop()
        met.add(name)
        for way in ways(states[name], level.at(name)):
            to = way.target
            if to not in always:
                continue
            own, counts = bits[name], caught or not way.caught
            sure = (always[name] | own) if counts else (always[name] & ~own)
            some = (sometimes[name] | own) if counts else (sometimes[name] & ~own)
            own = bits.get(to, 0)
            now = always[to] & sure & ~own, (sometimes[to] | some) & ~own
            if now != (always[to], sometimes[to]) or to not in met:
                always[to], sometimes[to] = now
                todo += [to] if to in states else []
    return Ended(bits, always, sometimes)


# --- expressions ---


class Place(NamedTuple):
    """A value that may hold an expression: where, and in which state; `bare`: it is one without braces."""

    path: Where
    value: Json
    names: frozenset[str]
    state: str | None
    level: Level
    bare: bool = False
    secrets: bool = False  # `${{ secrets.NAME }}` may stand here
    wants: str = ""  # what fits here: a word of `fits`, or "vars" where the first key below names a var


# what fits where, by the last word of a place
WANTS = {
    "run": fits.WORD, "env": fits.TEXT, "cwd": fits.TEXT, "timeout": fits.SPELT, "heartbeat": fits.SPELT, "key": fits.TEXT,
    "wait": fits.SPELT, "message": fits.TEXT, "every": fits.SPELT, "for": fits.SPELT, "until": fits.TRUTH, "when": fits.TRUTH,
    "if": fits.TRUTH, "assign": "vars", "items": fits.LIST,
}  # fmt: skip


def places(data: dict[str, Json]) -> Iterator[Place]:
    """Every value that may hold an expression, with what fits there."""
    for place in _places(data):
        yield place._replace(wants=WANTS.get(str(place.path[-1]), ""))


def _places(data: dict[str, Json]) -> Iterator[Place]:
    for level in levels(data):
        if level.outer is None:
            yield Place(("vars",), data.get("vars"), frozenset({"input"}), None, level)
            yield Place(("timeout",), data.get("timeout"), frozenset({"input"}), None, level)
            yield Place(("group", "name"), mapping(data.get("group")).get("name"), frozenset({"input"}), None, level)
            for word in ("env", "cwd", "timeout", "heartbeat"):
                given = mapping(data.get("defaults")).get(word)
                yield Place(("defaults", word), given, ACTING, None, level, secrets=word == "env")
            yield from _notified(level)
        more = INSIDE if any(around.kind == "item" for around in level.around()) else frozenset()
        yield Place((*level.where, "output"), level.data.get("output"), ROOTS | more, "succeeded", level)
        for name, state in level.states.items():
            for path, value, names in _acts_of(level.at(name), state):
                secrets = path[-1] in SECRET_WORDS or path[-2] == "http"
                yield Place(path, value, names | more, name, level, secrets=secrets)
            for path, value, names, bare in _places_of(level.at(name), state):
                yield Place(path, value, names | more, name, level, bare)


def _notified(level: Level) -> Iterator[Place]:
    """What whoever is told of a run is told."""
    for n, given in enumerate(items(level.data.get("notify"))):
        for path, value, _ in _acts_of(("notify", n), mapping(given)):
            if "probe" not in path and "compensate" not in path:
                yield Place(path, value, ROOTS, None, level, secrets=path[-1] in SECRET_WORDS or path[-2] == "http")


def acts(at: Where, state: dict[str, Json]) -> Iterator[tuple[Where, dict[str, Json], frozenset[str]]]:
    """(path, what is done, the names it may use): a state itself, its probe, its undo and the probe of that."""
    undo = mapping(state.get("compensate"))
    yield at, state, ACTING
    yield (*at, "probe"), mapping(state.get("probe")), ACTING
    yield (*at, "compensate"), undo, UNDOING
    yield (*at, "compensate", "probe"), mapping(undo.get("probe")), ACTING


def _acts_of(at: Where, state: dict[str, Json]) -> Iterator[tuple[Where, Json, frozenset[str]]]:
    """(path, value, names) of each value of a command or request that may hold an expression."""
    for where, act, names in acts(at, state):
        for word in ("run", "env", "cwd", "stdin", "timeout", "heartbeat"):
            if not (word == "run" and isinstance(act.get("run"), str)):
                yield (*where, word), act.get(word), ENTERED if {"wait", "approval"} & set(state) else names
        for word in http.WORDS:
            yield (*where, "http", word), mapping(act.get("http")).get(word), names


def _places_of(at: Where, state: dict[str, Json]) -> Iterator[tuple[Where, Json, frozenset[str], bool]]:
    """(path, value, names, whether it is bare) of each other value of a state that may hold an expression."""
    acting = "run" in state or "http" in state
    for word in ("key", "wait"):
        yield (*at, word), state.get(word), ENTERED, False
    waits = "signal" in mapping(state.get("wait"))
    gives = {"output"} if acting or waits or {"approval", "parallel", "map", "plan"} & set(state) else set()
    yield (*at, "assign"), state.get("assign"), (ACTING if acting else ENTERED) | gives, False
    yield (*at, "compensate", "if"), mapping(state.get("compensate")).get("if"), UNDOING, True
    for kind in ("fail", "approval"):
        for word in ("message", "data"):
            yield (*at, kind, word), mapping(state.get(kind)).get(word), ENTERED, False
    yield (*at, "map", "items"), mapping(state.get("map")).get("items"), ENTERED, True
    yield (*at, "map", "label"), mapping(state.get("map")).get("label"), ENTERED | INSIDE, False
    for word in ("input", "id"):
        yield (*at, "plan", word), mapping(state.get("plan")).get(word), ENTERED, False
    poll = mapping(state.get("poll"))
    yield (*at, "poll", "until"), poll.get("until"), ENTERED | {"output"}, True
    for word in ("every", "for"):
        yield (*at, "poll", word), poll.get(word), ENTERED, False
    for n, line in enumerate(items(state.get("choice"))):
        yield (*at, "choice", n, "when"), mapping(line).get("when"), ENTERED, True
    for n, catch in enumerate(items(state.get("catch"))):
        yield (*at, "catch", n, "assign"), mapping(catch).get("assign"), ENTERED, False


class Expressions:
    """The faults and warnings of all expressions of a plan."""

    def __init__(self, data: dict[str, Json]) -> None:
        self.faults: list[Found] = []
        self.warnings: list[Found] = []
        self._data = data
        self._ended: dict[tuple[Where, bool], Ended] = {}
        self._here: Place | None = None  # where the expression stands that is looked at
        for place in places(data):
            if place.wants == "vars":
                for var, value in mapping(place.value).items():
                    self._assigned(place, var, value)
            else:
                self._value(place, place.path, place.value)

    def _assigned(self, place: Place, var: str, value: Json) -> None:
        """A value that a var is to take: it must be able to keep the type of the first one."""
        path = (*place.path, var)
        if isinstance(value, str) and "${{" in value:
            return self._value(place, path, value)
        self._value(place, path, value)
        if wrong := fits.no_var(var, self._kept(var), frozenset({schema.kind(value)}), "this value"):
            self.faults.append(Found(path, wrong))

    def _value(self, place: Place, path: Where, value: Json) -> None:
        if isinstance(value, dict):
            for key, v in value.items():
                self._value(place, (*path, key), v)
        elif isinstance(value, list):
            for n, v in enumerate(value):
                self._value(place, (*path, n), v)
        elif isinstance(value, str) and place.bare:
            if "${{" in value:
                said = "this is an expression already: leave `${{` and `}}` out"
                self.faults.append(Found(path, said, value.index("${{")))
            else:
                self._source(place, path, Hole(value, 0), alone=True)
        elif isinstance(value, str) and "${{" in value:
            try:
                parts = split(value)
                for part in parts:
                    if isinstance(part, Hole):
                        self._source(place, path, part, alone=len(parts) == 1)
                if len(parts) > 1 and place.wants == "vars":
                    self._unfit_var(path, frozenset({"string"}), "this text", 0)
            except SyntaxFault as e:
                self.faults.append(Found(path, e.message, e.offset))

    def _source(self, place: Place, path: Where, hole: Hole, *, alone: bool) -> None:
        """One expression; `alone`: it is the whole value, and gives it its type."""
        if (secret := SECRET.fullmatch(hole.source)) is not None:
            fault = self._secret(place, secret.group(1))
            if fault:
                self.faults.append(Found(path, fault, hole.offset + secret.start(1)))
            return
        self._here, before = place, len(self.faults)
        reading = inspect(hole.source, self._plain)
        for message, offset in reading.faults:
            self.faults.append(Found(path, message, hole.offset + offset))
        for read in reading.paths:
            at = hole.offset + read.offset
            fault = self._fault(place, read)
            if fault:
                self.faults.append(Found(path, fault, at))
            elif not reading.faults:
                self._not_ended(place, path, read, reading, at)
        if not reading.faults:
            self._doubles(place, path, hole, reading)
            self._walked(path, hole, reading)
        if len(self.faults) == before:
            self._fits(place, path, hole, reading, alone=alone)

    def _plain(self, read: Path) -> str | None:
        """string or boolean, where a path is declared as just that: what CEL can be told. Numbers are not: 900 fits both."""
        kinds = self._kinds(read) or frozenset()
        return next((kind for kind in ("string", "boolean") if kinds == {kind}), None)

    def _kinds(self, read: Path) -> fits.Kinds:
        assert self._here is not None
        declared, n = self._declared(self._here, read)
        return fits.of_schema(types(declared, read.names[n:]))

    def _kept(self, var: str) -> fits.Kinds:
        """The types a var may have."""
        first, more = type_of(mapping(self._data.get("vars")).get(var)), self._of_schema(var)
        if "type" in first:
            return frozenset({first["type"]})
        return fits.of_schema(types(more, ()))

    def _of_schema(self, var: str) -> Json:
        """What vars_schema says of a var; {} where it says nothing for certain."""
        whole = mapping(self._data.get("vars_schema"))
        return mapping(mapping(whole.get("properties")).get(var)) if not OPEN_WORDS & set(whole) else {}

    def _fits(self, place: Place, path: Where, hole: Hole, reading: Reading, *, alone: bool) -> None:
        """A type that cannot fit where the value of an expression goes."""
        kinds = self._kinds(reading.bare) if reading.bare else frozenset({reading.gives}) if reading.gives else None
        what = f"`{'.'.join(reading.bare.names)}`" if reading.bare else "this expression"
        at = hole.offset + (reading.bare.offset if reading.bare else len(hole.source) - len(hole.source.lstrip()))
        if alone and place.wants == "vars":
            return self._unfit_var(path, kinds, what, at)
        wrong = fits.unfit(place.wants if alone else fits.TEXT, kinds, what)
        if wrong:
            self.faults.append(Found(path, wrong, at))

    def _unfit_var(self, path: Where, kinds: fits.Kinds, what: str, at: int) -> None:
        """`path` ends in the name of the var, or leads into an object or list that the var takes."""
        n = path.index("assign") + 1
        if len(path) == n + 1 and (wrong := fits.no_var(str(path[n]), self._kept(str(path[n])), kinds, what)):
            self.faults.append(Found(path, wrong, at))

    def _secret(self, place: Place, name: str) -> str | None:
        """What is wrong with a secret that stands alone in its braces."""
        if not place.secrets:
            return f"no secret may stand here: only in {', '.join((*SECRET_WORDS, *http.WORDS))}"
        given = [mapping(one).get("name", one) for one in items(self._data.get("secrets"))]
        known = [one for one in given if isinstance(one, str)]
        return None if name in known else f"`{name}` is none of the plan's `secrets`{nearest(name, known)}"

    def _fault(self, place: Place, read: Path) -> str | None:
        """What is wrong with a path wherever it is read."""
        root, *fields = read.names
        if root == "secrets":
            return "a secret stands alone in its braces, as ${{ secrets.NAME }}: nothing may be worked out from it"
        if root in LATER_NAMES:
            return not_yet(root)
        if root not in place.names:
            return f"`{root}` has no value here: there are {', '.join(sorted(place.names))}"
        if not fields:
            return None
        known = self._fields(place, root)
        if known is not None and fields[0] not in known:
            return f"`{root}.{fields[0]}` is not there{nearest(fields[0], known)}"
        if root == "states" and len(fields) > 1 and fields[1] not in SEEN:
            return f"a state has {', '.join(SEEN)}, no `{fields[1]}`{nearest(fields[1], SEEN)}"
        if root == "pins" and len(fields) > 1:
            pinned = [v for v in items(mapping(self._data.get("pins")).get("env")) if isinstance(v, str)]
            if fields[1] not in pinned:
                return f"`{fields[1]}` is not pinned: name it under pins.env{nearest(fields[1], pinned)}"
        if root == "states" and len(fields) > 1 and fields[1] in ("items", "run"):
            state = self._state(place, fields[0])[1]
            if fields[1] == "items" and not {"parallel", "map"} & set(state):
                return f"`{fields[0]}` holds no branches or items, so it has no `items`"
            if fields[1] == "run" and "plan" not in state:
                return f"`{fields[0]}` calls no plan, so it has no `run`"
        declared, n = self._declared(place, read)
        return lacking(declared, read.names, n)

    def _state(self, place: Place, name: str) -> tuple[Level, dict[str, Json]]:
        """The state of this name as it is seen from a place, and the level it stands in."""
        for level in place.level.around():
            if name in level.states:
                return level, level.states[name]
        return place.level, {"run": None}

    def _fields(self, place: Place, root: str) -> tuple[str, ...] | list[str] | None:
        match root:
            case "input" | "vars":
                return list(mapping(self._data.get(root)))
            case "states":
                return [name for level in place.level.around() for name in level.states]
            case "run":
                return RUN_FIELDS
            case "pins":
                return ("env",)
            case "error":
                return ERROR_FIELDS
        return None

    def _declared(self, place: Place, read: Path) -> tuple[Json, int]:
        """What is known of the value at the first names of a path, and how many names those are."""
        if (said := fits.given(read.names)) is not None:
            return said
        match read.names:
            case ("input", name, *_):
                return input_of(mapping(self._data.get("input")).get(name, {}))[0], 2
            case ("vars", name, *_):
                return {**self._of_schema(name), **type_of(mapping(self._data.get("vars")).get(name))}, 2
            case ("output", *_) if place.state in place.level.states:
                return schema_of(place.level.states[place.state]), 1
            case ("states", name, "output", *_):
                return schema_of(self._state(place, name)[1]), 3
        return {}, len(read.names)

    def _not_ended(self, place: Place, path: Where, read: Path, reading: Reading, at: int) -> None:
        """An output that is not there yet, on all ways or on some."""
        if read.names[0] != "states" or read.must < 3 or read.names[2] == "visits" or place.state is None:
            return
        level = self._state(place, read.names[1])[0]
        at_level = [around for around in place.level.around() if around is level]
        if not at_level or len(level.states) > MANY:
            return
        stands = place.state if level is place.level else _holder_in(place.level, level)
        asked = any(p.must < 3 and p.names[: p.must + 1] == read.names[: p.must + 1] for p in reading.paths)
        if asked:
            return
        name, word = read.names[1], read.names[2]
        whole = f"states.{name}.{word}"
        if name == stands and level is place.level and (how := _itself(place)):
            if how == "caught" and word == "output":
                self.faults.append(Found(path, f"`{whole}` is never there: `{name}` has ended in an error", at))
            return
        if not self._ways(level, caught=True).on_some_way(name, stands):
            said = f"`{whole}` is never there: `{name}` has not been visited on any way to here"
        elif not self._ways(level, caught=True).on_every_way(name, stands):
            said = f"`{name}` may not have been visited on some way to here: has({whole}) asks whether it was"
        else:
            if word == "output" and not self._ways(level, caught=False).on_every_way(name, stands):
                said = f"`{whole}` is not there where `{name}` has failed; has({whole}) asks for it"
                self.warnings.append(Found(path, said, at))
            return
        self.faults.append(Found(path, said, at))

    def _ways(self, level: Level, *, caught: bool) -> Ended:
        """Which states have ended before which; with `caught` also those that ended with an error."""
        key = (level.where, caught)
        if key not in self._ended:
            self._ended[key] = ended_before(level, caught=caught)
        return self._ended[key]

    def _walked(self, path: Where, hole: Hole, reading: Reading) -> None:
        """Only a list is walked over; of an object that would be in another order each time."""
        for read in reading.walked:
            if wrong := fits.no_walk(".".join(read.names), self._kinds(read)):
                self.faults.append(Found(path, wrong, hole.offset + read.offset))

    def _doubles(self, place: Place, path: Where, hole: Hole, reading: Reading) -> None:
        """Integers and doubles do not mix in arithmetic."""
        for read in reading.doubles:
            declared, n = self._declared(place, read)
            kinds = types(declared, read.names[n:])
            spelt = ".".join(read.names)
            if kinds == {"integer"}:
                said = f"`{spelt}` is an integer, and here it meets a double: write double({spelt})"
                self.faults.append(Found(path, said, hole.offset + read.offset))
            elif kinds is None or "integer" in kinds or read.names[0] != "vars":
                said = f"`{spelt}` fails here where it is an integer: write double({spelt})"
                self.warnings.append(Found(path, said, hole.offset + read.offset))


def _itself(place: Place) -> str | None:
    """How a state has ended where its own values are worked out after it: "well" or "caught"; None where it has not."""
    within = place.path[len(place.level.where) + 2 :]
    return {"assign": "well", "compensate": "well", "catch": "caught"}.get(str(within[0])) if within else None


def _holder_in(inner: Level, outer: Level) -> str:
    """The state of an outer level that holds, at whatever depth, an inner one."""
    while inner.outer is not None and inner.outer is not outer:
        inner = inner.outer
    return inner.holder


# --- what a schema says of a path ---

OPEN_WORDS = {"$ref", "$dynamicRef", "anyOf", "oneOf", "allOf", "not", "if", "patternProperties"}


def _into(declared: Json, name: str) -> Json:
    """The schema of a field, {} where nothing is said; None where it is certain that there is no such field."""
    if not isinstance(declared, dict) or OPEN_WORDS & set(declared):
        return {}
    kinds = declared.get("type")
    if kinds is not None and "object" not in ([kinds] if isinstance(kinds, str) else items(kinds)):
        return None
    fields = mapping(declared.get("properties"))
    if name in fields:
        return fields[name] if isinstance(fields[name], dict) else {}
    more = declared.get("additionalProperties")
    return None if more is False else mapping(more)


def lacking(declared: Json, names: tuple[str, ...], n: int) -> str | None:
    """What is wrong with the names of a path after the first `n`, by the schema of what those lead to."""
    while n < len(names):
        inner = _into(declared, names[n])
        if inner is None:
            kinds = declared.get("type")
            if kinds is not None and "object" not in ([kinds] if isinstance(kinds, str) else items(kinds)):
                said = kinds if isinstance(kinds, str) else " or ".join(map(str, kinds))
                return f"`{'.'.join(names[:n])}` is of the type {said}, and has no `{names[n]}`"
            return f"`{'.'.join(names[: n + 1])}` is not there{nearest(names[n], mapping(declared.get('properties')))}"
        declared, n = inner, n + 1
    return None


def types(declared: Json, names: tuple[str, ...]) -> set[str] | None:
    """The types a value may have; None where nothing is said."""
    for name in names:
        declared = _into(declared, name)
    if not isinstance(declared, dict) or OPEN_WORDS & set(declared) or "type" not in declared:
        return None
    kinds = declared["type"]
    return {kinds} if isinstance(kinds, str) else {k for k in items(kinds) if isinstance(k, str)}


# --- where no expression may stand ---


def misplaced(data: dict[str, Json]) -> Iterator[Found]:
    """Names, kinds, next, start, on, retry, max_visits, schemas: what the machine must know before a run begins."""
    fixed = (
        "durun",
        "name",
        "version",
        "description",
        "on_error",
        "on_cancel",
        "input",
        "pins",
        "secrets",
        "vars_schema",
        "limits",
    )
    for word in fixed:
        yield from _braces((word,), data.get(word))
    yield from _braces(("group", "if_busy"), mapping(data.get("group")).get("if_busy"))
    defaults = mapping(data.get("defaults"))
    for word in ("retry", "idempotent", "shell"):
        yield from _braces(("defaults", word), defaults.get(word))
    for level in levels(data):
        yield from _braces((*level.where, "start"), level.start)
        for name, state in level.states.items():
            yield from _misplaced(level.at(name), state)


def _misplaced(at: Where, state: dict[str, Json]) -> Iterator[Found]:
    for word in ("description", "next", "max_visits", "retry", "idempotent", "expect", "shell", "output", "limit"):
        yield from _braces((*at, word), state.get(word))
    yield from _braces((*at, "idempotency_header"), state.get("idempotency_header"))
    for where, act, _ in acts(at, state):
        for word in http.FIXED:
            yield from _braces((*where, "http", word), mapping(act.get("http")).get(word))
        if where != at:
            for word in ("yes", "no", "retry", "idempotent", "shell", "after"):
                yield from _braces((*where, word), act.get(word))
    yield from _braces((*at, "poll", "times"), mapping(state.get("poll")).get("times"))
    yield from _braces((*at, "fail", "error"), mapping(state.get("fail")).get("error"))
    for kind, word in (("wait", "signal"), ("wait", "schema"), ("approval", "options"), ("approval", "schema")):
        yield from _braces((*at, kind, word), mapping(state.get(kind)).get(word))
    yield from _braces((*at, "plan", "file"), mapping(state.get("plan")).get("file"))
    for holder in ("parallel", "map"):
        for word in ("concurrency", "failures", "enough", "stop"):
            yield from _braces((*at, holder, word), mapping(state.get(holder)).get(word))
    for list_, words in (("catch", ("on", "next")), ("choice", ("next",))):
        for n, line in enumerate(items(state.get(list_))):
            for word in words:
                yield from _braces((*at, list_, n, word), mapping(line).get(word))


def _braces(path: Where, value: Json) -> Iterator[Found]:
    if isinstance(value, dict):
        for key, v in value.items():
            yield from _braces((*path, key), v)
    elif isinstance(value, list):
        for n, v in enumerate(value):
            yield from _braces((*path, n), v)
    elif isinstance(value, str) and "${{" in value:
        yield Found(path, "no expression may stand here: this is known before a run begins", value.index("${{"))


def is_fixed(value: Json) -> bool:
    """Whether a value is known before a run begins: nothing in it has to be worked out."""
    return not any(_braces((), value))


# --- schemas ---


def schemas(data: dict[str, Json]) -> Iterator[Found]:
    """Schemas that are none, and values that do not fit theirs."""
    for name, what in mapping(data.get("input")).items():
        short, default, required = input_of(what)
        if problem := schema.placed_fault(short):
            yield Found(("input", name, *problem[0]), f"input `{name}`: {problem[1]}")
        elif not required and (unfit := schema.validate(short, default)):
            yield Found(("input", name, "default"), f"the default of `{name}` does not fit it: {unfit}")
    for at, _, state in all_states(data):
        for word in ("output", "wait", "approval"):
            given = mapping(state.get(word))
            if "schema" in given and (problem := schema.placed_fault(input_of(given["schema"])[0])):
                yield Found((*at, word, "schema", *problem[0]), problem[1])
    if data.get("vars_schema") is not None:
        yield from _of_vars(data["vars_schema"], mapping(data.get("vars")))


def _of_vars(given: Json, first: dict[str, Json]) -> Iterator[Found]:
    """The schema of all vars, and first values that are known before a run begins and do not fit it."""
    if not isinstance(given, dict):
        yield Found(("vars_schema",), f"a schema of all vars is an object, not {shown(given)}")
        return
    if problem := schema.placed_fault(given):
        yield Found(("vars_schema", *problem[0]), problem[1])
        return
    for name in mapping(given.get("properties")):
        if name not in first:
            yield Found(("vars_schema", "properties", name), f"`{name}` is none of the vars{nearest(name, first)}", key=True)
    if is_fixed(first) and (unfit := schema.validate(given, first)):
        yield Found(("vars_schema",), f"the first values of vars do not fit it: {unfit}", key=True)
