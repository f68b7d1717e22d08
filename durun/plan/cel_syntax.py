"""A reader of CEL's grammar: which paths an expression names, and over what its macros walk.

It does not evaluate and knows no types: the library does. It is here because an expression is given only the paths it names,
and because the range of every macro has to be guarded (an object has no order).
"""

from __future__ import annotations

import re
from typing import NamedTuple

LONGEST = 16 * 1024  # characters of one expression
DEEPEST = 60  # brackets within brackets

WALKS = {"map": "durun_list", "filter": "durun_list", "all": "durun_walk", "exists": "durun_walk", "exists_one": "durun_walk"}
BINDS = {*WALKS, "optMap", "optFlatMap"}
RESERVED = {"true", "false", "null", "in"}

TOKEN = re.compile(
    r"""(?P<space>\s+|//[^\n]*)
    |(?P<string>[rRbB]{0,2}(?:\"\"\"(?:[^\\]|\\.)*?\"\"\"|'''(?:[^\\]|\\.)*?'''|"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*'))
    |(?P<number>0x[0-9a-fA-F]+u?|\d+\.\d+(?:[eE][-+]?\d+)?|\d+[eE][-+]?\d+|\.\d+(?:[eE][-+]?\d+)?|\d+[uU]?)
    |(?P<name>[A-Za-z_][A-Za-z0-9_]*)
    |(?P<sign>&&|\|\||[=!<>]=|[-+*/%<>!?:.,()\[\]{}])""",
    re.X | re.S,
)


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
    """A name and the fields after it, as far as they are fixed: `states.one.output` or `input["a b"]`."""

    names: tuple[str, ...]
    offset: int
    optional: bool  # asked for with has() or .?


class Walk(NamedTuple):
    """The range of a macro: source[start:end]; `guard` is the function that must stand around it."""

    start: int
    end: int
    guard: str


def tokens(source: str) -> list[Token]:
    """All tokens but spaces and comments. Raises SyntaxFault."""
    found, at = [], 0
    while at < len(source):
        match = TOKEN.match(source, at)
        if match is None:
            what = "a string that does not end" if source[at] in "\"'" else f"{source[at]!r} is no part of an expression"
            raise SyntaxFault(what, at)
        if match.lastgroup != "space":
            found.append(Token(match.lastgroup or "", match.group(), at, match.end()))
        at = match.end()
    return found


