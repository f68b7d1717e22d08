"""Expressions: what they give, and everything that is fenced off around the CEL library."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from durun.errors import ExpressionError
from durun.plan.cel_syntax import Read
from durun.plan.expressions import Evaluator, Hole, SyntaxFault, inspect, split

LARGE = 10**30
NAMES = {
    "input": {
        "object": {"b": 1, "a": 2},
        "list": [1, 2, 3],
        "objects": [{"n": 1}, {"n": 2}],
        "none": None,
        "text": 'it\'s ${{ vars.i }}\n"π😀"',
        "price": 900,
        "double": 900.0,
        "long": list(range(3001)),
        "large": LARGE,
        "ids": {"one": LARGE, "same": LARGE, "other": -LARGE, "small": 1},
    },
    "vars": {"i": 1, "color": "red", "flag": True},
    "states": {"one": {"output": {"v": 1}, "visits": 1}, "two": {"visits": 1}, "three": {"visits": 0}},
    "error": None,
    "run": {"id": "r1"},
    "pins": {"env": {"URL": "http://x"}},
    "visit": 1,
}


@pytest.fixture(scope="module")
def evaluate() -> Evaluator:
    return Evaluator()


def refusal(source: str, names: dict = NAMES) -> str:
    with pytest.raises(ExpressionError) as caught:
        Evaluator().expression(source, names)
    assert "\n" not in str(caught.value)
    return str(caught.value)


# --- strings with holes ---


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("", [""]),
        ("plain }} text", ["plain }} text"]),
        ("a${{ x }}b", ["a", Hole(" x ", 4), "b"]),
        ("${{a}}${{b}}", [Hole("a", 3), Hole("b", 9)]),
        ("$${{ x }}", ["${{ x }}"]),
        ("$$${{ x }}", ["$${{ x }}"]),
        ("$${{ ${{ x }}", ["${{ ", Hole(" x ", 8)]),
        ("${{a}}$${{b}}", [Hole("a", 3), "${{b}}"]),
        ('${{ {"a": {"b": "}}"}} }}', [Hole(' {"a": {"b": "}}"}} ', 3)]),
        ("${{{'a':1}}}", [Hole("{'a':1}", 3)]),
        ("${{ '}}' }}", [Hole(" '}}' ", 3)]),
        ("${{ '\\'}}' }}", [Hole(" '\\'}}' ", 3)]),
        ("${{ r'\\' }}", [Hole(" r'\\' ", 3)]),
        ('${{ """ " }} """ }}', [Hole(' """ " }} """ ', 3)]),
        ("${{ 1 // it's }}", [Hole(" 1 // it's ", 3)]),
        ("${{ [1 // ]}}'\n] }}", [Hole(" [1 // ]}}'\n] ", 3)]),
    ],
)
def test_a_string_is_parted_at_its_holes(text: str, parts: list) -> None:
    assert split(text) == parts


@pytest.mark.parametrize(
    ("text", "offset"),
    [("a ${{ x", 2), ("${{ 'x }}", 4), ("${{ [x }}", 4), ("${{ {x", 0), ("${{ ) }}", 4), ("${{ a } }}", 6), ("${{", 0)],
)
def test_a_hole_that_does_not_end_is_a_fault_at_its_place(text: str, offset: int) -> None:
    with pytest.raises(SyntaxFault) as caught:
        split(text)
    assert caught.value.offset == offset


@given(st.text(alphabet="${}'\"\\r/[]() \na`", max_size=40))
def test_a_string_is_parted_or_refused_and_nothing_of_it_is_lost(text: str) -> None:
    try:
        parts = split(text)
    except SyntaxFault as e:
        assert 0 <= e.offset <= len(text)
        return
    for part in parts:
        if isinstance(part, Hole):
            assert text[part.offset :].startswith(part.source + "}}") and text[: part.offset].endswith("${{")
    back = "".join(f"${{{{{p.source}}}}}" if isinstance(p, Hole) else p for p in parts)
    assert back == text.replace("$${{", "${{") or "$${{" in text


# --- what is read ---


