"""The scan alone: real folders, nothing imported."""

import os
import random
import zipfile

import pytest

from poplin.registry import discovery
from poplin.registry.discovery import scan
from poplin.testing.distributions import make_distribution

GROUP = "poplin.strategies"


def found(*path):
    return {one.name: one for one in scan([str(place) for place in path]).distributions}


def test_a_distribution_is_found_with_all_that_matters(tmp_path):
    make_distribution(
        tmp_path,
        "Acme.Poplin",
        "1.2",
        {GROUP: {"acme": "acme.plugin [fast]", "other": "acme : plugin.obj"}, "console_scripts": {"x": "y:z"}},
        requires=["poplin-core>=0.1,<2", "numpy"],
    )
    one = found(tmp_path)["Acme.Poplin"]
    assert one.version == "1.2"
    assert one.location == str(tmp_path / "Acme_Poplin-1.2.dist-info")
    assert [tuple(entry) for entry in one.entries] == [
        (GROUP, "acme", "acme.plugin"),
        (GROUP, "other", "acme:plugin.obj"),
    ]
    assert one.requires == ("poplin-core>=0.1,<2", "numpy")


def test_one_that_declares_nothing_for_poplin_is_left_alone(tmp_path):
    make_distribution(tmp_path, "numpy-like", "1.0", {"console_scripts": {"poplin.x": "a:b"}})
    make_distribution(tmp_path, "plain", "1.0")
    assert found(tmp_path) == {}


def test_the_same_site_folder_through_a_symlink_is_one(tmp_path):
    make_distribution(tmp_path / "lib", "acme", "1.0", {GROUP: {"acme": "acme"}})
    (tmp_path / "lib64").symlink_to(tmp_path / "lib")
    result = scan([str(tmp_path / "lib64"), str(tmp_path / "lib"), str(tmp_path / "lib") + "/"])
    assert [one.name for one in result.distributions] == ["acme"]
    assert result.distributions[0].location == str(tmp_path / "lib" / "acme-1.0.dist-info")


def test_an_egg_info_beside_a_dist_info_is_one(tmp_path):
    make_distribution(tmp_path, "acme", "1.0", {GROUP: {"acme": "acme.new"}})
    make_distribution(tmp_path, "acme", "0.9", {GROUP: {"acme": "acme.old"}}, kind="egg-info")
    make_distribution(tmp_path / "src", "acme", None, {GROUP: {"acme": "acme.old"}}, kind="egg-info")
    assert [one.version for one in scan([str(tmp_path), str(tmp_path / "src")]).distributions] == ["1.0"]


def test_an_egg_info_alone_is_read_with_its_requirements(tmp_path):
    make_distribution(tmp_path, "acme", "0.9", {GROUP: {"acme": "acme"}}, kind="egg-info", requires=["poplin-core>=9"])
    assert found(tmp_path)["acme"].requires == ("poplin-core>=9",)


def test_an_empty_stale_folder_does_not_hide_the_good_one(tmp_path):
    (tmp_path / "foo-0.9.dist-info").mkdir()
    make_distribution(tmp_path, "foo", "1.0", {GROUP: {"foo": "foo"}})
    (tmp_path / "earlier" / "foo-0.1.dist-info").mkdir(parents=True)
    (tmp_path / "earlier" / "foo-0.1.dist-info" / "METADATA").write_text("")
    result = scan([str(tmp_path / "earlier"), str(tmp_path)])
    assert [one.version for one in result.distributions] == ["1.0"]
    assert [os.path.basename(remark.path) for remark in result.remarks] == ["foo-0.1.dist-info", "foo-0.9.dist-info"]


def test_a_folder_with_nothing_but_rubbish_in_its_metadata_does_not_either(tmp_path):
    (tmp_path / "foo-0.9.dist-info").mkdir()
    (tmp_path / "foo-0.9.dist-info" / "METADATA").write_bytes(b"\xff\xfe rubbish")
    make_distribution(tmp_path, "foo", "1.0", {GROUP: {"foo": "foo"}})
    assert found(tmp_path)["foo"].version == "1.0"


def test_the_first_on_the_path_counts(tmp_path):
    make_distribution(tmp_path / "user", "acme", "2.0", {GROUP: {"acme": "acme"}})
    make_distribution(tmp_path / "system", "acme", "1.0", {GROUP: {"acme": "acme"}})
    assert found(tmp_path / "user", tmp_path / "system")["acme"].version == "2.0"
    assert found(tmp_path / "system", tmp_path / "user")["acme"].version == "1.0"


