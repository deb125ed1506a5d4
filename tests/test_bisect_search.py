"""Exact search: the right culprit at every position, around commits that cannot be built, and along merges."""

from __future__ import annotations

import pytest

from opgauge import bisect_search as s


def find(history: s.History, culprit: int, broken: frozenset[int] = frozenset()) -> tuple[list[int], int]:
    """(who is left, looks) where candidate `culprit` is to blame and `broken` cannot be built."""
    search, looks = s.start(history), 0
    while (i := s.next_test(search)) is not None:
        bad = history.ancestors[i] >> culprit & 1
        search = s.judged(search, i, s.SKIP if i in broken else s.BAD if bad else s.GOOD)
        looks += 1
    return s.culprits(search), looks


@pytest.mark.parametrize("count", [1, 2, 3, 17, 100])
def test_every_culprit_of_a_line_is_found_in_the_fewest_looks(count: int) -> None:
    history = s.line([str(i) for i in range(count)])
    for culprit in range(count):
        left, looks = find(history, culprit)
        assert left == [culprit]
        assert looks <= (count - 1).bit_length()


def test_commits_that_cannot_be_built_cost_few_looks_and_are_named_beside_the_culprit() -> None:
    broken = frozenset({7, 8, 9, 23, 40, 41, 42, 43, 70, 98})
    history = s.line([str(i) for i in range(100)])
    total = 0
    for culprit in set(range(100)) - broken:
        left, looks = find(history, culprit, broken)
        total += looks
        before = []
        i = culprit - 1
        while i in broken:
            before.insert(0, i)
            i -= 1
        assert left == [culprit, *before]
    assert total / 90 < 9


def test_a_merge_leads_into_the_branch_that_brought_the_culprit() -> None:
    #   a - b - c - m - d     b..y are of a side branch: x - y
    names = ["a", "b", "x", "y", "c", "m", "d"]
    parents = [["good"], ["a"], ["a"], ["x"], ["b"], ["c", "y"], ["m"]]
    history = s.graph(names, parents)
    assert s.indices(history.ancestors[names.index("c")]) == [0, 1, 4]
    for culprit in range(len(names)):
        assert find(history, culprit)[0] == [culprit]


def values(text: str) -> tuple[list[s.Change], list[int]]:
    """Changes of a line spelled one letter a place, `.` where there is none; and the places that were asked."""
    asked: list[int] = []

    def value(i: int) -> str | None:
        if i not in asked:
            asked.append(i)
        return None if text[i] == "." else text[i]

    return s.changes(len(text), value, looks=3), asked


def test_every_change_of_a_line_with_three_values_is_found() -> None:
    found, asked = values("uuuuuuuuffffffffffpppppppppppppp")
    assert [(c.before, c.after) for c in found] == [(7, 8), (17, 18)]
    assert len(asked) < 16


def test_what_broke_and_was_mended_between_equal_ends_is_found_where_a_look_falls_into_it() -> None:
    assert [(c.before, c.after) for c in values("ppppppppfffffffffppppppp")[0]] == [(7, 8), (16, 17)]
    assert values("pppppppppppppppppppppppp")[0] == []


def test_what_broke_and_was_mended_between_ends_that_differ_is_found_too() -> None:
    assert [(c.before, c.after) for c in values("uffppppppppppppffffffffppppp")[0]] == [
        (0, 1),
        (2, 3),
        (14, 15),
        (22, 23),
    ]


def test_places_without_a_value_are_stepped_over_and_named() -> None:
    found, _ = values(".aaaa..bbb.")
    assert found == [s.Change(4, 7, (5, 6))]
    assert values("...")[0] == []


def test_a_search_that_takes_skipped_for_good_names_another_commit() -> None:
    """The control: what `judged` does with a skip matters."""
    history = s.line([str(i) for i in range(9)])
    search = s.judged(s.start(history), 4, s.GOOD)
    while (i := s.next_test(search)) is not None:
        search = s.judged(search, i, s.BAD if i >= 3 else s.GOOD)
    assert s.culprits(search) != find(history, 3, frozenset({4}))[0]