@pytest.mark.parametrize(
    ("source", "paths"),
    [
        ("vars.i + input.price", [("vars", "i"), ("input", "price")]),
        ("input . object // a comment\n.a", [("input", "object", "a")]),
        ('input["a b"].c', [("input", "a b", "c")]),
        ("input.`a-b`.c", [("input", "a-b", "c")]),
        ("input.list[vars.i].n", [("input", "list"), ("vars", "i")]),
        ("input.list[0].n", [("input", "list")]),
        ("input.list.map(x, x.n + vars.i)", [("input", "list"), ("vars", "i")]),
        ("input.list.map(vars, vars.i)", [("input", "list")]),
        ("[vars].map(vars, vars)", [("vars",)]),
        ("input.text.startsWith('vars.i')", [("input", "text")]),
        ("r'\\\\'+vars.i+'\\''", [("vars", "i")]),
        ("type(vars.i) == int && math.abs(visit) > 1", [("vars", "i"), ("visit",)]),
        ("optional.of(vars.i).optMap(run, run)", [("vars", "i")]),
        ("{'vars': input.price}", [("input", "price")]),
    ],
)
def test_the_paths_of_an_expression_are_what_it_names(source: str, paths: list) -> None:
    reading = inspect(source)
    assert reading.faults == []
    assert [p.names for p in reading.paths] == paths
    assert all(source[p.offset :].startswith(p.names[0]) for p in reading.paths)


def test_what_is_asked_for_with_has_or_a_question_mark_need_not_be_there() -> None:
    must = {
        source: inspect(source).paths[0].must for source in ("has(vars.a.b)", "vars.?a.b.orValue(1)", "vars.a.b", "!has(vars.a)")
    }
    assert must == {"has(vars.a.b)": 2, "vars.?a.b.orValue(1)": 1, "vars.a.b": 3, "!has(vars.a)": 1}
    assert inspect("has(vars.a.b)").paths[0].optional and not inspect("vars.a.b").paths[0].optional


def test_a_path_that_meets_a_double_is_told() -> None:
    assert [p.names for p in inspect("vars.i * 1.2 > input.price").doubles] == [("vars", "i")]
    assert [p.names for p in inspect("2.0 - vars.i").doubles] == [("vars", "i")]
    assert inspect("double(vars.i) * 1.2 > 1.0 || vars.i == 1.0").doubles == []


@pytest.mark.parametrize(
    ("source", "offset", "words"),
    [
        ("", 0, "empty"),
        ("1 +", 3, "ends too early"),
        ("1 2", 2, "`2` is not expected"),
        ("vars.i = 1", 7, "`==`"),
        ("vars.i & 1", 7, "`&&`"),
        ("'abc", 0, "does not end"),
        ("inputs.x", 0, "did you mean `input`?"),
        ("vars.i + 'a' - 1 * foo(1)", 19, "`foo`"),
        ("'a' - 'b'", 4, "a string and a string"),
        ("1 + 1.0", 2, "double(x)"),
        ("vars.l.map(x, x).filter(x, 'é' == 'é' && 1 + 'a' == 2)", 43, "an integer and a string"),
        ("{'a': 1}.map(k, k)", 8, "no order"),
        ("'abc'.all(k, true)", 5, "only a list"),
        ("vars.\nl.map(x, x) +\n  ('a' - 'b')", 27, "a string and a string"),
        ("vars.l.sort()", 7, "sort(…)"),
        ("vars.m.transformMap(k, v, v)", 7, "transformMap"),
        ("durun_short(1)", 0, "durun_"),
        ("vars.in", 5, '["in"]'),
        ("9223372036854775808", 0, "64 bits"),
        ("'\\x00'", 0, "NUL"),
        ("google.protobuf.Struct{}", 22, "not expected"),
        ("[" * 500, 40, "deep"),
        ("1" + "+1" * 100, 0, "two steps"),
        ("1" * 20000, 0, "16384"),
        ("\0", 0, "control character"),
    ],
)
def test_a_fault_is_told_in_our_words_at_its_place(source: str, offset: int, words: str) -> None:
    message, at = inspect(source).faults[0]
    assert words in message
    assert at == offset
    assert "<input>" not in message and "ERROR" not in message and "INVALID" not in message


