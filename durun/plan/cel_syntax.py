"""A reader of CEL's grammar: which paths an expression names, and over what its macros walk.

It does not evaluate and knows no types: the library does, and has the last word on what is an expression. It is here because
an expression is given only the paths it names, and because the range of every macro has to be guarded (an object has no
order). Where the two could read a source differently, this one refuses it. Nothing here needs the library.
"""

from __future__ import annotations

import re

from durun.values import NamedTuple

NAMES = ("input", "vars", "output", "error", "states", "item", "index", "visit", "run", "pins", "key", "undo_key", "secrets")
LONGEST = 16 * 1024  # characters of one expression
DEEPEST = 40  # brackets within brackets; the library ends at 32

SHORT_WALKS = {"map", "filter"}  # the library is quadratic there
WALKS = {*SHORT_WALKS, "all", "exists", "exists_one"}
BINDS = {*WALKS, "optMap", "optFlatMap"}
# known from elsewhere; the library has none of them
NOT_HERE = {"transformList", "transformMap", "transformMapEntry", "existsOne", "sortBy", "reduce", "bind", "fold"}
LITERALS = {"true", "false", "null"}
TYPES = {"bool", "bytes", "double", "int", "list", "map", "null_type", "string", "type", "uint"}
FAMILIES = {"optional", "math", "strings"}  # what stands before the dot in math.greatest(…)
# CEL keeps these words for later: they name nothing, but may be fields
KEPT = {"as", "break", "const", "continue", "else", "for", "function", "if", "import", "let", "loop", "namespace"}
KEPT |= {"package", "return", "var", "void", "while"}
OPERATORS = ("||", "&&", "==", "!=", "<=", ">=", "<", ">", "in", "+", "-", "*", "/", "%")
ARITHMETIC = {"+", "-", "*", "/"}

# compiled when something is read: what drives a plan of nothing but paths reads nothing
TOKEN = r"""(?xs)(?P<space>[ \t\r\n\f]+|//[^\n]*)
    |(?P<string>[bB]?[rR](?:\"\"\".*?\"\"\"|'''.*?'''|"[^"\r\n]*"|'[^'\r\n]*')
        |[bB]?(?:\"\"\"(?:[^\\]|\\.)*?\"\"\"|'''(?:[^\\]|\\.)*?'''|"(?:[^"\\\r\n]|\\.)*"|'(?:[^'\\\r\n]|\\.)*'))
    |(?P<number>0x[0-9a-fA-F]+[uU]?|(?:[0-9]+\.[0-9]+|\.[0-9]+)(?:[eE][-+]?[0-9]+)?|[0-9]+[eE][-+]?[0-9]+|[0-9]+[uU]?)
    |(?P<name>[A-Za-z_][A-Za-z0-9_]*)
    |(?P<field>`[A-Za-z0-9_.\-/ ]+`)
    |(?P<sign>&&|\|\||[=!<>]=|[-+*/%<>!?:.,()\[\]{}])"""
PLAIN_STRING = r"\"([^\"\\\r\n]*)\"|'([^'\\\r\n]*)'"
NUL = r"(?<!\\)(?:\\\\)*\\(?:[xX]00|000|u0000|U00000000)"
DOUBLE = r"[0-9]*\.[0-9]|[0-9]+[eE]"


class SyntaxFault(Exception):
    """An expression or a `${{` that cannot be read; `offset` counts characters from its beginning."""

    def __init__(self, message: str, offset: int) -> None:
        super().__init__(message)
        self.message, self.offset = message, offset


class Token(NamedTuple):
    kind: str
    text: str
    start: int
    end: int


class Path(NamedTuple):
    """A name and the fields after it, as far as they are fixed: `states.one.output` or `input["a b"]`.

    The first `must` of the names have to be there; those after them are asked for with has() or `.?`.
    """

    names: tuple[str, ...]
    offset: int
    must: int

    @property
    def optional(self) -> bool:
        return self.must < len(self.names)


class Walk(NamedTuple):
    """What is to be guarded, source[start:end]: the range of a macro, or what is put into a list or object."""

    start: int
    end: int
    guard: str  # short, long: a list, of so many items or any number; plain: no optional; opened: none in the optional of `{?k: …}`


class Operand(NamedTuple):
    """What stands between two operators: the place of its path in `paths`, if it is one with all its fields fixed."""

    path: int | None = None
    double: bool = False
    plain: bool = False  # no optional for certain


