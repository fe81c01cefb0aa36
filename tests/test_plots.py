"""Pictures keep their layout's laws, escape what they are given, and say what is wrong with it."""

import base64
import io
import itertools
import json
import math
import random
import re
import xml.etree.ElementTree as ElementTree

import matplotlib
import matplotlib.image
import pytest

from structmax.plots import arcs, charts, curves, series, structures, trees, weights
from structmax.plots.svg import text_width

EXPRESSION = ["[MAX", "2", "9", "[MIN", "4", "7", "]", "0", "]"]
GOLD = [[0, 1], [0, 2], [3, 4], [3, 5], [3, 6], [0, 6], [0, 7], [0, 8]]
INDUCED = [[0, 1], [0, 2], [4, 5], [3, 5], [3, 6], [0, 6], [7, 8], [0, 8]]
SENTENCE = ["the", "cat", "and", "the", "dog", "sat", "on", "mats"]
DRAWINGS = {
    "trees": {"tokens": EXPRESSION, "trees": {"gold": GOLD, "induced": INDUCED}, "note": "F1 0.75"},
    "arcs": {
        "tokens": SENTENCE,
        "arcs": {"gold": [[2, 1, "det"], [6, 2, "nsubj"], [0, 6]], "predicted": [[2, 1, "amod"], [1, 2], [0, 6]]},
    },
    "sequence": {"tokens": ["New", "York"], "tags": {"gold": ["B", "I"], "predicted": ["O", "I"]}},
    "alignment": {
        "rows": ["ein", "Haus"],
        "columns": ["a", "house"],
        "weights": [[1, 0], [-0.25, 0.75]],
        "gold": [[1, 1]],
    },
    "matrix": {"weights": [[0.5, math.nan, 0.0], [None, 1.0, math.inf]]},
    "series": {"series": {"first": [1, None, 3.0, 2], "second": [0.5, math.nan]}, "behind": [[1, 1, 1, 1, 1]]},
    "images": {
        "images": [[[[0, 128], [255, 3]], [[9]]], [[[1, 2, 3]]]],
        "rows": ["seen", "made"],
        "columns": ["a", "b"],
    },
}
EMPTY = {
    "trees": {"tokens": [], "trees": {"gold": []}},
    "arcs": {"tokens": [], "arcs": {"gold": []}},
    "sequence": {"tokens": [], "tags": {"gold": []}},
    "alignment": {"weights": [], "rows": [], "columns": []},
    "matrix": {"weights": []},
    "series": {"series": {"first": []}},
    "images": {"images": []},
}


def parsed(kind: str, drawing: dict) -> ElementTree.Element:
    return ElementTree.fromstring(structures.svg({"kind": kind, **drawing}).replace("xmlns=", "ignored="))


def random_spans(first: int, last: int, chance: random.Random) -> list[list[int]]:
    """A tree with two to four children a node."""
    if first == last:
        return []
    cuts = sorted(chance.sample(range(first, last), min(last - first, chance.randint(1, 3))))
    children = zip([first, *(cut + 1 for cut in cuts)], [*cuts, last], strict=True)
    return [[first, last], *(span for child in children for span in random_spans(*child, chance))]


@pytest.mark.parametrize("size", [1, 2, 7, 60])
def test_a_tree_stands_in_order(size: int) -> None:
    chance = random.Random(size)
    tokens = ["x" * chance.randint(1, 9) for _ in range(size)]
    spans = random_spans(0, size - 1, chance)
    chance.shuffle(spans)
    nodes = trees.layout(tokens, spans)
    leaves = nodes[:size]
    for i in range(size - 1):
        needed = (text_width(tokens[i]) + text_width(tokens[i + 1])) / 2
        assert leaves[i + 1].x - leaves[i].x > needed, "tokens do not touch"
    assert sorted([node.first, node.last] for node in nodes[size:]) == sorted(spans)
    for node in nodes[size:]:
        children = node.children
        assert (children[0].first, children[-1].last) == (node.first, node.last)
        assert all(left.last + 1 == right.first and left.x < right.x for left, right in itertools.pairwise(children))
        assert node.x == (children[0].x + children[-1].x) / 2
        assert leaves[node.first].x < node.x < leaves[node.last].x
        assert node.level == 1 + max(child.level for child in children)