def test_one_mistake_is_one_fault() -> None:
    assert len(inspect("{'a': 1}.map(k, k)").faults) == 1
    assert len(inspect("inputs.x + varz.y").faults) == 2


# --- what an expression gives ---


@pytest.mark.parametrize(
    ("source", "value"),
    [
        ("input.price", 900),
        ("input.none", None),
        ("input.list[2]", 3),
        ('input["object"]["a"]', 2),
        ("vars.i + 1", 2),
        ("vars.i == 1.0 && input.price == input.double", True),
        ("input.price < 900.5", True),
        ("double(input.price) * 0.5", 450.0),
        ("7 / 2", 3),
        ("has(input.absent)", False),
        ("has(input.none)", True),
        ("input.?absent.orValue(3)", 3),
        ("input.?none.orValue(3)", None),
        ("input.?absent.deep.orValue(3)", 3),
        ("input.objects.map(x, x.n)", [1, 2]),
        ("input.list.filter(x, x > 1).map(x, x * 2).exists(x, x == 6)", True),
        ("input.list.map(x, x > 1, x)", [2, 3]),
        ("input.list.map(x, input.list.map(y, x * y))[2]", [3, 6, 9]),
        ("[1]" + ".map(x, x + 1)" * 14, [15]),
        ("input.?list.optMap(v, v.map(x, x + 1)).orValue([])", [2, 3, 4]),
        ("[1u, 2u].map(x, x + 1u)", [2, 3]),
        ("[?input.?absent, ?input.?price, input.?absent.orValue(1)]", [900, 1]),
        ("{'a': input.?list.orValue([]), ?'b': input.?absent, ?'c': input.?price}", {"a": [1, 2, 3], "c": 900}),
        ("keys(input.object).map(k, input.object[k])", [2, 1]),
        ("sum(input.list) + sum([])", 6),
        ("sum([0.5, 1.5])", 2.0),
        ("sort([3, 1.5, 2])", [1.5, 2, 3]),
        ("sort(['b', 'a'])", ["a", "b"]),
        ("flatten([[1], [2, [3]], 4])", [1, 2, [3], 4]),
        ("json({'b': [1, 1.5, null, true], 'a': 'π\"'})", '{"a":"π\\"","b":[1,1.5,null,true]}'),
        ("json(input.ids.one)", str(LARGE)),
        ("math.greatest([1, 3, 2])", 3),
        ("'a,b'.split(',').join('-') + 'x'.upperAscii()", "a-bX"),
        ("type(input.list) == list && type(input.object) == map", True),
        ("'a\\\\x00' + r'\\x00' + '''\n'b' '''", "a\\x00\\x00\n'b' "),
        ("input.object == {'a': 2, 'b': 1}", True),
        ("input.absent == 1 || true", True),
        ("-9223372036854775808", -(2**63)),
        ("true", True),
    ],
)
def test_an_expression_gives_its_value(evaluate: Evaluator, source: str, value: object) -> None:
    assert inspect(source).faults == []
    found = evaluate.expression(source, NAMES)
    assert found == value and type(found) is type(value)


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("vars.colour", "`vars.colour` is not there; did you mean `vars.color`?"),
        ("vars.colour + 'x'", "`vars.colour + 'x'`: `vars.colour` is not there; did you mean `vars.color`?"),
        ("states.two.output", "the state has not ended"),
        ("states.three.output.v == 1", "the state was never visited"),
        ("error.name", "`error` is null, and has no `name`"),
        ("output + 1", "`output` is not there"),
        ("nonsense", "is no name here"),
        ("has(input.absent.x)", "`input.absent` is not there"),
        ("has(input.object.absent) ? 1 : input.other", "`input.other` is not there"),
        ("input.objects.map(x, x.m)", 'an object has no "m"'),
        ("input.list[3]", "has 3 items and none at 3"),
        ("input.list[vars.i + 5]", "the list has 3 items and none at 6"),
        ("input.list['a']", "is a list, and has no `a`"),
        ("input.none + 1", "null where a value is wanted, in `+`"),
        ("!input.none", "only true and false"),
        ("input.none ? 1 : 2", "must be true or false"),
        ("vars.i * 1.2", "integers and doubles do not mix in `*`: write double(x)"),
        ("sum([1, 1.5])", "write double(x)"),
        ("input.text + 1", "`+` does not take a string and an integer"),
        ("vars.i / 0", "division by zero"),
        ("9223372036854775807 + vars.i", "64 bits"),
        ("1.0 / 0.0", "NaN and infinity"),
        ("[0.0 / 0.0]", "NaN and infinity"),
        ("json(0.0 / 0.0)", "NaN and infinity"),
        ("int(input.text)", "cannot be read as an integer"),
        ("b'a'", "bytes"),
        ("[timestamp('2020-01-01T00:00:00Z')]", "timestamp"),
        ("duration('3s')", "duration"),
        ("type(1)", "a type"),
        ("{2.5: 2}", "keys of an object must be strings"),
        ("[?vars.i]", "wants an optional"),
        ("bool(input.text)", "a string cannot be read as a boolean"),
        ("input.list[input.?list]", "by an optional"),
        ("{1: 2}", "keys of an object must be strings"),
        ("18446744073709551615u", "64 bits"),
        ("input.?absent", ".orValue(…)"),
        ("[optional.of(1)]", ".orValue(…)"),
        ("input.?absent.value()", ".orValue(…)"),
        ("{'k': input.?absent}", ".orValue(…)"),
        ("[{'k': [1].first(), input.object.?q.orValue('b'): 1}]", ".orValue(…)"),
        ("[input.?list].map(o, {'k': o})", ".orValue(…)"),
        ("json({'k': true ? input.?list : input.?list})", ".orValue(…)"),
        ("flatten([b'a', input.?list])", ".orValue(…)"),
        ("input.list.map(x, input.?list)", ".orValue(…)"),
        ("input.list.map(x, true, x > 1 ? input.?list : input.?list)", ".orValue(…)"),
        ("[?optional.of(optional.of(1))]", ".orValue(…)"),
        ("{?'k': optional.of(optional.of(1))}", ".orValue(…)"),
        ("input.?none.?x.orValue(1)", "no object"),
        ("input.object.map(k, k)", "an object has no order"),
        ("input.object.filter(k, true)", "an object has no order"),
        ("input.object.all(k, true)", "an object has no order"),
        ("input.object.exists(k, true)", "an object has no order"),
        ("input.object.exists_one(k, true)", "an object has no order"),
        ("[input.object].map(o, o.map(k, k))", "an object has no order"),
        ("(true ? input.object : {}).map(k, k)", "an object has no order"),
        ("input.none.map(k, k)", "only a list can be walked over"),
        ("input.long.map(x, x)", "3001 items"),
        ("input.long.filter(x, true)", "3001 items"),
        ("input.long.all(x, input.list.all(y, true))", "too many items"),
        ("sort([1, 'a'])", "sort wants"),
        ("keys(input.list)", "`keys` does not take a list"),
        ("'[a'.matches('[a')", "regular expression"),
    ],
)
def test_what_gives_no_value_is_an_error_in_our_words(source: str, words: str) -> None:
    message = refusal(source)
    assert words in message
    assert source.split()[0] in message
    assert "INVALID_ARGUMENT" not in message and "durun_" not in message and "No matching" not in message