OTHER = Operand()


def tokens(source: str) -> list[Token]:
    """All tokens but spaces and comments. Raises SyntaxFault."""
    found, at = [], 0
    while at < len(source):
        match = re.compile(TOKEN).match(source, at)
        if match is None:
            raise SyntaxFault(_no_token(source[at]), at)
        if match.lastgroup == "string" and re.search(NUL, match.group()) and "r" not in match.group()[:2].lower():
            raise SyntaxFault("text with a NUL cannot be used", at)
        if match.lastgroup != "space":
            found.append(Token(match.lastgroup or "", match.group(), at, match.end()))
        at = match.end()
    return found


def _no_token(sign: str) -> str:
    if sign in "\"'":
        return "a string does not end"
    if sign == "=":
        return "`=` is no operator; `==` compares"
    if sign in "&|":
        return f"`{sign}` is no operator; write `{sign}{sign}`"
    return f"{sign!r} is no part of an expression" if sign.isprintable() else "a control character is no part of an expression"


class Read:
    """What one expression names. Raises SyntaxFault where it cannot be read.

    paths    every path, in the order of the source, without the variables of macros
    walks    the range of every macro; in a source with optionals also what is put into lists and objects: the library may end
             the process when one that holds an optional leaves it
    bare     the fields of an expression that is nothing but a path; else None
    doubles  the paths that meet a double in arithmetic, as in `input.price * 1.2`
    walked   the paths that a macro walks over, as in `input.hosts.map(h, …)`
    """

    def __init__(self, source: str) -> None:
        if len(source) > LONGEST:
            raise SyntaxFault(f"an expression has at most {LONGEST} characters", 0)
        self.paths: list[Path] = []
        self.walks: list[Walk] = []
        self.doubles: list[Path] = []
        self.walked: list[Path] = []
        self.bare: tuple[str | int, ...] | None = None
        self._tokens = tokens(source)
        self._end = len(source)
        self._at = 0
        self._depth = 0
        self._bound: list[str] = []
        self._optionals = False
        if not self._tokens:
            raise SyntaxFault("the expression is empty", 0)
        self._expression()
        if self._at < len(self._tokens):
            raise self._unexpected(self._tokens[self._at])
        self.bare = self._as_bare()
        self.paths.sort(key=lambda p: p.offset)
        if not self._optionals:
            self.walks = [w for w in self.walks if w.guard in ("short", "long")]

    # tokens

    def _peek(self, text: str) -> bool:
        return self._at < len(self._tokens) and self._tokens[self._at].text == text

    def _take(self, *texts: str) -> str:
        if self._at < len(self._tokens) and self._tokens[self._at].text in texts:
            self._at += 1
            return self._tokens[self._at - 1].text
        return ""

    def _next(self) -> Token:
        if self._at >= len(self._tokens):
            raise SyntaxFault("the expression ends too early", self._end)
        self._at += 1
        return self._tokens[self._at - 1]

    def _take_question(self) -> bool:
        taken = bool(self._take("?"))
        self._optionals = self._optionals or taken
        return taken

    def _want(self, text: str) -> None:
        if not self._take(text):
            found = self._tokens[self._at] if self._at < len(self._tokens) else None
            where = found.start if found else self._end
            raise SyntaxFault(f"`{text}` is expected here" + (f", not `{found.text}`" if found else ""), where)

    def _unexpected(self, token: Token) -> SyntaxFault:
        return SyntaxFault(f"`{token.text}` is not expected here", token.start)

    # grammar

    def _expression(self) -> Operand:
        self._depth += 1
        if self._depth > DEEPEST:
            at = self._tokens[self._at].start if self._at < len(self._tokens) else self._end
            raise SyntaxFault(f"brackets lie more than {DEEPEST} deep", at)
        only = self._chain()
        while self._take("?"):
            only = OTHER
            self._chain()
            self._want(":")
            self._chain()
        self._depth -= 1
        return only

    def _chain(self) -> Operand:
        """Operands with operators between; precedence does not matter for what is read here."""
        before, operator, only = OTHER, "", True
        while True:
            while self._take("-", "!"):
                only = False
            operand = self._member()
            if operator in ARITHMETIC:
                self._meet(before, operand)
            before, operator = operand, self._take(*OPERATORS)
            if not operator:
                return operand if only else OTHER
            only = False

    def _meet(self, left: Operand, right: Operand) -> None:
        for one, other in ((left, right), (right, left)):
            if one.double and other.path is not None:
                self.doubles.append(self.paths[other.path])

    def _member(self) -> Operand:
        first = self._at
        start = self._tokens[first].start if first < len(self._tokens) else self._end
        names, operand = self._primary()
        must: int | None = None
        fixed, listed = names is not None, False
        while self._peek(".") or self._peek("["):
            dot = self._next().text == "."
            asked = self._take_question()
            if asked and must is None:
                must = len(names or ())
            method = self._tokens[self._at].text if dot and self._at < len(self._tokens) else ""
            field = self._selected(start, listed) if dot else self._key()
            listed = field is None and method in SHORT_WALKS
            if field is None and method in WALKS and fixed:
                self.walked.append(Path(tuple(names or ()), start, len(names or ())))
            fixed = fixed and field is not None
            if fixed and names is not None and field is not None:
                names.append(field)
            operand = OTHER
        if names is None:
            return operand
        self.paths.append(Path(tuple(names), start, len(names) if must is None else must))
        return Operand(len(self.paths) - 1, plain=must is None) if fixed else OTHER

    def _selected(self, start: int, listed: bool) -> str | None:
        """The field after a dot; None where it is a method. `listed`: what stands before the dot is a list for certain."""
        field = self._next()
        if field.kind == "field":
            return field.text[1:-1]
        if field.kind != "name":
            raise SyntaxFault(f"a name is expected after the dot, not `{field.text}`", field.start)
        if self._peek("("):
            self._method(field, start, listed)
            return None
        if field.text in LITERALS or field.text == "in":
            raise SyntaxFault(f'`{field.text}` cannot stand after a dot: write ["{field.text}"]', field.start)
        return field.text

    def _key(self) -> str | None:
        """The text of `"name"]`, taken; None where something else stands between the brackets."""
        if self._at + 1 < len(self._tokens) and self._tokens[self._at + 1].text == "]":
            plain = re.fullmatch(PLAIN_STRING, self._tokens[self._at].text)
            if plain:
                self._at += 2
                return plain.group(1) if plain.group(1) is not None else plain.group(2)
        self._expression()
        self._want("]")
        return None

    def _method(self, field: Token, start: int, listed: bool) -> None:
        self._optionals = self._optionals or field.text in ("first", "last")
        if field.text in NOT_HERE:
            raise SyntaxFault(f"there is no `{field.text}`: lists take map, filter, all, exists and exists_one", field.start)
        if field.text not in BINDS:
            self._arguments()
            return
        if field.text in WALKS and not listed:
            self.walks.append(Walk(start, self._tokens[self._at - 2].start, "short" if field.text in SHORT_WALKS else "long"))
        self._want("(")
        variable = self._next()
        if variable.kind != "name" or variable.text in LITERALS or variable.text in KEPT or variable.text == "in":
            raise SyntaxFault(f"{field.text} wants a name here, as in `list.{field.text}(x, …)`", variable.start)
        self._own(variable)
        self._bound.append(variable.text)
        first, last = self._at, OTHER
        while self._take(","):
            first, last = self._at, self._expression()
        if field.text == "map" and not last.plain and first < self._at:
            self._put_in(first, "plain")
        self._want(")")
        self._bound.pop()

    def _arguments(self) -> Operand:
        self._want("(")
        last = OTHER
        if self._take(")"):
            return last
        last = self._expression()
        while self._take(","):
            last = self._expression()
        self._want(")")
        return last

    def _primary(self) -> tuple[list[str] | None, Operand]:
        token = self._next()
        match token.kind, token.text:
            case "number", _:
                return None, Operand(double=bool(re.match(DOUBLE, token.text)), plain=True)
            case "string", _:
                return None, Operand(plain=True)
            case "name", _:
                return self._name(token), OTHER
            case _, "(":
                self._expression()
                self._want(")")
            case _, "[":
                self._items("]", pairs=False)
                return None, Operand(plain=True)
            case _, "{":
                self._items("}", pairs=True)
                return None, Operand(plain=True)
            case _:
                raise self._unexpected(token)
        return None, OTHER

    def _name(self, token: Token) -> list[str] | None:
        self._own(token)
        if token.text == "in":
            raise self._unexpected(token)
        if self._peek("("):
            asked = self._arguments()
            if token.text == "has" and asked.path is not None:
                path = self.paths[asked.path]
                self.paths[asked.path] = path._replace(must=min(path.must, len(path.names) - 1))
            return None
        if self._peek("{"):
            raise SyntaxFault(f'`{token.text}{{`: an object is written with quoted keys, as {{"a": 1}}', token.start)
        if token.text in LITERALS or token.text in TYPES or token.text in self._bound:
            return None
        if token.text in FAMILIES and self._peek("."):
            self._optionals = self._optionals or token.text == "optional"
            return None
        return [token.text]

    def _own(self, token: Token) -> None:
        if token.text.startswith("durun_"):
            raise SyntaxFault(f"`{token.text}`: names that begin with durun_ are not for plans", token.start)

    def _items(self, close: str, *, pairs: bool) -> None:
        while not self._take(close):
            asked = self._take_question()
            if pairs:
                self._expression()
                self._want(":")
            self._value(asked)
            if not self._take(","):
                self._want(close)
                return

    def _value(self, asked: bool) -> None:
        """What is put into a list or object; `asked`: after a `?`, where it is an optional that CEL opens."""
        first = self._at
        if not self._expression().plain:
            self._put_in(first, "opened" if asked else "plain")

    def _put_in(self, first: int, guard: str) -> None:
        self.walks.append(Walk(self._tokens[first].start, self._tokens[self._at - 1].end, guard))

    def _as_bare(self) -> tuple[str | int, ...] | None:
        """The whole source as names, fields and indexes, if it has nothing else."""
        first = self._tokens[0]
        if first.kind != "name" or not self.paths or first.text in KEPT:
            return None
        found: list[str | int] = [first.text]
        at = 1
        while at < len(self._tokens):
            sign, token = self._tokens[at].text, self._tokens[at + 1] if at + 1 < len(self._tokens) else None
            if sign == "." and token is not None and token.kind in ("name", "field"):
                found.append(token.text.strip("`"))
                at += 2
            elif sign == "[" and token is not None and at + 2 < len(self._tokens) and self._tokens[at + 2].text == "]":
                plain = re.fullmatch(PLAIN_STRING, token.text)
                if plain:
                    found.append(plain.group(1) if plain.group(1) is not None else plain.group(2))
                elif re.fullmatch("[0-9]{1,9}", token.text):
                    found.append(int(token.text))
                else:
                    return None
                at += 3
            else:
                return None
        return tuple(found)


