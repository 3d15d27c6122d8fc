"""Where settings come from, and what is said when they are wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

from skillyard.config.sections import Sections
from skillyard.config.settings import Settings, load_settings
from skillyard.domain.errors import InvalidInput
from skillyard.domain.sandbox.guarantees import KERNEL_CAN


@pytest.fixture(autouse=True)
def _clean(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import os

    for name in os.environ:
        if name.startswith(("SKILLYARD_", "SKILLFLAW_")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("SKILLYARD_DATA_DIR", str(tmp_path))


def test_defaults_are_those_of_the_design(tmp_path: Path) -> None:
    config = load_settings()
    limits = config.limits
    assert (limits.timeout_ms, limits.memory_mb, limits.cpus) == (300_000, 512, 1.0)
    assert (limits.pids, limits.disk_mb) == (256, 512)
    assert config.limits.max.timeout_ms == 3_600_000
    assert (config.output.oversize, config.policy.run_code_secrets) == ("spill", "none")
    assert set(config.environments) == {"base", "data"}
    assert load_settings().data_dir == tmp_path


def test_xdg_data_home_without_our_variable(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("SKILLYARD_DATA_DIR")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "xdg"))
    assert load_settings().data_dir == tmp_path / "xdg" / "skillyard"


def test_arguments_beat_variables_beat_the_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text(
        "[limits]\nmemory_mb = 100\npids = 50\n[limits.max]\npids = 60\n"
        '[environments.mine]\npackages = ["six"]\n[policy]\nrequire = "kernel"\n'
    )
    monkeypatch.setenv("SKILLYARD_LIMITS__MEMORY_MB", "200")
    settings = load_settings(sweep_every_s=1.0)
    assert (settings.limits.memory_mb, settings.limits.pids, settings.limits.disk_mb) == (200, 50, 512)
    assert (settings.limits.max.pids, settings.sweep_every_s) == (60, 1.0)
    assert settings.policy.kernel_only == KERNEL_CAN
    assert settings.environments["mine"].packages == ("six",)


def test_a_named_file_is_read_and_must_exist(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = tmp_path / "other.toml"
    monkeypatch.setenv("SKILLYARD_CONFIG", str(file))
    with pytest.raises(InvalidInput, match="SKILLYARD_CONFIG: there is no file"):
        load_settings()
    file.write_text("strict_params = false")
    assert load_settings().strict_params is False


def test_skills_dirs_are_split_like_a_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SKILLYARD_SKILLS_DIRS", "/a:/b")
    assert load_settings().skills_dirs == (Path("/a"), Path("/b"))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("nonsense = 1", "nonsense: is not a setting; known are data_dir, "),
        ("[limits]\ntimeout = 1", "limits.timeout: is not a setting; known are timeout_ms, "),
        ("[limits]\nmemory_mb = 1", "limits.memory_mb: must be at least 16$"),
        ("[oci]\nready = 257", "oci.ready: must be at most 256$"),
        ("[oci]\nuid = 'x'", "oci.uid: must be a whole number$"),
        ('[microvm]\naccel = "hvf"', "microvm.accel: must be 'auto', 'kvm' or 'tcg'$"),
        ('[e2b]\ndomain = "https://e2b.app"', "e2b.domain: must be a domain, .* leave out https://"),
        ('[e2b]\napi_key_secret = "a b"', "e2b.api_key_secret: "),
        ('[opensandbox]\ndomain = "http://localhost:8080"', "opensandbox.domain: must be a host and its port, "),
        ("[limits]\nmemory_mb = 9000", "limits.memory_mb: must be from 16 to 8192"),
        ('[policy]\nallow_degraded = ["seccom"]', "policy.allow_degraded: unknown protections seccom"),
        ("[limits", "cannot be read as TOML"),
        ('[packages]\nrun_code = "numpy"', "packages.run_code: must be a list"),
        ('[environments.Plots]\npackages = ["matplotlib"]', "environments: must be lowercase letters"),
        ('[environments.x]\npreload = ["a b"]', "environments.preload: must be false or names of modules, .*got a b"),
        ('[environments.x]\npreload = ["a.__main__"]', "environments.preload: must be false or names of modules"),
        ("[environments.x]\npreload = true", "environments.x.preload"),
        (
            '[policy]\nisolation = "docker"',
            "policy.isolation: must be 'native', 'gvisor', 'landlock', 'oci', "
            "'microvm', 'srt', 'e2b', 'opensandbox' or "
            "'auto'",
        ),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "config.toml").write_text(text)
    with pytest.raises(InvalidInput, match=said):
        load_settings()


def test_a_file_that_cannot_be_read_is_not_called_wrong(tmp_path: Path) -> None:
    (tmp_path / "config.toml").mkdir()
    with pytest.raises(InvalidInput, match=r"config.toml: cannot be read: Is a directory$"):
        load_settings()


@pytest.mark.parametrize(
    ("variable", "value", "said"),
    [
        (
            "SKILLYARD_NETWORK_RUN_CODE",
            "[]",
            "SKILLYARD_NETWORK_RUN_CODE: has no effect: .* as in SKILLYARD_NETWORK__RUN_CODE$",
        ),
        ("SKILLYARD_LIMITS_MAX__PIDS", "5", "as in SKILLYARD_LIMITS__MAX__PIDS$"),
        ("SKILLYARD_LIMITS__MAX__PID", "5", "limits.max.pid: is not a setting; known are timeout_ms, "),
        ("SKILLYARD_NETWORK__HOSTS", "a=b", r"SKILLYARD_NETWORK__HOSTS: must be JSON, .* \(got string of 3 characters"),
        ("SKILLYARD_SECRETS__DELIVERIES", '{"A": {"host": 1}}', r"A.host: is not a setting; known are delivery, hosts"),
    ],
)
def test_a_variable_that_is_wrong_is_named(
    monkeypatch: pytest.MonkeyPatch, variable: str, value: str, said: str
) -> None:
    monkeypatch.setenv(variable, value)
    with pytest.raises(InvalidInput, match=said):
        load_settings()


def test_the_key_of_the_secret_store_is_no_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SKILLYARD_SECRETS_KEY", "x")
    load_settings()


def test_the_network_is_what_the_operator_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    authority = tmp_path / "ca.pem"
    authority.touch()
    (tmp_path / "config.toml").write_text(
        f'''
        [network]
        rules = ["*", "!10.0.0.1", "10.0.0.0/8:5432"]
        open = true
        run_code = ["api.x.com:443"]
        ca_file = "{authority}"
        nat64 = ["2600:64::/96"]

        [network.hosts]
        "DB.internal" = "10.0.0.5"
        six = ["2001:db8::1", "192.0.2.7"]
        [network.limits]
        idle_s = 5
        '''
    )
    settings = load_settings()
    network = settings.network
    assert [rule.text for rule in network.rules] == ["*", "!10.0.0.1", "10.0.0.0/8:5432"]
    assert [rule.text for rule in network.run_code if not isinstance(rule, str)] == ["api.x.com:443"]
    assert (network.open, settings.network.ca_file, network.limits.idle_s) == (True, authority, 5)
    assert list(map(str, network.nat64)) == ["2600:64::/96"]
    assert {name: list(map(str, found)) for name, found in network.hosts.items()} == {
        "db.internal": ["10.0.0.5"],
        "six": ["2001:db8::1", "192.0.2.7"],
    }
    monkeypatch.setenv("SKILLYARD_NETWORK__RULES", "none")
    monkeypatch.setenv("SKILLYARD_NETWORK__RUN_CODE", "mounted")
    network = load_settings().network
    assert (network.rules, network.run_code) == ((), "mounted")


def test_by_default_what_skills_declare_and_nothing_for_code() -> None:
    network = load_settings().network
    assert ([rule.text for rule in network.rules], network.run_code, network.open) == (["*"], (), False)
    assert network == Sections().network


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('rules = ["api.x.com", 5]', r"network.rules\[1\]: must be a rule .*got 5"),
        ('rules = ["*.com"]', r"network.rules\[0\]: a wildcard needs a domain .*got '\*.com'"),
        ('rules = "all"', "network.rules: must be a list of rules, 'none' or 'open'"),
        ('run_code = "open"', "network.run_code: must be 'none', 'mounted', 'rules' or a list of rules"),
        ('run_code = ["x.com", "*:443"]', "network.run_code: asks for every host: that needs network.open = true"),
        ('nat64 = ["2600:64::/97"]', "network.nat64: must be at most 64 IPv6 prefixes of /32, /40"),
        ('nat64 = ["2600:64::1/96"]', "network.nat64: must be"),
        ('nat64 = ["10.0.0.0/8"]', "network.nat64: must be"),
        ("hosts = 3", "network.hosts: must be a table of names"),
        ('hosts = {"a b" = "10.0.0.1"}', "network.hosts: names must be host names"),
        ('hosts = {db = "10.0.0"}', "network.hosts.db: must be IPv4 or IPv6 addresses"),
        ("hosts = {db = []}", "network.hosts.db: must be an address or a list"),
        ('ca_file = "/nonexistent/ca.pem"', "network.ca_file: there is no file"),
        ("limits = {idle_s = 0}", "network.limits.idle_s: must be above 0"),
        (
            "bandwidth = 1",
            "network.bandwidth: is not a setting; known are rules, open, run_code, hosts, nat64, ca_file, limits",
        ),
    ],
)
def test_what_is_wrong_with_the_network_is_named(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "config.toml").write_text(f"[network]\n{text}\n")
    with pytest.raises(InvalidInput, match=said):
        load_settings()


def test_settings_do_not_change() -> None:
    settings = load_settings()
    assert isinstance(settings, Settings)
    with pytest.raises(ValueError, match="frozen"):
        settings.strict_params = "other"  # type: ignore[assignment]


@pytest.mark.parametrize("below", [".", "data", "data/skills", "data/.."])
def test_no_server_is_shown_the_data_directory(tmp_path: Path, below: str) -> None:
    data, fine = tmp_path / "data", tmp_path / "server"
    for path in (data / "skills", fine):
        path.mkdir(parents=True)
    servers = {"own": {"command": ["run"], "source": str(fine)}}
    assert load_settings(data_dir=data, mcp={"servers": servers}).mcp.servers["own"].source == fine
    (tmp_path / "link").symlink_to(tmp_path / below)
    for source in (tmp_path / below, tmp_path / "link"):
        servers["own"]["source"] = str(source)
        with pytest.raises(InvalidInput, match=r"mcp\.servers\.own\.source: .*which no sandbox may see"):
            load_settings(data_dir=data, mcp={"servers": servers})
