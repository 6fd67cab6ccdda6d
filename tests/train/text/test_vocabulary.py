"""Characters to numbers and back."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from elman.train.text.vocabulary import UNKNOWN, Vocabulary, fit_vocabulary


@given(st.text(min_size=1), st.text())
def test_round_trip(known, text):
    """Known characters come back as they were, unknown ones as the replacement character."""
    vocabulary = Vocabulary("".join(sorted(set(known))))
    ids = vocabulary.encode(text)

    assert ids.dtype == np.int32
    want = "".join(c if c in vocabulary.characters else UNKNOWN for c in text)
    assert vocabulary.decode(ids) == want
    assert not len(ids) or ids.max() < len(vocabulary)


def test_rare_characters_are_unknown():
    """A character seen once is left out; the others are sorted."""
    vocabulary = fit_vocabulary("abba bc")

    assert vocabulary.characters == "ab"
    assert len(vocabulary) == 3


def test_all_rare_keeps_all():
    """Where every character is rare, all are known."""
    assert fit_vocabulary("xyz").characters == "xyz"