# --- the guards ---

# Everything here is CEL, so that a list is not carried into Python and back: that would cost time and change types.
# Each guard is a function that is told of what stands there, and gives true or raises.
V = "durun_v"
LENGTH = f"(type({V}) == list ? size({V}) : type({V}) == map ? -1 : -2) ? {V} : []"
PLAIN = f"({V}, durun_plain(type({V}) == type(optional.none())) ? {V} : {V})"
# kind -> what opens it and what closes it
GUARDS = {
    "short": ("optional.of(", f").optMap({V}, durun_short{LENGTH}).value()"),
    "long": ("optional.of(", f").optMap({V}, durun_long{LENGTH}).value()"),
    "plain": ("optional.of(", f").optMap{PLAIN}.value()"),
    "opened": ("(", f").optMap{PLAIN}"),
}


class Guarded(NamedTuple):
    """A source with its guards. `marks`: (place in the source, length put in there)."""

    text: str
    marks: list[tuple[int, int]]

    def within(self, offset: int) -> bool:
        """Whether what stands at `offset` in the text is part of a guard."""
        added = 0
        for where, length in self.marks:
            if where + added <= offset < where + added + length:
                return True
            added += length
        return False

    def place(self, offset: int) -> int:
        """The place in the source of what stands at `offset` in the text."""
        added = 0
        for where, length in self.marks:
            if offset < where + added:
                break
            if offset < where + added + length:
                return where
            added += length
        return offset - added


def guarded(source: str, walks: list[Walk]) -> Guarded:
    """The source with a guard around everything that wants one."""
    # at one place, what closes comes before what opens; of two that close, the inner one first
    puts = [(w.end, 0, -w.start, GUARDS[w.guard][1]) for w in walks]
    puts += [(w.start, 1, -w.end, GUARDS[w.guard][0]) for w in walks]
    out, marks, at = [], [], 0
    for where, _, _, text in sorted(puts):
        out += [source[at:where], text]
        marks.append((where, len(text)))
        at = where
    return Guarded("".join([*out, source[at:]]), marks)