def test_the_order_does_not_depend_on_the_file_system(tmp_path, monkeypatch):
    for name in ["delta", "alpha", "Charlie", "bravo"]:
        make_distribution(tmp_path, name, "1.0", {GROUP: {f"{name.lower()}-{n}": name for n in range(3)}})
    straight = scan([str(tmp_path)])
    listdir = os.listdir
    for seed in range(5):
        monkeypatch.setattr(
            os, "listdir", lambda place, seed=seed: random.Random(seed).sample(listdir(place), len(listdir(place)))
        )
        assert scan([str(tmp_path)]) == straight
    assert [one.name for one in straight.distributions] == ["alpha", "bravo", "Charlie", "delta"]


def test_what_pip_is_about_to_remove_is_not_installed(tmp_path):
    folder = make_distribution(tmp_path, "foo", "1.0", {GROUP: {"foo": "foo"}})
    folder.rename(tmp_path / "~oo-1.0.dist-info")
    assert found(tmp_path) == {}


def test_metadata_in_another_encoding_is_read_all_the_same(tmp_path):
    folder = make_distribution(tmp_path, "acme", "1.0", {GROUP: {"acme": "acme"}})
    (folder / "METADATA").write_bytes("Name: acme\nVersion: 1.0\nAuthor: Müller\n".encode("latin-1"))
    (folder / "entry_points.txt").write_bytes(b"\xef\xbb\xbf# caf\xe9\n[poplin.strategies]\nacme = acme\n")
    assert found(tmp_path)["acme"].entries == ((GROUP, "acme", "acme"),)


def test_a_distribution_without_a_version_is_found(tmp_path):
    make_distribution(tmp_path, "acme", None, {GROUP: {"acme": "acme"}})
    assert found(tmp_path)["acme"].version == ""


def test_lines_that_are_no_entry_points_are_remarked(tmp_path):
    folder = make_distribution(tmp_path, "acme", "1.0", {GROUP: {"acme": "acme"}})
    (folder / "entry_points.txt").write_text(
        "junk\n[poplin.strategies]\nno equals sign\nacme = acme\n = x\ny =\n[unclosed\n"
    )
    result = scan([str(tmp_path)])
    assert [entry.name for entry in result.distributions[0].entries] == ["acme"]
    assert len(result.remarks) == 4


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_a_folder_that_cannot_be_read_is_remarked(tmp_path):
    closed = tmp_path / "closed"
    closed.mkdir(mode=0)
    make_distribution(tmp_path, "acme", "1.0", {GROUP: {"acme": "acme"}})
    result = scan([str(closed), str(tmp_path)])
    assert [one.name for one in result.distributions] == ["acme"]
    assert str(closed) in [remark.path for remark in result.remarks]


def test_a_folder_that_vanishes_or_fails_to_list_is_survived(tmp_path, monkeypatch):
    make_distribution(tmp_path, "acme", "1.0", {GROUP: {"acme": "acme"}})
    listdir = os.listdir

    def failing(place):
        if str(place).endswith("closed"):
            raise PermissionError(13, "Permission denied")
        return listdir(place)

    monkeypatch.setattr(os, "listdir", failing)
    result = scan([str(tmp_path / "closed"), str(tmp_path / "absent"), "", str(tmp_path), 3, None])
    assert [one.name for one in result.distributions] == ["acme"]
    assert "Permission denied" in result.remarks[0].problem


def test_eggs_and_archives_are_read(tmp_path):
    egg = tmp_path / "acme-1.0-py3.egg"
    folder = make_distribution(egg, "acme", "1.0", {GROUP: {"acme": "acme"}}, kind="egg-info")
    folder.rename(egg / "EGG-INFO")
    packed = make_distribution(tmp_path / "build", "packed", "2.0", {GROUP: {"packed": "packed"}})
    archive = tmp_path / "packed.zip"
    with zipfile.ZipFile(archive, "w") as writer:
        for file in packed.iterdir():
            writer.write(file, f"{packed.name}/{file.name}")
    (tmp_path / "damaged.zip").write_bytes(b"PK\x03\x04 no archive at all")
    result = found(egg, archive, tmp_path / "damaged.zip")
    assert {name: one.version for name, one in result.items()} == {"acme": "1.0", "packed": "2.0"}
    assert result["packed"].entries == ((GROUP, "packed", "packed"),)