def test_a_span_of_one_leaf_and_a_forest_are_trees_too() -> None:
    nodes = trees.layout(["a", "b", "c"], [[0, 0], [1, 2], [1, 2]])
    assert [(node.first, node.last) for node in nodes] == [(0, 0), (1, 1), (2, 2), (1, 2)]


def test_a_deep_tree_is_no_deeper_than_the_page() -> None:
    tokens = ["x"] * 60
    height = parsed("trees", {"tokens": tokens, "trees": {"right": [[i, 59] for i in range(59)]}}).get("height")
    assert float(height) < 520


@pytest.mark.parametrize(("tokens", "stacked"), [(EXPRESSION, False), (EXPRESSION * 2, False), (EXPRESSION * 3, True)])
def test_trees_stand_side_by_side_where_they_fit(tokens: list[str], stacked: bool) -> None:
    spans = [[0, len(tokens) - 1]]
    root = parsed("trees", {"tokens": tokens, "trees": {"gold": spans, "induced": spans}})
    right, down = re.findall(r"[\d.]+", root.findall("g")[1].get("transform"))
    assert (float(right) == 0) == stacked
    assert (float(down) > 0) == stacked


def test_spans_that_the_first_tree_has_not_are_marked() -> None:
    root = parsed("trees", DRAWINGS["trees"])
    wrong = [node.find("title").text for node in root.iter("circle") if "wrong" in node.get("class")]
    assert wrong == ["4–5: 4 7", "7–8: 0 ]"]


@pytest.mark.parametrize("seed", range(5))
def test_arcs_that_share_ground_are_on_levels_of_their_own(seed: int) -> None:
    chance = random.Random(seed)
    heads = [chance.choice([head for head in range(13) if head != modifier]) for modifier in range(1, 13)]
    placed = arcs.layout([[head, modifier, "label"] for modifier, head in enumerate(heads, 1)], 12)
    assert {(arc.head, arc.modifier) for arc in placed} == {(head, modifier) for modifier, head in enumerate(heads, 1)}
    for arc in placed:
        for other in placed:
            if arc is not other and arc.head and other.head:
                apart = arc.ends[1] <= other.ends[0] or other.ends[1] <= arc.ends[0]
                assert apart or arc.level != other.level
                covers = arc.ends[0] <= other.ends[0] and other.ends[1] <= arc.ends[1] and arc.ends != other.ends
                assert not covers or arc.level > other.level


def test_tokens_leave_room_for_the_labels_between_them() -> None:
    placed = arcs.layout([[1, 2, "a-rather-long-label"], [2, 3, "b"]], 3)
    places = arcs.centres(["x", "y", "z"], placed)
    assert places[2] - places[1] > text_width("a-rather-long-label", 11)
    assert places[1] < places[2] < places[3]


def test_wrong_arcs_and_wrong_labels_are_marked() -> None:
    root = parsed("arcs", DRAWINGS["arcs"])
    assert len([line for line in root.iter("path") if line.get("class") == "edge wrong"]) == 1
    assert [text.text for text in root.iter("text") if text.get("class") == "label wrong"] == ["amod"]


def test_a_third_set_of_arcs_repeats_the_sentence() -> None:
    root = parsed("arcs", {"tokens": ["a", "b"], "arcs": {name: [[1, 2], [0, 1]] for name in ("gold", "one", "two")}})
    assert [text.text for text in root.iter("text") if text.get("class") == "token"] == ["a", "b", "a", "b"]


def test_weights_are_written_and_drawn() -> None:
    given = [[2, 1, "det", 0.35], [3, 1, "", 0.65], [0, 2, "", 1], [2, 3, "obj", 0.9999999]]
    root = parsed("arcs", {"tokens": ["a", "b", "c"], "arcs": {"gold": [[2, 1, "det"], [0, 2]], "kept": given}})
    assert [text.text for text in root.iter("text") if "label" in text.get("class")] == [
        "det",
        "root",
        "det .35",
        "obj",
        ".65",
        "root",
    ]
    weighted = [group for group in root.iter("g") if group.get("class") == "weighted"]
    widths = [float(re.search(r"[\d.]+", group.find("path").get("style"))[0]) for group in weighted]
    inks = [float(group.get("opacity")) for group in weighted]
    assert widths[0] < widths[2] < widths[1] == widths[3] == 2
    assert inks[0] < inks[2] < inks[1] == inks[3] == 1
    assert [path.get("class") for group in weighted for path in group.findall("path")][2:6] == [
        "edge wrong",
        "head wrong",
    ] * 2


