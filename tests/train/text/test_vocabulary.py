"""Characters to numbers and back."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from elman.errors import InputError
from elman.train.tasks.text.vocabulary import CHARACTERS, WORDS, Vocabulary, fit_vocabulary


@given(st.text(min_size=1), st.text())
def test_round_trip(known, text):
    """Known characters come back as they were, unknown ones as the replacement character."""
    vocabulary = Vocabulary("".join(sorted(set(known))))
    ids = vocabulary.encode(text)

    assert ids.dtype == np.int32
    want = "".join(c if c in vocabulary.tokens else CHARACTERS.unknown for c in text)
    assert vocabulary.decode(ids) == want
    assert not len(ids) or ids.max() < len(vocabulary)


def test_rare_characters_are_unknown():
    """A character seen once is left out; the others are sorted."""
    vocabulary = fit_vocabulary("abba bc")

    assert vocabulary.tokens == ["a", "b"]
    assert len(vocabulary) == 3


def test_all_rare_keeps_all():
    """Where every character is rare, all are known."""
    assert fit_vocabulary("xyz").tokens == ["x", "y", "z"]


@given(st.lists(st.lists(st.sampled_from(["a", "bc", "däf", "<unk>"])), min_size=1))
def test_words_round_trip(lines):
    """Words and ends of lines come back; what is written as unknown is number 0."""
    text = "".join(" ".join(line) + "\n" for line in lines)
    vocabulary = Vocabulary(["<eos>", "a", "bc", "däf"], WORDS)
    ids = vocabulary.encode(text)

    assert len(ids) == sum(len(line) + 1 for line in lines)
    assert vocabulary.decode(ids) == text
    assert (ids == 0).sum() == text.count("<unk>")


@pytest.mark.parametrize(
    "text, known",
    [
        ("to be or not to be", {"to", "be"}),
        ("to be <unk> not\n", {"to", "be", "not", "<eos>"}),
        ("a b c\n", {"a", "b", "c", "<eos>"}),
    ],
    ids=["rare", "rare ones were replaced", "all rare"],
)
def test_rare_words_are_unknown(text, known):
    """A word seen once is left out, unless the text has a sign for such words already."""
    vocabulary = fit_vocabulary(text, WORDS)
    assert {*vocabulary.tokens} == known
    assert len(vocabulary) == len(known) + 1


@pytest.mark.parametrize("level, text", [(CHARACTERS, "aaabbcc"), (WORDS, "a a a <unk> b b c c")])
def test_the_most_frequent_are_known(level, text):
    """So many numbers, of which 0 is one; of equally frequent tokens the first ones."""
    assert fit_vocabulary(text, level, most=3).tokens == ["a", "b"]
    assert len(fit_vocabulary(text, level, most=100)) == 4


@pytest.mark.parametrize("text", [3, ["a"], None])
def test_what_is_no_text_is_told(text):
    with pytest.raises(InputError, match="encode takes a text, got"):
        Vocabulary(["a"]).encode(text)