@pytest.mark.parametrize("name", ["acme-1.0-py3-none-any.whl", "acme.zip", "acme.egg"])
def test_an_archive_that_broke_off_is_remarked(tmp_path, name):
    whole = tmp_path / "whole.zip"
    with zipfile.ZipFile(whole, "w") as writer:
        writer.writestr("acme-1.0.dist-info/METADATA", "Name: acme\nVersion: 1.0\n")
        writer.writestr("acme-1.0.dist-info/entry_points.txt", f"[{GROUP}]\nacme = acme\n")
    assert list(found(whole)) == ["acme"]
    (tmp_path / name).write_bytes(whole.read_bytes()[:-40])
    (tmp_path / "script.py").write_text("no archive, and nobody said so")
    (remark,) = scan([str(tmp_path / name), str(tmp_path / "script.py")]).remarks
    assert remark.path == str(tmp_path / name)
    assert "can't be read" in remark.problem


def test_a_group_that_does_not_exist_is_remarked_with_the_one_that_may_be_meant(tmp_path):
    groups = ("poplin.strategy", "poplin.logger", "poplin.compliance", "poplin.zzz", GROUP, "torch.backends")
    folder = make_distribution(tmp_path, "acme", "1.0", {group: {"acme": "acme"} for group in groups})
    result = scan([str(tmp_path)])
    assert [entry.group for entry in result.distributions[0].entries] == [GROUP]
    assert {remark.path for remark in result.remarks} == {str(folder / "entry_points.txt")}
    logger, strategy, other = sorted(remark.problem for remark in result.remarks)
    assert "'poplin.strategy'" in strategy
    assert "did you mean 'poplin.strategies'?" in strategy
    assert "did you mean 'poplin.loggers'?" in logger
    assert "'poplin.zzz'" in other
    assert "poplin.ambient" in other


@pytest.mark.parametrize("name", ["runtime", "Poplin.Core"])
def test_a_distribution_that_bears_a_name_of_poplins_own_is_remarked(tmp_path, name):
    folder = make_distribution(tmp_path, name, "1.0", {GROUP: {"acme": "acme"}})
    make_distribution(tmp_path / "harmless", name, "1.0", {"console_scripts": {"x": "y:z"}})
    result = scan([str(tmp_path)])
    assert result.distributions == ()
    assert [remark.path for remark in result.remarks] == [str(folder)]
    assert name in result.remarks[0].problem
    assert scan([str(tmp_path / "harmless")]) == ((), ())


def test_entry_points_that_cannot_be_read_are_remarked(tmp_path, monkeypatch):
    as_folder = make_distribution(tmp_path, "acme", "1.0") / "entry_points.txt"
    as_folder.mkdir()
    closed = make_distribution(tmp_path, "closed", "1.0", {GROUP: {"closed": "closed"}}) / "entry_points.txt"

    def opened(file, *args):
        if str(file) == str(closed):
            raise PermissionError(13, "Permission denied")
        return open(file, *args)

    monkeypatch.setattr(discovery, "open", opened, raising=False)
    remarks = {remark.path: remark.problem for remark in scan([str(tmp_path)]).remarks}
    assert set(remarks) == {str(as_folder), str(closed)}
    assert "Permission denied" in remarks[str(closed)]


def test_a_file_in_place_of_an_egg_info_folder_is_read(tmp_path):
    (tmp_path / "old-1.0.egg-info").write_text("Name: old\nVersion: 1.0\n")
    assert scan([str(tmp_path)]) == ((), ())


def test_the_four_callback_groups_and_ambient_are_read(tmp_path):
    groups = ["callbacks_factory", "poplin.callbacks_factory", "lightning.fabric.callbacks_factory"]
    groups += ["lightning_fabric.callbacks_factory", "poplin.ambient"]
    make_distribution(tmp_path, "acme", "1.0", {group: {"x": "acme:make"} for group in groups})
    assert {entry.group for entry in found(tmp_path)["acme"].entries} == set(groups)


@pytest.mark.parametrize("kind", ["dist-info", "egg-info"])
def test_the_standard_library_sees_the_same_distribution(tmp_path, kind):
    import importlib.metadata

    make_distribution(
        tmp_path, "acme-x", "1.5", {GROUP: {"acme": "acme:obj"}}, {"acme.py": "x = 1"}, ["numpy"], kind, "Short."
    )
    (theirs,) = importlib.metadata.distributions(path=[str(tmp_path)])
    assert (theirs.metadata["Name"], theirs.version, theirs.metadata["Summary"]) == ("acme-x", "1.5", "Short.")
    assert [(point.group, point.name, point.value) for point in theirs.entry_points] == [(GROUP, "acme", "acme:obj")]
    assert list(theirs.requires) == ["numpy"]