@pytest.mark.parametrize("seed", range(5))
def test_heads_that_compete_for_a_word_have_ends_of_their_own(seed: int) -> None:
    """Ends lie in the order of heads, so that a longer arc goes around a shorter one from the same side."""
    chance = random.Random(seed)
    pairs = [[h, m, "", 0.5] for m in range(1, 9) for h in range(9) if h != m and chance.random() < 0.4]
    chance.shuffle(pairs)
    placed = arcs.layout(pairs, 8)
    assert len(placed) == len(pairs)
    for arc in placed:
        for other in placed:
            if arc is not other and arc.modifier == other.modifier:
                assert abs(arc.arrive - other.arrive) >= arcs.BERTH
                assert arc.level != other.level or not arc.head or not other.head or arc.leave * other.leave < 0
                same_side = arc.head and other.head and arc.leave * other.leave > 0
                if same_side and arc.length > other.length:
                    assert (arc.arrive - other.arrive) * arc.leave > 0
            if arc.head == other.modifier:
                assert abs(arc.leave) >= abs(other.arrive) + arcs.PORT
    both = arcs.layout([[3, 1, "x"], [3, 1, "y"]], 3)
    assert [(arc.label, arc.level, arc.arrive) for arc in both] == [("x", 1, 4.0), ("y", 2, -4.0)]


def test_an_arc_has_the_labels_that_the_first_set_gives_it() -> None:
    labels = [[1, 2, "det", 0.5], [1, 2, "amod", 0.5]]
    root = parsed("arcs", {"tokens": ["a", "b"], "arcs": {"gold": labels, "kept": [[1, 2, "amod"], [1, 2, "obj"]]}})
    assert [text.text for text in root.iter("text") if text.get("class") == "label wrong"] == ["obj"]


@pytest.mark.parametrize(
    ("weight", "name"),
    [
        (1, ""),
        (1.00001, ""),
        (0.999999, ""),
        (0.998, ">.99"),
        (0.35, ".35"),
        (0.5, ".50"),
        (0.007, ".01"),
        (1e-9, "<.01"),
    ],
)
def test_a_weight_has_two_digits(weight: float, name: str) -> None:
    assert weights.number(weights.read(weight, "it")) == name


def test_a_word_may_keep_several_tags() -> None:
    kept = [{"VERB": 0.25, "NOUN": 0.75}, "DET", {"ADP": 1.0}]
    root = parsed("sequence", {"tokens": ["a", "b", "c"], "tags": {"gold": ["VERB", "DET", {"X": 1.0}], "kept": kept}})
    tags = [(text.text, text.get("class")) for text in root.iter("text") if "tag" in text.get("class")]
    assert tags == [
        ("VERB", "tag"),
        ("NOUN .75", "tag wrong"),
        ("VERB .25", "tag"),
        ("DET", "tag"),
        ("DET", "tag"),
        ("X", "tag"),
        ("ADP", "tag wrong"),
    ]
    assert [pill.find("title").text for pill in root.iter("rect")] == ["not VERB", "not X"]


def test_tags_that_differ_are_marked() -> None:
    root = parsed("sequence", DRAWINGS["sequence"])
    assert [text.text for text in root.iter("text") if "wrong" in text.get("class")] == ["O"]


def test_an_image_is_the_png_of_its_pixels() -> None:
    root = parsed("images", DRAWINGS["images"])
    sources = [image.attrib["href"].removeprefix("data:image/png;base64,") for image in root.iter("image")]
    found = [(255 * matplotlib.image.imread(io.BytesIO(base64.b64decode(source)))).round() for source in sources]
    assert [image.tolist() for image in found] == [image for row in DRAWINGS["images"]["images"] for image in row]


def test_a_heat_map_has_no_cell_for_zero_and_a_grey_one_for_nan() -> None:
    root = parsed("matrix", DRAWINGS["matrix"])
    kinds = [(cell.get("class"), cell.find("title").text) for cell in root.iter("rect") if "cell" in cell.get("class")]
    assert kinds == [
        ("cell", "0 · 0: 0.5"),
        ("cell void", "0 · 1: nan"),
        ("cell void", "1 · 0: nan"),
        ("cell", "1 · 1: 1"),
        ("cell void", "1 · 2: inf"),
    ]
    negative = parsed("alignment", DRAWINGS["alignment"]).findall(".//rect[@class='cell negative']")
    assert [cell.find("title").text for cell in negative] == ["Haus · a: -0.25"]