def test_a_long_list_may_be_asked_whether_all_are_so(evaluate: Evaluator) -> None:
    assert evaluate.expression("input.long.exists(x, x == 3000)", NAMES) is True


def test_a_condition_is_true_or_false_and_nothing_else(evaluate: Evaluator) -> None:
    assert evaluate.condition("vars.i < 2", NAMES) is True
    assert evaluate.condition("vars.flag", NAMES) is True
    for source in ("input.none", "vars.i", "'true'", "input.list"):
        with pytest.raises(ExpressionError, match="must be true or false"):
            evaluate.condition(source, NAMES)


def test_work_in_our_own_functions_has_an_end() -> None:
    names = {"input": {"l": list(range(3000)), "big": list(range(2000))}}
    assert "too many values" in refusal("input.l.map(x, sum(input.big))", names)
    assert Evaluator().expression("sum(input.big)", names) == 1999000


# --- what is handed over ---


def test_only_what_an_expression_names_is_handed_over(evaluate: Evaluator) -> None:
    deep: object = 1
    for _ in range(5000):
        deep = [deep]
    names = {"vars": {"i": 1, "deep": deep, "nul": "\0", "large": LARGE, "odd": {1, 2}, "nan": float("nan")}}
    assert evaluate.expression("vars.i + 1", names) == 2
    for name in ("deep", "nul", "odd", "nan"):
        assert "vars" in refusal(f"[vars.{name}]", names)


