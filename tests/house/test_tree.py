"""The README shows the tree that is there."""

from tree import README, phrase, render, rewritten, tracked


def test_readme_tree_is_the_real_tree() -> None:
    assert README.read_text() == rewritten(), "Run `make tree`."


def test_names_and_phrases_stand_apart() -> None:
    """However long a name is."""
    lines = {line.strip() for line in render().splitlines()}
    sources = [name for name in tracked() if name.startswith("services/headrace/") and "rpc/v1/" not in name]
    for name in sources:
        if text := phrase(name):
            leaf = name.rpartition("/")[2]
            assert any(line.startswith(f"{leaf} ") and line.endswith(f" {text}") for line in lines), name