def test_a_heat_map_may_have_small_cells() -> None:
    large, small = (parsed("alignment", DRAWINGS["alignment"] | cell) for cell in ({}, {"cell": 9}))
    widths = [float(root.find(".//rect[@class='board']").get("width")) for root in (large, small)]
    # −.25 and its margins, or what was asked for
    assert widths == [pytest.approx(2 * (4 * 0.61 * 11 + 8), abs=0.01), 2 * 9.0]


LIST = ["[MAX", "2", "[MIN", "4", "7", "]", "]"]
FROM_LEFT = [[0, 1], [2, 3], [2, 4], [2, 5], [0, 5], [0, 6]]
FROM_RIGHT = [[4, 5], [3, 5], [2, 5], [2, 6], [1, 6], [0, 6]]
CROSSING = [[1, 2], [0, 2], [3, 4], [3, 5], [3, 6], [0, 6]]


@pytest.mark.parametrize(
    ("found", "wrong"),
    [(FROM_LEFT, set()), (FROM_RIGHT, set()), (CROSSING, {"1–2: 2 [MIN", "0–2: [MAX 2 [MIN", "3–6: 4 7 ] ]"})],
    ids=["left", "right", "crossing"],
)
def test_other_trees_may_be_right_too(found: list[list[int]], wrong: set[str]) -> None:
    drawing = {"tokens": LIST, "trees": {"gold": FROM_LEFT, "induced": found}, "brackets": [[2, 5]]}
    marked = parsed("trees", drawing).findall(".//circle[@class='node wrong']")
    assert {node.find("title").text for node in marked} == wrong
    # without brackets the first tree alone is right
    alone = parsed("trees", drawing | {"brackets": None}).findall(".//circle[@class='node wrong']")
    assert len(alone) == len([span for span in found if span not in FROM_LEFT])


@pytest.mark.parametrize(
    ("drawing", "words"),
    [
        (
            {"kind": "trees", "trees": {"gold": [], "found": []}},
            ["Orange in a tree: a span that “gold” does not have."],
        ),
        ({"kind": "trees", "trees": {"gold": []}}, []),
        (
            {"kind": "trees", "trees": {"gold": [], "found": []}, "brackets": []},
            [
                "Orange in a tree: a span that crosses a bracket which every right tree has.",
                "Trees that group the parts of a bracket in another way are right too.",
            ],
        ),
        (
            {"kind": "arcs", "arcs": {"gold": [], "found": [[1, 2, "", 0.5]]}},
            [
                "Orange arc or label: one that “gold” does not have.",
                "A number beside an arc or a tag is its probability; the fainter, the lower.",
            ],
        ),
        ({"kind": "sequence", "tags": {"gold": ["A"], "found": ["B"]}}, ["Orange tag: one that “gold” does not have."]),
        (
            {"kind": "matrix", "weights": [[1.0, -1.0, None]], "gold": [[0, 0]]},
            [
                "Cells: the stronger the colour, the larger the weight; empty cells are exactly 0.",
                "Orange cells: weights below 0.",
                "Framed cells: those that should have the weight.",
            ],
        ),
        ({"kind": "series", "series": {}}, []),
    ],
    ids=lambda given: given["kind"] if isinstance(given, dict) else "",
)
def test_colours_have_a_legend(drawing: dict, words: list[str]) -> None:
    assert structures.keys(drawing) == words


CELLS = ".//rect[@class='cell']"


def numbers(weights: list[list[float | None]]) -> list[str]:
    return [text.text for text in parsed("matrix", {"weights": weights}).findall(".//text[@class='number']")]