class Read:
    """What one expression names. Raises SyntaxFault where it cannot be read."""

    def __init__(self, source: str) -> None:
        if len(source) > LONGEST:
            raise SyntaxFault(f"an expression has at most {LONGEST} characters", 0)
        self.paths: list[Path] = []
        self.walks: list[Walk] = []
        self._tokens = tokens(source)
        self._end = len(source)
        self._at = 0
        self._depth = 0
        self._bound: list[str] = []
        self._asked = 0
        if not self._tokens:
            raise SyntaxFault("the expression is empty", 0)
        self._expression()
        if self._at < len(self._tokens):
            raise SyntaxFault(f"`{self._tokens[self._at].text}` is not expected here", self._tokens[self._at].start)

    # tokens

    def _peek(self, text: str) -> bool:
        return self._at < len(self._tokens) and self._tokens[self._at].text == text and self._tokens[self._at].kind != "string"

    def _take(self, *texts: str) -> bool:
        if any(self._peek(text) for text in texts):
            self._at += 1
            return True
        return False

    def _next(self) -> Token:
        if self._at >= len(self._tokens):
            raise SyntaxFault("the expression ends too early", self._end)
        self._at += 1
        return self._tokens[self._at - 1]

    def _want(self, text: str) -> None:
        if not self._take(text):
            found = self._tokens[self._at] if self._at < len(self._tokens) else None
            where = found.start if found else self._end
            raise SyntaxFault(f"`{text}` is expected here" + (f", not `{found.text}`" if found else ""), where)

    # grammar

    def _expression(self) -> None:
        self._depth += 1
        if self._depth > DEEPEST:
            raise SyntaxFault(f"brackets lie more than {DEEPEST} deep", self._tokens[min(self._at, len(self._tokens) - 1)].start)
        self._chain()
        if self._take("?"):
            self._chain()
            self._want(":")
            self._expression()
        self._depth -= 1

    def _chain(self) -> None:
        """Operands with operators between; precedence does not matter for what is read here."""
        while True:
            while self._take("-", "!"):
                pass
            self._member()
            if not self._take("||", "&&", "==", "!=", "<=", ">=", "<", ">", "in", "+", "-", "*", "/", "%"):
                return

    def _member(self) -> None:
        start = self._tokens[self._at].start if self._at < len(self._tokens) else self._end
        names = self._primary()
        optional = bool(self._asked)
        open_path = names is not None
        while True:
            if self._take("."):
                optional = self._take("?") or optional
                field = self._next()
                if field.kind != "name":
                    raise SyntaxFault(f"a name is expected after the dot, not `{field.text}`", field.start)
                if self._peek("("):
                    self._method(field, start)
                    open_path = False
                elif open_path and names is not None:
                    names.append(field.text)
            elif self._take("["):
                optional = self._take("?") or optional
                literal = self._literal_key()
                if literal is not None and open_path and names is not None:
                    names.append(literal)
                else:
                    open_path = False
                    if literal is None:
                        self._expression()
                        self._want("]")
            else:
                break
        if names is not None:
            self.paths.append(Path(tuple(names), start, optional))

    def _literal_key(self) -> str | None:
        """The text of `"name"]`, taken; None where something else stands between the brackets."""
        if self._at + 1 < len(self._tokens) and self._tokens[self._at + 1].text == "]":
            token = self._tokens[self._at]
            plain = re.fullmatch(r"\"([^\"\\]*)\"|'([^'\\]*)'", token.text)
            if token.kind == "string" and plain:
                self._at += 2
                return plain.group(1) if plain.group(1) is not None else plain.group(2)
        return None

    def _method(self, field: Token, start: int) -> None:
        if field.text not in BINDS:
            return self._arguments()
        end = self._tokens[self._at - 2].start if self._tokens[self._at - 2].text == "." else field.start
        if field.text in WALKS:
            self.walks.append(Walk(start, end, WALKS[field.text]))
        self._want("(")
        variable = self._next()
        if variable.kind != "name" or variable.text in RESERVED:
            raise SyntaxFault(f"{field.text} wants a name here, as in `list.{field.text}(x, …)`", variable.start)
        self._bound.append(variable.text)
        while self._take(","):
            self._expression()
        self._want(")")
        self._bound.pop()

    def _arguments(self) -> None:
        self._want("(")
        if self._take(")"):
            return
        self._expression()
        while self._take(","):
            self._expression()
        self._want(")")

    def _primary(self) -> list[str] | None:
        token = self._next()
        if token.kind in ("string", "number"):
            return None
        if token.kind == "name":
            return self._name(token)
        match token.text:
            case "(":
                self._expression()
                self._want(")")
            case "[":
                self._items("]", pairs=False)
            case "{":
                self._items("}", pairs=True)
            case _:
                raise SyntaxFault(f"`{token.text}` is not expected here", token.start)
        return None

    def _name(self, token: Token) -> list[str] | None:
        if token.text.startswith("durun_"):
            raise SyntaxFault(f"`{token.text}`: names that begin with durun_ are not for plans", token.start)
        if self._peek("("):
            self._asked += token.text == "has"
            self._arguments()
            self._asked -= token.text == "has"
            return None
        if self._peek("{"):
            raise SyntaxFault(f"`{token.text}{{`: an object is written with quoted keys, as {{\"a\": 1}}", token.start)
        if token.text in ("true", "false", "null") or token.text in self._bound:
            return None
        if token.text in ("optional", "math") and self._peek("."):
            return None
        if token.text == "in":
            raise SyntaxFault("`in` is not expected here", token.start)
        return [token.text]

    def _items(self, close: str, *, pairs: bool) -> None:
        while not self._take(close):
            self._take("?")
            self._expression()
            if pairs:
                self._want(":")
                self._expression()
            if not self._take(","):
                self._want(close)
                return


def guarded(source: str, walks: list[Walk]) -> str:
    """The source with its guard around the range of every macro."""
    marks = sorted([(w.end, 0, ")") for w in walks] + [(w.start, 1, f"{w.guard}(") for w in sorted(walks, key=lambda w: -w.end)])
    out, at = [], 0
    for where, _, text in marks:
        out += [source[at:where], text]
        at = where
    return "".join([*out, source[at:]])
