"""The README shows the tree that is there."""

from tree import README, rewritten


def test_readme_tree_is_the_real_tree() -> None:
    assert README.read_text() == rewritten(), "Run `make tree`."