def test_data_is_not_changed(evaluate: Evaluator) -> None:
    before = json.dumps(NAMES)
    evaluate.expression("{'a': input.ids, 'b': input.object}", NAMES)
    assert json.dumps(NAMES) == before


@pytest.mark.parametrize("source", ["vars.t", "vars.t + ''", "size(vars.t) == 1", "[vars.l]", "size(vars.m)"])
@pytest.mark.parametrize("text", ["a\0b", "\ud800", "\udfff x"])
def test_text_that_the_library_would_cut_is_refused(source: str, text: str) -> None:
    names = {"vars": {"t": text, "l": [text], "m": {text: 1}}}
    assert "NUL" in refusal(source, names) or "surrogate" in refusal(source, names)


@pytest.mark.parametrize("kind", ["list", "object"])
def test_data_over_100_deep_is_refused_and_100_is_not(kind: str) -> None:
    def nest(depth: int) -> object:
        value: object = 1
        for _ in range(depth):
            value = [value] if kind == "list" else {"k": value}
        return value

    assert Evaluator().expression("size([vars.d])", {"vars": {"d": nest(90)}}) == 1
    assert "deep" in refusal("size([vars.d])", {"vars": {"d": nest(101)}})
    assert "deep" in refusal("size([vars.d])", {"vars": {"d": nest(100_000)}})
    assert "deep" in refusal("[[[vars.d]]]", {"vars": {"d": nest(98)}})


def test_a_large_integer_is_passed_on_and_is_an_error_where_it_is_read(evaluate: Evaluator) -> None:
    assert evaluate.expression("input.ids", NAMES) is NAMES["input"]["ids"]
    assert evaluate.expression("{'got': input.ids}", NAMES) == {"got": NAMES["input"]["ids"]}
    assert evaluate.expression("input.ids.small + 1", NAMES) == 2
    assert evaluate.expression("input.ids.one == input.ids.same && input.ids.one != input.ids.other", NAMES) is True
    for source in ("input.large", "input.ids.one + 1", "input.ids.one < input.ids.other", "string(input.ids.one)"):
        assert "64 bits" in refusal(source)
    for source in ("'%s'.format([input.ids])", "size(input.ids.one)"):
        assert "64 bits" in refusal(source)


def test_every_digit_of_an_integer_is_kept(evaluate: Evaluator) -> None:
    for n in (2**63 - 1, -(2**63), 2**53 + 1):
        assert evaluate.expression("[vars.n][0]", {"vars": {"n": n}}) == n
        assert evaluate.text("${{ vars.n }}", {"vars": {"n": n}}) == str(n)


def test_objects_come_out_with_their_keys_sorted(evaluate: Evaluator) -> None:
    assert json.dumps(evaluate.expression("[{'b': {'z': 1, 'a': input.object}, 'a': 1}]", NAMES)) == (
        '[{"a": 1, "b": {"a": {"a": 2, "b": 1}, "z": 1}}]'
    )


# --- templates ---


def test_a_string_that_is_one_expression_keeps_its_type(evaluate: Evaluator) -> None:
    tree = {"a": ["${{ input.list }}", "${{ vars.i }}", "x${{ vars.i }}"], "n": "${{ input.none }}", "k${{ x }}": 1.5, "b": None}
    assert evaluate.value(tree, NAMES) == {"a": [[1, 2, 3], 1, "x1"], "n": None, "k${{ x }}": 1.5, "b": None}


