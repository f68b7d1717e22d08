"""Values are made as those of `collections` are, at less than the cost of them."""

from __future__ import annotations

import copy
import pickle
from collections import namedtuple
from enum import StrEnum as UsualWords
from typing import Any

import pytest

from durun.plan.digest import digest, sha1, sha256
from durun.values import NamedTuple, StrEnum

Usual = namedtuple("Usual", ("name", "count", "more"), defaults=(1, None))


class Value(NamedTuple):
    """What it is."""

    name: str
    count: int = 1
    more: Any = None

    @property
    def twice(self) -> int:
        return 2 * self.count

    def again(self) -> Value:
        return self._replace(name=self.name * 2)


class Other(NamedTuple):
    title: str
    size: int
    rest: Any


class Word(StrEnum):
    """What there is."""

    ONE = "one"
    TWO = "the second"


class UsualWord(UsualWords):
    ONE = "one"
    TWO = "the second"


class Nothing(NamedTuple):
    pass


def said(make: Any, *given: Any, **named: Any) -> Any:
    try:
        return tuple(make(*given, **named))
    except TypeError as e:
        return str(e).replace("Usual", "Value")


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ((), {}), (("a",), {}), (("a", 2), {}), (("a", 2, 3), {}), (("a", 2, 3, 4), {}), ((), {"name": "a", "more": 5}), (("a",), {"name": "b"}),
        (("a",), {"size": 1}), ((), {"count": 1}),
    ],
)  # fmt: skip
def test_a_value_is_made_or_refused_as_one_of_collections(given: Any, named: Any) -> None:
    assert said(Value, *given, **named) == said(Usual, *given, **named)


def test_a_value_says_what_it_is_and_has_what_its_class_has() -> None:
    value, usual = Value("a", more=[1]), Usual("a", more=[1])
    assert repr(value) == repr(usual).replace("Usual", "Value")
    assert value._asdict() == usual._asdict() and Value._fields == Usual._fields and Value._field_defaults == Usual._field_defaults
    assert (value.twice, value.again().name, value == ("a", 1, [1]), Nothing()) == (2, "aa", True, ())
    assert Value.__doc__ == "What it is." and Value.__qualname__ == "Value" and Value.__module__ == __name__
    match value:
        case Value("a", count, more=[one]):
            assert (count, one) == (1, 1)
        case _:
            raise AssertionError
    assert pickle.loads(pickle.dumps(value)) == value and type(copy.deepcopy(value)) is Value


def test_classes_of_the_same_length_have_each_its_own_fields() -> None:
    assert Other(title="x", size=1, rest=2).title == Value(name="x").name
    assert Other.__new__.__qualname__ == "Other.__new__"
    with pytest.raises(TypeError, match=r"Other.__new__\(\) got an unexpected keyword argument 'name'"):
        Other(name="x", size=1, rest=2)  # type: ignore[call-arg]


def test_a_value_does_not_change() -> None:
    with pytest.raises(AttributeError):
        Value("a").name = "b"  # type: ignore[misc]
    with pytest.raises(AttributeError):
        Value("a").another = "b"  # type: ignore[attr-defined]
    with pytest.raises(ValueError, match="another"):
        Value("a")._replace(another="b")


def test_a_class_whose_usual_values_stand_before_others_is_refused() -> None:
    with pytest.raises(TypeError, match="stands behind"):
        type(NamedTuple)("Wrong", (NamedTuple,), {"__annotations__": {"a": "int", "b": "int"}, "a": 1, "__module__": __name__})


def test_the_digests_are_those_that_everybody_knows() -> None:
    assert sha256(b"abc").hexdigest() == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    assert sha1(b"abc", usedforsecurity=False).hexdigest() == "a9993e364706816aba3e25717850c26c9cd0d89d"
    assert digest({}) == sha256(b"{}").hexdigest()


def test_a_word_is_what_one_of_enum_is() -> None:
    assert [str(word) for word in Word] == [str(word) for word in UsualWord]
    assert [repr(word) for word in Word] == [repr(word).replace("UsualWord", "Word") for word in UsualWord]
    assert (len(Word), f"{Word.TWO}", type(str(Word.TWO))) == (len(UsualWord), f"{UsualWord.TWO}", str)
    assert Word.ONE in Word and isinstance(Word.ONE, Word) and isinstance(Word.ONE, str)
    assert {Word.ONE: 1}["one"] == 1 and Word.ONE == "one" != Word.TWO
    with pytest.raises(ValueError, match=r"'three' is not a valid Word"):
        Word("three")


@pytest.mark.parametrize(
    "again", [copy.copy, copy.deepcopy, Word, lambda word: Word(str(word)), lambda word: pickle.loads(pickle.dumps(word))]
)
def test_a_word_is_one_object_wherever_it_comes_from(again: Any) -> None:
    assert again(Word.TWO) is Word.TWO