def test_few_cells_have_their_numbers() -> None:
    assert numbers([[312.0, 0.0], [15.0, 1200.0]]) == ["312", "15", "1,200"]
    assert numbers([[0.25, 1.0], [-0.5, 0.999]]) == [".25", "1.00", "-.50", "1.00"]
    assert numbers([[None, 0.001], [2.5, math.inf]]) == ["–", "<.01", "2.50", "–"]
    assert numbers([[-0.001, 0.5]]) == [">-.01", ".50"]
    assert numbers([[1.5e7, 2.0]]) == ["1.5e+07", "2"]
    assert numbers([[1.0] * 12] * 12) == ["1"] * 144
    assert numbers([[1.0] * 13]) == numbers([[1.0]] * 145) == []
    strengths = [
        max(float(cell.get("fill-opacity", 1)) for cell in parsed("matrix", {"weights": weights}).findall(CELLS))
        for weights in ([[1.0, 2.0]], [[1.0] * 13])
    ]
    # under numbers the ink is thin enough for the text's colour
    assert strengths == [0.55, 1.0]


def test_series_have_gaps_where_there_is_no_value() -> None:
    root = parsed("series", DRAWINGS["series"])
    drawn = [(path.get("class"), re.findall("[MhL]", path.get("d"))) for path in root.iter("path")]
    assert drawn == [("line behind", list("MhLLLL")), ("line", list("MhMhL")), ("line", list("Mh"))]
    heights = [float(y) for y in re.findall(r"[ML]\S+ ([\d.]+)", root.findall(".//path")[1].get("d"))]
    # 1 is the lowest, 3 the highest
    assert heights[0] > heights[2] > heights[1]


@pytest.mark.parametrize("kind", DRAWINGS)
@pytest.mark.parametrize("drawings", [DRAWINGS, EMPTY], ids=["full", "empty"])
def test_a_drawing_is_accessible_and_finite(kind: str, drawings: dict) -> None:
    root = parsed(kind, {"title": "A <title>", **drawings[kind]})
    assert root.get("role") == "img"
    assert root.find("title").text == "A <title>"
    for element in root.iter():
        for name in ("x", "y", "cx", "cy", "r", "width", "height", "d", "transform", "viewBox"):
            assert not re.search("nan|inf", element.get(name, ""))


def text_boxes(element: ElementTree.Element, x: float = 0.0, y: float = 0.0) -> list[tuple[float, float, float, str]]:
    """Left, right, baseline and words of every text that is not turned, from the estimate of its width."""
    moved = re.fullmatch(r"translate\((\S+) (\S+)\)", element.get("transform", "translate(0 0)"))
    if moved is None:
        return []
    x, y = x + float(moved[1]), y + float(moved[2])
    boxes = []
    for child in element:
        if child.tag == "text":
            width = text_width(child.text, 13 if child.get("class") == "token" else 11)
            left = x + float(child.get("x")) - width * {"start": 0, "middle": 0.5, "end": 1}[child.get("text-anchor")]
            boxes.append((left, left + width, y + float(child.get("y")), child.text))
        boxes += text_boxes(child, x, y)
    return boxes


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("kind", ["trees", "arcs", "rivals", "sequence", "soft tags", "alignment", "series"])
def test_no_two_texts_overlap_and_none_is_cut_off(kind: str, seed: int) -> None:
    chance = random.Random(seed)
    size = chance.randint(1, 20)

    def words(count: int, longest: int) -> list[str]:
        return ["m" * chance.randint(1, longest) for _ in range(count)]

    def heads() -> list[list[object]]:
        choices = [[head for head in range(size + 1) if head != modifier] for modifier in range(1, size + 1)]
        return [[chance.choice(choice), i, *words(chance.randint(0, 1), 9)] for i, choice in enumerate(choices, 1)]

    def rivals() -> list[list[object]]:
        pairs = [(head, modifier) for modifier in range(1, size + 1) for head in range(size + 1) if head != modifier]
        return [[*pair, "m" * chance.randint(0, 5), chance.random()] for pair in pairs if chance.random() < 0.1]

    def soft() -> list[object]:
        return [{word: 0.1 + 0.5 * chance.random() for word in words(chance.randint(0, 4), 9)} for _ in range(size)]

    names = ["gold", "predicted"]
    contents = {
        "trees": {"tokens": words(size, 9), "trees": {name: random_spans(0, size - 1, chance) for name in names}},
        "arcs": {"tokens": words(size, 5), "arcs": {name: heads() for name in names}},
        "rivals": {"tokens": words(size, 5), "arcs": {"gold": heads(), "kept": rivals()}},
        "sequence": {"tokens": words(size, 9), "tags": {name: words(size, 9) for name in names}},
        "soft tags": {"tokens": words(size, 9), "tags": {name: soft() for name in names}},
        "alignment": {"rows": words(size, 9), "columns": words(2, 1), "weights": [[0.5, 0.5]] * size},
        "series": {"series": {f"{i}{name}": [1.0, chance.random()] for i, name in enumerate(words(size, 9))}},
    }
    root = parsed({"rivals": "arcs", "soft tags": "sequence"}.get(kind, kind), contents[kind])
    boxes = text_boxes(root)
    assert boxes
    for i, (left, right, baseline, name) in enumerate(boxes):
        assert 0 <= left < right <= float(root.get("width"))
        assert 8 <= baseline <= float(root.get("height"))
        for other_left, other_right, other_baseline, other in boxes[:i]:
            apart = abs(baseline - other_baseline) >= 10 or right <= other_left or other_right <= left
            assert apart, f"{name} covers {other}"