def test_numbers_and_booleans_go_into_text_as_json_writes_them(evaluate: Evaluator) -> None:
    assert evaluate.value("${{ vars.flag }} ${{ vars.i }} ${{ 1.0 }} ${{ 1e22 }} ${{ -0.1 }}", NAMES) == "true 1 1.0 1e+22 -0.1"
    assert evaluate.text("${{ input.price }}", NAMES) == "900"
    assert evaluate.text(1.5, NAMES) == "1.5"


def test_what_an_expression_gave_is_not_read_again(evaluate: Evaluator) -> None:
    text = NAMES["input"]["text"]
    assert evaluate.value("<${{ input.text }}>$${{ vars.i }}", NAMES) == f"<{text}>${{{{ vars.i }}}}"
    assert evaluate.argv(["${{ input.text }}", "-${{ [input.text][0] }}"], NAMES) == [text, f"-{text}"]


@pytest.mark.parametrize("name", ["none", "list", "object"])
def test_null_a_list_or_an_object_is_no_text(evaluate: Evaluator, name: str) -> None:
    for act in (
        lambda: evaluate.value(f"x${{{{ input.{name} }}}}", NAMES),
        lambda: evaluate.text(f"${{{{ input.{name} }}}}", NAMES),
        lambda: evaluate.argv([f"x${{{{ input.{name} }}}}"], NAMES),
    ):
        with pytest.raises(ExpressionError, match=f"input.{name}"):
            act()


def test_one_expression_that_gives_a_list_becomes_that_many_arguments(evaluate: Evaluator) -> None:
    assert evaluate.argv(["a", "${{ input.list }}", "${{ [] }}", "${{ [true, 'b c', 1.5] }}"], NAMES) == (
        ["a", "1", "2", "3", "true", "b c", "1.5"]
    )
    for bad in ("${{ [null] }}", "${{ [[1]] }}", "${{ input.object }}"):
        with pytest.raises(ExpressionError):
            evaluate.argv([bad], NAMES)


