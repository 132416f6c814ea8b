"""What is known of hardware, what is found here, and the units in which TorchRec gets it."""

from pathlib import Path

import pytest

from app.config.app_config import CONFIG_DIR
from app.config.sharding import HARDWARE, TopologyConfig
from app.sharding import planner
from app.sharding.planner import Device
from common.errors import UserError
from tests.app.conftest import composed

# As torch reports them.
REPORTED = {
    "mi250x": Device("AMD Instinct MI250X", "gfx90a", 63.98),
    "mi300x": Device("AMD Instinct MI300X", "gfx942", 191.69),
    "mi325x": Device("AMD Instinct MI325X", "gfx942", 255.98),
    "mi350x": Device("AMD Instinct MI350X", "gfx950", 287.98),
    "mi355x": Device("AMD Instinct MI355X", "gfx950", 287.98),
    "a100_40": Device("NVIDIA A100-SXM4-40GB", "sm_80", 39.39),
    "a100_80": Device("NVIDIA A100-SXM4-80GB", "sm_80", 79.15),
    "h100": Device("NVIDIA H100 80GB HBM3", "sm_90", 79.11),
    "h200": Device("NVIDIA H200", "sm_90", 139.72),
    "b200": Device("NVIDIA B200", "sm_100", 178.35),
    "b300": Device("NVIDIA B300 SXM6 AC", "sm_103", 268.59),
    "gb300": Device("NVIDIA GB300", "sm_103", 278.0),
    "cpu": planner.probe("cpu"),
}
# Of a file that is new, what its own figures say.
DEVICES = {
    name: REPORTED.get(name) or Device(name, str(entry.architecture), entry.memory_gib or 0.0)
    for name, entry in planner.load_all().items()
}


@pytest.mark.parametrize("name", DEVICES)
def test_a_device_is_known_by_architecture_and_memory(name: str) -> None:
    assert planner.identify(DEVICES[name], planner.load_all()).name == name


def test_every_figure_has_a_source() -> None:
    assert set(planner.load_all()) >= set(REPORTED)
    for name, entry in planner.load_all().items():
        assert set(entry.sources) == set(HARDWARE[1:]), name
        assert entry.name == name


def test_an_unknown_device_is_described_as_the_error_says(tmp_path: Path) -> None:
    strange = Device("AMD Instinct MI300A", "gfx942", 127.5)
    with pytest.raises(UserError, match=r"AMD Instinct MI300A \(gfx942, 127.5 GiB\) is not known") as caught:
        planner.resolve(TopologyConfig(), lambda: strange, 4)
    assert "\n" not in str(caught.value)
    example = str(caught.value).split("one way: ")[1].split("; then")[0]
    path = tmp_path / "mine.yaml"
    path.write_text(example.replace("...", "100"))
    hardware = planner.resolve(TopologyConfig(file=str(path)), lambda: strange, 4)
    assert (hardware.name, hardware.memory_gib, hardware.inter_host_gb_per_s) == ("mine", 128, 100)
    for text, message in (
        (example.replace("...", "fast"), r"mine\.yaml: not a topology"),
        ("{name: mine, architecture: gfx942}", r"topology\.memory_gib=null: topology mine needs it"),
    ):
        path.write_text(text)
        with pytest.raises(UserError, match=message):
            planner.resolve(TopologyConfig(file=str(path)), lambda: strange, 4)


def test_what_is_given_comes_before_what_is_known() -> None:
    hardware = planner.resolve(TopologyConfig(intra_host_gb_per_s=25), lambda: DEVICES["a100_40"], 8)
    assert (hardware.name, hardware.intra_host_gb_per_s, hardware.memory_gb_per_s) == ("a100_40", 25, 1555)


@pytest.mark.parametrize("key", ["reserve", "link_efficiency", "memory_gib"])
def test_what_is_given_comes_before_the_file_also_where_it_is_the_default(key: str, tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text((CONFIG_DIR / "topology/h100.yaml").read_text() + "reserve: 0.5\nlink_efficiency: 0.4\n")
    override = {"reserve": 0.15, "link_efficiency": 0.8, "memory_gib": 80}[key]
    config = composed(f"topology.file={path}", f"topology.{key}={override}", "run.name=x").topology
    hardware = planner.resolve(config, lambda: DEVICES["cpu"], 8)
    expected = {"reserve": 0.5, "link_efficiency": 0.4, "memory_gib": 80, key: override}
    assert {name: getattr(hardware, name) for name in expected} == expected
    plain = planner.resolve(planner.load_all()["h100"], lambda: DEVICES["cpu"], 8)
    assert (plain.reserve, plain.link_efficiency) == (0.15, 0.8)
    path.write_text(path.read_text().replace("0.5", "1.5"))
    with pytest.raises(UserError, match=r"topology\.reserve="):
        planner.resolve(TopologyConfig(file=str(path)), lambda: DEVICES["cpu"], 8)


def test_units_are_those_of_torchrec() -> None:
    """Bytes a millisecond."""
    h100 = planner.resolve(planner.load_all()["h100"], lambda: DEVICES["h100"], 8)
    theirs = planner.to_torchrec(h100, 16, 8)
    assert (theirs.hbm_mem_bw, theirs.devices[15].storage.hbm) == (3350e9 / 1000, 80 * 2**30)
    assert theirs.intra_host_bw == pytest.approx(0.8 * 450e9 / 1000)
    assert theirs.inter_host_bw == pytest.approx(0.8 * 50e9 / 1000)
    assert (theirs.world_size, theirs.local_world_size, theirs.compute_device) == (16, 8, "cuda")


def test_a_cpus_memory_is_shared_by_its_processes() -> None:
    resolved = planner.resolve(TopologyConfig(), lambda: DEVICES["cpu"], 4)
    theirs = planner.to_torchrec(resolved, 4, 4)
    assert theirs.compute_device == "cpu"
    assert theirs.devices[0].storage.ddr == pytest.approx(DEVICES["cpu"].memory_gib * 2**30 / 4 * 0.85, rel=1e-3)