@pytest.mark.parametrize(
    "drawing",
    [
        {"kind": "trees", "tokens": ["<b>", "&"], "trees": {"<i>": [[0, 1]]}, "note": "<u>"},
        {"kind": "arcs", "tokens": ["<b>", "&"], "arcs": {"<i>": [[0, 1], [1, 2, "<s>"]]}, "title": "<u>"},
        {"kind": "sequence", "tokens": ["<b>", "&"], "tags": {"<i>": ["<s>", '"']}},
        {"kind": "alignment", "rows": ["<b>"], "columns": ["<i>"], "weights": [[1.0]]},
        {"kind": "series", "series": {"<b>": [1.0], "&": [2.0]}},
    ],
    ids=lambda drawing: drawing["kind"],
)
def test_text_is_escaped(drawing: dict) -> None:
    drawn = structures.svg(drawing)
    assert not re.search("<[bisu]>", drawn)
    words = {text.text for text in ElementTree.fromstring(drawn).iter() if text.text}
    assert "<b>" in words


@pytest.mark.parametrize(
    ("drawing", "message"),
    [
        ({"kind": "graph"}, "one of trees, arcs, sequence, alignment, matrix, series, images, but is 'graph'"),
        ({"kind": "images", "images": [[[[0], [0, 1]]]]}, r"rows of one length, at least 1, but they have \[1, 2\]"),
        ({"kind": "images", "images": [[[]]]}, r"rows of one length, at least 1, but they have \[\]"),
        ({"kind": "images", "images": [[[[0, 256]]]]}, "whole numbers from 0 to 255, but not all are"),
        ({"kind": "images", "images": [[[[0]]]], "columns": []}, "each of the 1 columns of `images`, but has 0"),
        ({"kind": "trees", "tokens": ["a"], "trees": {"gold": [[0, 1]]}}, r"last < 1, .* is \[0, 1\]"),
        ({"kind": "trees", "tokens": ["a"] * 4, "trees": {"gold": [[0, 2], [2, 3]]}}, r"\[2, 3\] and \[0, 2\] cross"),
        ({"kind": "arcs", "tokens": ["a"], "arcs": {"gold": [[0, 0]]}}, r"1 to 1, .* is \[0, 0\]"),
        ({"kind": "arcs", "tokens": ["a"], "arcs": {"gold": [[0, 1, "", 0]]}}, r"of the arc \[0, 1\] .* but is 0\."),
        ({"kind": "arcs", "tokens": ["a"], "arcs": {"gold": [[0, 1, "", 1.5]]}}, "at most 1, but is 1.5"),
        ({"kind": "sequence", "tokens": ["a"], "tags": {"gold": [{"X": math.nan}]}}, "of the tag 'X' .* but is nan"),
        ({"kind": "sequence", "tokens": ["a"], "tags": {"gold": ["X", "Y"]}}, "each of the 1 tokens, but 'gold' has 2"),
        ({"kind": "matrix", "weights": [[1.0], [1.0, 2.0]]}, r"rows of one length, but they have \[1, 2\]"),
        ({"kind": "matrix", "weights": [[1.0]], "rows": []}, "`rows` should have a name for each of the 1 rows"),
        ({"kind": "matrix", "weights": [[1.0]], "gold": [[0, 1]]}, r"1 by 1 weights, .* is \[0, 1\]"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_drawings_that_make_no_sense(drawing: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        structures.svg(drawing)


ROWS = [
    {"step": 1, "epoch": 0.5, "seconds": 1.0, "train/loss": 2.0, "valid/accuracy": 0.5, "note": "words"},
    {"step": 2, "epoch": 1.0, "seconds": 2.0, "train/loss": math.nan},
    {"step": 3, "epoch": 1.5, "seconds": 3.0, "train/loss": 1.0, "valid/loss": None, "valid/accuracy": 0.75},
]


def test_series_are_the_metrics_of_the_rows() -> None:
    found = series.by_metric({"a": ROWS, "b": ROWS[:1]})
    assert list(found) == ["loss", "accuracy"]
    assert [(line.run, line.split, line.at) for line in found["loss"]] == [
        ("a", "train", [0.5, 1.0, 1.5]),
        ("a", "valid", [1.5]),
        ("b", "train", [0.5]),
    ]
    assert found["accuracy"][0].values == [0.5, 0.75]
    assert math.isnan(found["loss"][0].values[1])
    assert math.isnan(found["loss"][1].values[0])


def test_rows_without_epochs_are_drawn_over_steps() -> None:
    rows = [{"step": 5, "loss": 1.0}, {"epoch": 1.0, "loss": 3.0}]
    (line,) = series.by_metric({"a": rows})["loss"]
    assert (line.split, line.at, line.values) == ("", [5.0], [1.0])


def test_curves_have_a_panel_for_each_metric_and_a_colour_for_each_run() -> None:
    before = dict(matplotlib.rcParams)
    figure = curves.draw({"a": ROWS, "b": ROWS[:1]})
    loss, accuracy = figure.axes
    assert [axes.get_title("left") for axes in figure.axes] == ["loss", "accuracy"]
    assert [line.get_linestyle() for line in loss.lines] == ["--", "-", "--"]
    assert len({line.get_color() for line in accuracy.lines}) == 2
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["a", "b", "train", "valid"]
    assert dict(matplotlib.rcParams) == before
    figure.canvas.draw()


def test_names_in_curves_are_drawn_as_they_are() -> None:
    """No mathematics, none left out, and nothing that a font cannot have."""
    names = [r"$\frac{$", "_hidden", "a\nb\0\udcff"]
    rows = [{"step": 1, r"valid/$x^$": 1.0}, {"step": 2, r"valid/$x^$": 2.0}]
    figure = curves.draw(dict.fromkeys(names, rows))
    figure.canvas.draw()
    shown = [text.get_text() for text in figure.legends[0].get_texts()]
    assert shown == [r"$\frac{$", "_hidden", "a�b��", "valid"]
    assert figure.axes[0].get_title("left") == r"$x^$"


def test_letters_that_no_xml_has_are_replaced() -> None:
    drawing = {"kind": "sequence", "tokens": ["a\0b", "\udcff", "ü\t"], "tags": {"\x1b[0m": ["\uffff"] * 3}}
    words = {text.text for text in ElementTree.fromstring(structures.svg(drawing)).iter() if text.text}
    assert {"a�b", "�", "ü\t", "�[0m"} < words


@pytest.mark.parametrize("runs", [{}, {"a": []}, {"a": [{"step": 1}]}], ids=["no run", "no row", "no metric"])
def test_curves_of_nothing_say_so(runs: dict) -> None:
    figure = curves.draw(runs)
    assert [text.get_text() for text in figure.texts] == ["no metrics yet"]


@pytest.mark.parametrize(
    ("low", "high", "names"),
    [
        (0.0, 1.0, ["0.0", "0.2", "0.4", "0.6", "0.8", "1.0"]),
        (0.99991, 0.99999, ["0.99992", "0.99994", "0.99996", "0.99998"]),
        (0.0, 20000.0, ["0", "5,000", "10,000", "15,000", "20,000"]),
        (-3.0, 1e7, ["0", "2e+06", "4e+06", "6e+06", "8e+06", "1e+07"]),
    ],
)
def test_ticks_are_round_and_told_apart(low: float, high: float, names: list[str]) -> None:
    ticks = charts.ticks(low, high)
    assert [name for _, name in ticks] == names
    assert all(low - 1e-9 <= value <= high * (1 + 1e-9) for value, _ in ticks)


def test_a_chart_has_gaps_dots_and_no_infinity() -> None:
    lines = [
        series.Line("a", "train", [1.0, 2.0, 3.0, 4.0], [1.0, math.nan, 2.0, 3.0]),
        series.Line("a", "valid", [2.0], [7.0]),
        series.Line("a", "test", [2.0], [math.nan]),
    ]
    root = ElementTree.fromstring(charts.curves("loss", "epoch", lines, {"a": charts.Look("red", "")}))
    gap, dot, nothing = (path for path in root.iter("path") if "curve" in path.get("class"))
    assert gap.get("d").count("M") == 2
    assert dot.get("d").endswith("h0")
    assert nothing.get("d") == ""
    assert charts.curves("loss", "epoch", lines[2:], {"a": charts.Look("red", "")}).count("no finite value") == 1


def test_seeds_of_a_setting_are_a_mean_in_a_band() -> None:
    runs = {
        "a0": [{"epoch": 1, "valid/loss": 1.0, "train/loss": 1.0}, {"epoch": 2, "valid/loss": 3.0}],
        "a1": [{"epoch": 1, "valid/loss": 2.0, "train/loss": 2.0}],
        "b0": [{"epoch": 1, "valid/loss": 5.0}, {"epoch": 2, "valid/loss": math.nan}],
        "b1": [{"epoch": 1, "valid/loss": 6.0}, {"epoch": 2, "valid/loss": 7.0}],
        "c0": [],
        "d0": [{"epoch": 1, "valid/loss": 1.0}],
    }
    lines = series.over_seeds(series.by_metric(runs), {run: run[0] for run in runs})["loss"]
    a, trained, b, d = lines
    # the first seed alone got to the second epoch
    assert a == series.Line("a", "valid", [1, 2], [1.5, 3], [1, 3], [2, 3])
    assert math.isnan(b.values[1])
    assert math.isnan(b.low[1])
    assert (trained.split, d.low) == ("train", [])
    looks = {"a": charts.Look("red", "a"), "b": charts.Look(series.REST, "2 others"), "d": charts.Look("blue", "d")}
    root = ElementTree.fromstring(charts.curves("loss", "epoch", lines, looks))
    bands = root.findall("path[@class='band']")
    # not of training, of what is grey, or of one seed
    assert [(band.get("data-run"), band.get("data-split"), band.get("d").count("L")) for band in bands] == [
        ("a", "valid", 3)
    ]
    points = json.loads(root.find("path[@class='curve'][@data-run='a']").get("data-points"))
    assert [point[3] for point in points] == ["1.5 (1 to 2)", "3 (3 to 3)"]
    # training has a band where there is nothing else
    assert charts.curves("loss", "epoch", [trained], looks).count('class="band"') == 1
    gaps = series.Line("a", "valid", [1, 2, 3], [1, math.nan, 1], [0, math.nan, 0], [2, math.nan, 2])
    pieces = ElementTree.fromstring(charts.curves("loss", "epoch", [gaps], looks)).find("path[@class='band']")
    assert pieces.get("d").count("M") == 2
    figure = curves.draw(runs, {run: run[0] for run in runs})
    assert len(figure.axes[0].collections) == 2


def test_no_colour_is_used_twice() -> None:
    assert len({series.colour(i) for i in range(10)} | {series.REST}) == 11
    assert {series.colour(i) for i in range(10, 30)} == {series.REST}
    figure = curves.draw({f"run {i}": [{"step": 1, "loss": 1.0}] for i in range(13)})
    assert [text.get_text() for text in figure.legends[0].get_texts()][9:] == ["run 9", "3 others"]


def test_bars_begin_at_zero() -> None:
    rows = [
        charts.Bar("up", 2.0, 1.0, [1.0, 3.0], "red"),
        charts.Bar("down", -1.0, math.nan, [-1.0], "blue"),
        charts.Bar("none", math.nan, math.nan, [], "green"),
    ]
    root = ElementTree.fromstring(charts.bars("accuracy", rows))
    up, down = (bar for bar in root.iter("rect"))
    assert float(down.get("x")) + float(down.get("width")) == pytest.approx(float(up.get("x")), abs=0.02)
    assert float(up.get("width")) == pytest.approx(2 * float(down.get("width")), abs=0.02)
    assert [hint.text for hint in root.iter("title")][1] == "up: 2 ± 1"
    assert "2" in [text.text for text in root.iter("text")]
    assert "-1" in [text.text for text in root.iter("text")]