def test_a_value_too_long_for_a_command_names_stdin(evaluate: Evaluator) -> None:
    most = 100 * 1024
    fits, over = {"vars": {"t": "x" * most}}, {"vars": {"t": "é" * (most // 2) + "x"}}
    assert evaluate.argv(["${{ vars.t }}"], fits) == ["x" * most]
    assert evaluate.text("${{ vars.t }}", over) == "é" * (most // 2) + "x"
    for act in (lambda: evaluate.argv(["${{ vars.t }}"], over), lambda: evaluate.text("${{ vars.t }}", over, limit=most)):
        with pytest.raises(ExpressionError, match="`stdin`"):
            act()


# --- properties ---

TEXT = st.text(alphabet=st.characters(exclude_categories=("Cs",), exclude_characters="\0"), max_size=5)
FIELD = st.sampled_from(["a", "b", "c", "a b", "x-y", "map", "as"])
INTEGERS = st.integers(-(2**63), 2**63 - 1)
LEAF = st.none() | st.booleans() | INTEGERS | st.floats(allow_nan=False, allow_infinity=False) | TEXT
JSON = st.recursive(LEAF, lambda v: st.lists(v, max_size=3) | st.dictionaries(FIELD, v, max_size=3), max_leaves=8)
ANY = st.recursive(
    LEAF | st.integers() | st.floats() | st.text(max_size=3) | st.sampled_from(["\0", "\ud800", LARGE, b"x", 1j]),
    lambda v: st.lists(v, max_size=3) | st.dictionaries(FIELD, v, max_size=3) | st.tuples(v),
    max_leaves=6,
)
WORDS = st.sampled_from(
    re.split(
        " ",
        "input vars states error a b c x . .? [ ] [? ( ) { } : , ? + - * / % ! == != < >= && || in 0 1 -1 2.5 1u 'a' \"b\" r'\\' "
        "b'a' true null .map(x, .filter(x, .all(x, .exists_one(x, .optMap(x, .orValue( has( size( sum( sort( keys( json( int( "
        "flatten( string( double( dyn( type( timestamp( .split( .format( .join( optional.of( ` // \n \\ ' \" é 9223372036854775808",
    )
)


@settings(max_examples=400)
@given(st.lists(WORDS, max_size=14).map(" ".join) | st.lists(WORDS, max_size=10).map("".join) | st.text(max_size=12), ANY, ANY)
def test_whatever_the_expression_and_the_data_the_only_failure_is_ours(source: str, one: object, other: object) -> None:
    reading = inspect(source)
    assert all(0 <= offset <= len(source) and "\n" not in message for message, offset in reading.faults)
    evaluate, names = Evaluator(), {"input": {"a": one, "b": other}, "vars": one, "error": None}
    for act in (
        lambda: evaluate.expression(source, names),
        lambda: evaluate.condition(source, names),
        lambda: evaluate.value({"k": [source, f"${{{{ {source} }}}}"]}, names),
        lambda: evaluate.argv([source, f"-${{{{{source}}}}}"], names),
    ):
        try:
            act()
        except ExpressionError as e:
            assert "\n" not in str(e)


@settings(max_examples=300)
@given(JSON, st.lists(FIELD | st.integers(0, 2), min_size=1, max_size=4))
def test_a_path_gives_the_same_without_the_library_as_with_it(data: object, fields: list) -> None:
    source = "vars"
    for field in fields:
        source += f".{field}" if isinstance(field, str) and field.isalpha() else f"[{json.dumps(field)}]"
    assert Read(source).bare == ("vars", *fields)

    def give(text: str) -> object:
        try:
            return Evaluator().expression(text, {"vars": data})
        except ExpressionError:
            return ExpressionError

    looked_up, evaluated = give(source), give(f"({source})")
    assert looked_up == evaluated and type(looked_up) is type(evaluated)


@settings(max_examples=200)
@given(JSON)
def test_json_goes_through_the_library_and_comes_out_the_same(data: object) -> None:
    found = Evaluator().expression("[vars.v]", {"vars": {"v": data}})
    assert json.dumps(found) == json.dumps([data], sort_keys=True)


# --- the process ---

PROGRAM = """
import json, sys
from durun.errors import ExpressionError
from durun.plan.expressions import Evaluator
sources, names = json.load(sys.stdin)
for source in sources:
    try:
        print(json.dumps(Evaluator().expression(source, names)))
    except ExpressionError as e:
        print(str(e))
"""


def test_every_process_gives_the_same() -> None:
    words = {f"k{n}": n for n in range(40)}
    names = {"input": words, "vars": {"l": [words, {"z": 1, "a": 2}]}}
    sources = [
        "{'o': input, 'p': {'z': 1, 'b': 2, 'a': 3}}",
        "keys(input)",
        "json(vars.l)",
        "'%s'.format([input])",
        "input.map(k, k)",
    ]
    sources += ["vars.l.map(o, keys(o))", "vars.l.map(o, o)", "input.nothing", "{'b': input.k1, 'a': input.k2}", "input == input"]
    given_in, said = json.dumps([sources, names]), []
    for seed in ("0", "1", "77"):
        env = {**os.environ, "PYTHONHASHSEED": seed}
        done = subprocess.run([sys.executable, "-c", PROGRAM], input=given_in, env=env, capture_output=True, text=True, check=True)
        said.append(done.stdout)
    assert said[0] == said[1] == said[2]
    assert said[0].count("\n") == len(sources)


def test_a_path_and_a_plain_text_do_not_load_the_library() -> None:
    program = (
        "import sys\nfrom durun.plan.expressions import Evaluator, inspect\n"
        "e = Evaluator(); names = {'vars': {'a b': [1], 'i': 2}}\n"
        "assert e.expression('vars[\"a b\"][0]', names) == 1 and e.text('x${{ vars.i }}', names) == 'x2'\n"
        "assert inspect('vars.i').faults == []\n"
        "assert not {'pydantic', 'ruamel', 'cel_expr_python', 'durun.plan.cel'} & {m for m in sys.modules}\n"
        "assert e.expression('vars.i + 1', names) == 3 and 'cel_expr_python' in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
