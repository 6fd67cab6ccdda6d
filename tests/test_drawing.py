"""Pictures: everything is there, nothing lies on anything else, what the backward reads is red."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree

import pytest

import elman
from elman import cell, cells, compiler
from elman.drawing import draw, picture_of
from elman.drawing.collapse import collapse_norms, parameters_as_nodes
from elman.drawing.layout import _Rows, columns, layout, width_of
from elman.drawing.picture import BEFORE, spoken
from elman.drawing.svg import STYLES, _overlap, _Writer, svg
from elman.errors import InputError
from elman.ops import layer_norm, mean, sqrt, tanh, var, where
from elman.plan.spec import PlanOptions

GROUND = re.compile(r"ground \{ fill: (\S+);")
SVG = "{http://www.w3.org/2000/svg}"
by_name = pytest.mark.parametrize("of", cells.CORE)


def made(of, size: int = 128):
    return picture_of(of, of.bind(size, size))


@by_name
def test_everything_is_shown(of):
    """A shape per value of the step, one per next state, and whatever is taped is marked."""
    picture, step = made(of), compiler.pair_of(of).step
    values = [v for v in step.walk() if v.rate > 0]
    ends = [mark for mark in picture.marks.values() if mark.kind in ("next", "output")]
    assert len(picture.marks) == len(values) + len(ends)
    outputs = [value for value in step.outputs if value not in step.next_states]
    assert len(ends) == len(step.next_states) + len(outputs)
    products = [mark for mark in picture.marks.values() if mark.kind == "product"]
    assert {mark.tag for mark in products} == {mark.back_tag.strip("∂") for mark in products}


def test_what_the_backward_reads_is_red():
    """The GRU needs r, z, n, the recurrent product, x and h; their readers in the backward say
    so."""
    picture = made(cells.gru)
    needed = {mark.name or mark.label for mark in picture.marks.values() if mark.needed}
    assert needed == {"r", "z", "n", "hn", "x", "h", "1 - ·"}
    assert {mark.name for mark in picture.marks.values() if mark.taped} == {"r", "z", "n", "hn"}
    inside = {mark.back for mark in picture.marks.values() if mark.reads}
    assert inside == {"× r·(1 - r)", "× z·(1 - z)", "× (1 - n·n)"}
    assert {line.back for line in picture.lines if line.red} == {
        "× r",
        "× hn",
        "× z",
        "× n",
        "× (1 - z)",
        "× h",
    }


@by_name
def test_all_that_is_read_may_be_kept(of):
    """What is outlined is what the plan would keep if keeping were free, and what is there
    anyway."""
    picture = picture_of(of, of.bind(128, 128), PlanOptions("save"))
    step = compiler.pair_of(of).step
    there = {*step.inputs, *step.states, *step.next_states}
    for index, value in enumerate(v for v in step.walk() if v.rate > 0):
        mark = picture.marks[f"n{index}"]
        assert mark.taped == (mark.needed and value not in there)


def test_reductions_read_what_their_rules_read():
    """The backward of a variance reads its operands; that of a mean nothing."""
    marks = [m for m in made(cells.lstm_layernorm).marks.values() if m.label in ("mean", "var")]
    assert {mark.label: mark.reads for mark in marks} == {"mean": False, "var": True}


def test_the_tape_is_filled():
    """What a tape keeps is filled, whatever the backward needs: more, or nothing."""

    def filled(tape):
        picture = picture_of(cells.lstm, cells.lstm.bind(128, 128), PlanOptions(tape))
        return [mark.label for mark in picture.marks.values() if mark.taped]

    assert filled("recompute") == []
    assert sorted(filled("auto")) == ["tanh", "σ", "σ", "σ"]
    assert sorted(filled("save")) == ["tanh", "tanh", "σ", "σ", "σ"]
    text = draw(cells.lstm, plan=PlanOptions("recompute")).svg
    assert 'class="shape needed"' in text
    assert 'class="shape taped needed"' not in text
    net = elman.Recurrent(cells.lstm, 3, 5, plan=PlanOptions("recompute"))
    assert draw(net).svg == draw(cells.lstm, input_size=3, hidden_size=5, plan=net.plan).svg


def test_parameters_as_nodes():
    """Each parameter is a leaf whose mirror is its gradient; so is a sum of some."""
    picture = parameters_as_nodes(made(cells.gru))
    leaves = {mark.label: mark for mark in picture.marks.values() if mark.kind == "parameter"}
    names = {f"{name}.{gate}" for name in "WR" for gate in range(3)}
    sums = {"b.0 + c.0", "b.1 + c.1"}
    assert leaves.keys() == names | sums | {"b.2", "c.2"}
    gradients = {f"∂({name})" if name in sums else f"∂{name}" for name in leaves}
    assert {mark.back for mark in leaves.values()} == gradients
    read = {line.tail for line in picture.lines}
    assert all(mark.key in read for mark in leaves.values())
    assert {mark.tag for mark in picture.marks.values()} == {""}
    placed = columns(picture)
    assert all(placed[line.tail] < placed[line.head] for line in picture.lines)
    assert "∂R.2" in draw(cells.gru, parameters=True).svg


def test_what_is_there_anyway_is_not_filled():
    """An RNN reads its derivative off the state sequence: it keeps nothing else."""
    marks = made(cells.rnn).marks.values()
    assert not [mark for mark in marks if mark.taped]
    assert {mark.label for mark in marks if mark.needed} == {"x", "h", "tanh"}


def test_a_formula_without_a_state():
    """A fully connected layer is drawn and explained without the state that its module gives it."""

    @cell(input="x[I]", weights="W[H, I], b[H]", output="y[H]")
    def layer(x, W, b):
        """A layer."""
        return tanh(W @ x + b)

    text = draw(layer, input_size=3, hidden_size=5).svg
    for word in ("tanh", "∂W", "∂b", "× (1 - tanh1·tanh1)", "dout"):
        assert word in text
    told = elman.explain(layer, input_size=3, hidden_size=5)
    assert "none: no step depends on the one before" in told.stages["step"]
    assert all(one.refusal for one in told.engines)
    assert "it has no state: elman.Recurrent gives it an idle one" in {
        one.refusal for one in told.engines
    }


def test_hoisted_values_stand_in_the_band():
    """The input projections run before the loop, and nothing else does."""
    picture = made(cells.lstm)
    inside = {mark.name or mark.label for mark in picture.marks.values() if mark.zone == BEFORE}
    assert inside == {"x", "@", "o_x", "f_x", "i_x", "g_x"}


@by_name
def test_nothing_overlaps(of):
    """No shape, tag, name or factor covers another; lines run from left to right."""
    picture = made(of)
    placed = layout(picture)
    for line in picture.lines:
        left = placed.centre[line.tail][0] + width_of(picture.marks[line.tail]) / 2
        right = placed.centre[line.head][0] - width_of(picture.marks[line.head]) / 2
        assert left < right
    writer = _Writer(picture, placed)
    writer.text()
    for index, box in enumerate(writer.boxes):
        for other in writer.boxes[:index]:
            area = _overlap(box, other)
            smaller = min((b[2] - b[0]) * (b[3] - b[1]) for b in (box, other))
            assert area < 0.2 * smaller, (box, other)


@by_name
def test_svg_is_well_formed(of):
    """It parses, everything lies on the page, and it is the same every time."""
    text = draw(of).svg
    root = ElementTree.fromstring(text)
    width, height = float(root.get("width", 0)), float(root.get("height", 0))
    for rect in root.iter(f"{SVG}rect"):
        if rect.get("x") is not None:
            assert 0 <= float(rect.get("x", 0)) <= width - float(rect.get("width", 0))
            assert 0 <= float(rect.get("y", 0)) <= height - float(rect.get("height", 0))
    compiler._pair_of.cache_clear()
    assert draw(of).svg == text


def test_columns_follow_the_reading_order():
    """Each value stands right of what it reads; the loop right of what is hoisted."""
    picture = made(cells.lem)
    column = columns(picture)
    assert all(column[line.tail] < column[line.head] for line in picture.lines)
    zones = {mark.zone: [] for mark in picture.marks.values()}
    for key, mark in picture.marks.items():
        zones[mark.zone].append(column[key])
    assert max(zones[0]) < min(zones[1])


def test_unusual_cells():
    """An output that is no state, a scalar input, a reduction, a choice, an unread state."""

    @cell(
        input="x[I], m", state="h[H], s", weights="W[H, I], R[H, H], V[P, H], g[H]", output="y[P]"
    )
    def odd(x, m, h, s, W, R, V, g):
        """Everything at once."""
        h = where(m > 0, tanh(W @ x + R @ (m * h)), h - g * layer_norm(h))
        return V @ h, h, s + mean(h)

    text = draw(odd, input_size=3, hidden_size=5, P=2).svg
    ElementTree.fromstring(text)
    for word in ("out", "dout", "∂V", "where", "no gradient", "after the loop"):
        assert word in text


def test_modules_and_files(tmp_path):
    """A module is drawn by its cell."""
    net = elman.Recurrent(cells.gru, 3, 5)
    found = draw(net, tmp_path / "gru.svg")
    assert (tmp_path / "gru.svg").read_text(encoding="utf-8") == found.svg == found._repr_svg_()


def test_refusals(tmp_path):
    """What cannot be drawn, and where it cannot be written, is told."""
    with pytest.raises(InputError, match="draw takes a cell or a module"):
        draw(3)
    with pytest.raises(InputError, match=r"draw writes \.svg, not \.png"):
        draw(cells.gru, tmp_path / "gru.png")


@pytest.mark.parametrize("of", [cells.gru, cells.lstm_layernorm])
def test_the_gain_of_an_exchange_is_counted_locally(of):
    """Of any two neighbours: as many crossings fewer as a count of all says."""
    drawn = made(of)
    rows = _Rows(drawn, columns(drawn))
    place = {key: index for row in rows.rows for index, key in enumerate(row)}
    gains = []
    for row in rows.rows:
        for at in range(len(row) - 1):
            gains.append(rows._gain(row[at], row[at + 1], place))
            before = rows.crossings()
            row[at], row[at + 1] = row[at + 1], row[at]
            assert before - rows.crossings() == gains[-1]
            row[at], row[at + 1] = row[at + 1], row[at]
    assert min(gains) < 0 < max(gains)


def test_factors_are_written_in_short():
    """Factors are short."""
    assert spoken("sigmoid(f) * (1 - sigmoid(f))") == "σ(f)·(1 - σ(f))"


def test_a_layer_norm_is_one_shape():
    """With all that it normalises as operands, and nothing of its inside left; unless asked."""
    picture = collapse_norms(made(cells.gru_layernorm))
    (norm,) = [mark for mark in picture.marks.values() if mark.label == "layer norm"]
    assert norm.taped
    tails = [line.tail for line in picture.lines if line.head == norm.key]
    assert {picture.marks[tail].name for tail in tails} == {"v1", "v2", "v3"}
    assert not {"mean", "var", "sqrt", "1 / ·"} & {mark.label for mark in picture.marks.values()}
    whole = draw(cells.gru_layernorm, collapse=False).svg
    assert ">var</text>" in whole
    assert ">layer norm</text>" not in whole
    assert draw(cells.gru, collapse=False).svg == draw(cells.gru).svg


def test_a_norm_whose_inside_is_read_stays_as_it_is():
    """A variance that the cell uses elsewhere keeps its shape."""

    @cell(input="x[H]", state="h[H]")
    def own(x, h):
        """A norm by hand."""
        spread = var(h)
        return tanh(x + (h - mean(h)) * (1.0 / sqrt(spread + 1e-5))) + spread

    picture = made(own)
    assert collapse_norms(picture) is picture


def test_compact_pictures_show_the_forward_alone():
    """Fewer columns' width, no cotangent, the same values."""
    compact, full = draw(cells.lstm, compact=True).svg, draw(cells.lstm).svg
    for word in ("backward", "∂W", "dh′"):
        assert word in full
        assert word not in compact
    sizes = [ElementTree.fromstring(text).get("width", "") for text in (compact, full)]
    assert float(sizes[0]) < 0.7 * float(sizes[1])


