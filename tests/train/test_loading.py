"""A recipe is code: it is imported only from where the user points, and only if it is the recorded one."""

from pathlib import Path

import pytest

from mpdeploy.errors import UsageError
from mpdeploy.train.loading import RecipeId, find_recipe, load_recipe


def test_a_recipe_is_known_by_name_and_hash(mlp):
    loaded = load_recipe(mlp)
    assert (loaded.name, loaded.id.file, len(loaded.id.sha256)) == ("my_mlp", "my_mlp.py", 64)
    assert load_recipe(mlp, expected=loaded.id).recipe.epochs == 3


def test_a_changed_recipe_is_not_imported(mlp, tmp_path):
    recorded = load_recipe(mlp).id
    marker = tmp_path / "marker"
    mlp.write_text(f"from pathlib import Path\nPath({str(marker)!r}).touch()\n" + mlp.read_text())
    with pytest.raises(UsageError, match="not the recipe that the checkpoint was trained with"):
        load_recipe(mlp, expected=recorded)
    assert not marker.exists()


@pytest.mark.parametrize(
    "name", ["../evil.py", "/elsewhere/evil.py", "a/b.py", "..", "evil", ".hidden.py", "a\\b.py", ""]
)
def test_a_recorded_name_that_is_no_bare_file_name_is_refused(name, tmp_path):
    with pytest.raises(UsageError, match="not a plain file name"):
        find_recipe(RecipeId(name, "0" * 64), tmp_path)


def test_a_recorded_name_is_looked_up_in_models_only(tmp_path):
    (tmp_path / "models").mkdir()
    (tmp_path / "mine.py").touch()
    with pytest.raises(UsageError, match=r"not in models/ here"):
        find_recipe(RecipeId("mine.py", "0" * 64), tmp_path)
    (tmp_path / "models" / "mine.py").touch()
    assert find_recipe(RecipeId("mine.py", "0" * 64), tmp_path) == tmp_path / "models" / "mine.py"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "recipe is empty"),
        ("x = 1\n", "defines no recipe"),
        ("recipe = 3\n", "defines no recipe"),
        ("def f(:\n", "fails when it is imported: SyntaxError"),
        ("import nothing_of_that_name\n", "ModuleNotFoundError"),
        ("raise SystemExit(3)\n", "SystemExit"),
        ("x = '\x00'\n", "fails when it is imported"),
    ],
)
def test_a_file_that_is_no_recipe_gets_one_line(tmp_path, text, says):
    path = tmp_path / "r.py"
    path.write_text(text)
    with pytest.raises(UsageError, match=says) as caught:
        load_recipe(path)
    assert "\n" not in str(caught.value)
    assert str(path) in str(caught.value)


def test_missing_files_and_folders_are_told_apart(tmp_path):
    with pytest.raises(UsageError, match="recipe not found"):
        load_recipe(tmp_path / "none.py")
    with pytest.raises(UsageError, match="recipe is a folder"):
        load_recipe(Path(tmp_path))