def test_symbols_alone_are_large_and_close():
    """No weight, heading or factor; the shapes and names of the graph, in less space."""
    small, compact = (draw(cells.lstm, compact=True, symbols=each).svg for each in (True, False))
    assert small.count('class="shape') == compact.count('class="shape')
    for word in ("W.0", "Long short-term", "before the loop"):
        assert word in compact
        assert word not in small
    assert ">g</text>" in small.replace("\n", "")
    widths = [ElementTree.fromstring(text).get("width", "") for text in (small, compact)]
    assert float(widths[0]) < 0.9 * float(widths[1])


def test_symbols_of_the_backward():
    """Derivatives of functions; red where the factor reads an activation."""
    texts = [*ElementTree.fromstring(draw(cells.gru, symbols=True).svg).iter(f"{SVG}text")]
    assert [node.text for node in texts].count("dh′") == 1
    red = [(node.text or "").strip() for node in texts if node.get("class") == "red"]
    assert sorted(red) == ["tanh′", "×", "×", "×", "σ′", "σ′"]


def test_a_picture_of_one_scheme_ignores_the_pages():
    """Its colours are those of the scheme."""
    picture = made(cells.gru)
    texts = {scheme: svg(picture, layout(picture), scheme=scheme) for scheme in STYLES}
    assert ["@media" in text for text in texts.values()] == [True, False, False]
    grounds = {scheme: GROUND.findall(text) for scheme, text in texts.items()}
    assert grounds["light"] == grounds[""][:1]
    assert grounds["dark"] == grounds[""]


def test_pictures_follow_their_column_and_the_colour_scheme():
    """No colour stands outside of the style sheet, which has a dark form."""
    for text in (draw(cells.gru).svg, draw(cells.gru, compact=True).svg):
        style, _, shapes = text.partition("</style>")
        assert "prefers-color-scheme: dark" in style
        assert "max-width: 100%" in style
        assert '"#' not in shapes
