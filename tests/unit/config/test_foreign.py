"""Settings of CommonGround and SkillFlaw: what each name means here, and what is said of the others."""

from __future__ import annotations

import os
import tomllib
from pathlib import Path

import pytest

from skillyard.config.settings import Settings, load_settings
from skillyard.domain.errors import InvalidInput

SKILLS = """
[skills]
mode = "local" # remote | local
cache_root = "/var/lib/skills-cache"
local_root = "/tmp/skills-local"
reaper_interval_sec = 61
timeout_sec_default = 30
timeout_sec_max = 90
stdout_max_bytes = 1001
stderr_max_bytes = 1002
input_max_bytes = 1003
output_max_bytes = 1004
total_input_max_bytes = 1005
total_output_max_bytes = 1006
"""
E2B = """
[tools.e2b]
reuse_mode = "project_agent" # none | off | project_agent
idle_ttl_sec = 1801
hard_ttl_sec = 21601
lock_timeout_sec = 600
timeout_sec_default = 30
timeout_sec_max = 100
"""
SANDBOX = "SKILLFLAW_SKILL_SANDBOX_"


@pytest.fixture(autouse=True)
def _clean(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in os.environ:
        if name.startswith(("SKILLYARD_", "SKILLFLAW_")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("SKILLYARD_CONFIG", str(tmp_path / "cg.toml"))
    (tmp_path / "cg.toml").write_text("")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "cg.toml"


def told(settings: Settings, name: str) -> list[str]:
    return [note for note in settings.notes if name in note]


def test_the_tables_of_commonground_set_ours(file: Path) -> None:
    file.write_text(SKILLS + E2B + "[commands]\ntask_timeout_s = 77\n")
    settings = load_settings()
    commands = settings.commands
    assert (commands.timeout_s, commands.max_timeout_s, commands.task_timeout_s) == (30, 90, 77)
    assert (commands.stdout_bytes, commands.stderr_bytes) == (1001, 1002)
    assert (commands.input_bytes, commands.output_bytes) == (1003, 1004)
    assert (commands.inputs_bytes, commands.outputs_bytes) == (1005, 1006)
    assert (settings.sweep_every_s, settings.sessions.reap_every_s, settings.policy.isolation) == (61, 61, "native")
    sessions = settings.sessions
    assert (sessions.reuse_mode, sessions.idle_ttl_s, sessions.hard_ttl_s) == ("project_agent", 1801, 21601)


@pytest.mark.parametrize("name", ["skills.cache_root", "skills.local_root", "tools.e2b.lock_timeout_sec"])
def test_a_name_without_effect_is_told_of_with_the_reason(file: Path, name: str) -> None:
    file.write_text(SKILLS + E2B)
    (note,) = told(load_settings(), name)
    assert "has no effect: " in note


def test_limits_of_the_other_mode_are_told_of_where_they_differ(file: Path) -> None:
    file.write_text(SKILLS + E2B)
    (note,) = told(load_settings(), "tools.e2b have no effect")
    assert "timeout_sec_max" in note
    assert "timeout_sec_default" not in note


def test_ours_stand_above_theirs_and_that_is_told(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file.write_text(SKILLS + "[commands]\ntimeout_s = 10\n")
    monkeypatch.setenv("SKILLYARD_COMMANDS__MAX_TIMEOUT_S", "50")
    settings = load_settings()
    assert (settings.commands.timeout_s, settings.commands.max_timeout_s) == (10, 50)
    assert told(settings, "commands.timeout_s = 10.0 stands above skills.timeout_sec_default = 30")
    assert told(settings, "commands.max_timeout_s = 50.0 stands above skills.timeout_sec_max = 90")


REMOTE = SKILLS.replace('"local" #', '"remote" #')


def test_remote_without_a_template_is_refused_with_the_lines_that_mend_it(file: Path) -> None:
    file.write_text(REMOTE + E2B)
    with pytest.raises(InvalidInput, match=r"skills.mode: needs a template.*template = \"NAME\" below \[tools.e2b"):
        load_settings()


def test_remote_on_this_host_is_refused_with_the_lines_that_mend_it(file: Path) -> None:
    file.write_text(REMOTE + '[policy]\nisolation = "native"')
    said = r"skills.mode: needs a backend on other hosts.*isolation = \"e2b\" below.*mode = \"local\" below \[skills"
    with pytest.raises(InvalidInput, match=said):
        load_settings()


def test_remote_is_machines_of_e2b_with_all_that_its_table_says(file: Path) -> None:
    file.write_text(f'{REMOTE}{E2B}template = "mine"\ndomain = "machines.example.com"\n')
    settings = load_settings()
    assert settings.policy.isolation == "e2b"
    assert (settings.e2b.template, settings.e2b.domain) == ("mine", "machines.example.com")
    assert (settings.sessions.idle_ttl_s, settings.sessions.hard_ttl_s) == (1801, 21601)
    assert settings.sessions.reuse_mode == "project_agent"
    # Where both tables speak of a limit, that of the place of runs holds.
    assert settings.commands.timeout_s == tomllib.loads(E2B)["tools"]["e2b"]["timeout_sec_default"]


def test_a_key_of_the_provider_is_refused_in_a_file(file: Path) -> None:
    file.write_text(f'{REMOTE}{E2B}api_key = "e2b_0123"\n')
    with pytest.raises(InvalidInput, match="skillyard secret set E2B_API_KEY") as refused:
        load_settings()
    assert "e2b_0123" not in str(refused.value)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('[skills]\nmode = "cloud"', "skills.mode: must be 'local' or 'remote'"),
        ('[skills]\nmode = "local"\nexecutor = "srt9"', "skills.executor: must be one of native"),
        ("[skills]\ncacheroot = 1", "skills.cacheroot: is not a setting"),
        ("[tools.e2b]\nreuse = 1", "tools.e2b.reuse: is not a setting; known are reuse_mode"),
        ("[tools.other]\nreuse = 1", "tools.other: is not a setting; known are e2b"),
        ("[srt.network]\nallowed = []", "srt.network.allowed: is not a setting; known are allowed_domains"),
        ("srt = 1", "srt: must be a table"),
        ("[skills]\ntimeout_sec_max = 0", "commands.max_timeout_s .skills.timeout_sec_max.: must be above 0"),
        ('[srt.network]\nallowed_domains = "a.com"', "srt.network.allowed_domains: must be a list of names"),
    ],
)
def test_wrong_tables_are_refused_by_name(file: Path, text: str, said: str) -> None:
    file.write_text(text)
    with pytest.raises(InvalidInput, match=said):
        load_settings()


def test_an_executor_is_the_default_isolation(file: Path) -> None:
    file.write_text('[skills]\nmode = "local"\nexecutor = "landlock"\n')
    assert load_settings().policy.isolation == "landlock"


def test_domains_of_srt_bound_all_runs_and_are_open_to_commands(file: Path) -> None:
    file.write_text('[srt.network]\nallowed_domains = ["a.com", "*.b.com"]\ndenied_domains = ["x.b.com"]\n')
    network = load_settings().network
    assert [rule.text for rule in network.rules] == ["a.com:*", "*.b.com:*", "!x.b.com:*"]
    assert network.run_code == network.rules
    file.write_text("[srt.network]\nallowed_domains = []\n")
    assert (load_settings().network.rules, load_settings().network.run_code) == ((), ())


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ('[srt]\nsettings_mode = "file"', "srt.settings_mode"),
        ("[srt]\nenable_weaker_nested_sandbox = true", "srt.enable_weaker_nested_sandbox"),
        ('[srt.filesystem]\nallow_write = ["/data"]', "srt.filesystem.allow_write"),
        ('[srt.network]\nallow_unix_sockets = ["/run/x"]', "srt.network.allow_unix_sockets"),
    ],
)
def test_what_srt_would_open_stays_closed_and_is_told_of(file: Path, text: str, name: str) -> None:
    file.write_text(text)
    (note,) = told(load_settings(), name)
    assert "has no effect: " in note


def test_the_defaults_of_srt_are_not_told_of(file: Path) -> None:
    file.write_text(
        '[srt]\nsettings_mode = "generated"\nignore_violations = {}\n[srt.filesystem]\ndeny_write = ["/"]\n'
    )
    assert load_settings().notes == ()


def test_variables_of_skillflaw_are_defaults_below_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    given = {"CPUS": "2.5", "MEMORY_MB": "256", "PIDS_LIMIT": "64", "TIMEOUT_SECONDS": "60", "READ_ONLY_ROOT": "true"}
    places = {"NETWORK": "none", "WORKSPACE_ACCESS": "ro", "TMPFS_ENABLED": "false", "ENV_ALLOWLIST": '["LANG"]'}
    for name, value in {**given, **places}.items():
        monkeypatch.setenv(SANDBOX + name, value)
    monkeypatch.setenv("LANG", "C.UTF-8")
    monkeypatch.setenv("SKILLYARD_LIMITS__MEMORY_MB", "300")
    settings = load_settings()
    limits = settings.limits
    assert (limits.cpus, limits.memory_mb, limits.pids, limits.timeout_ms) == (2.5, 300, 64, 60_000)
    assert settings.network.rules == ()
    assert settings.sandbox.read_only == ("workspace", "tmp", "shm")
    assert settings.sandbox.variables(os.environ) == ({"LANG": "C.UTF-8"}, {})
    assert told(settings, "stands above") == [f"limits.memory_mb = 300 stands above {SANDBOX}MEMORY_MB = 256"]
    [note] = told(settings, "variables in force: ")
    told_of = dict(one.split(" by ") for one in note.removeprefix("variables in force: ").split("; "))
    assert set(told_of.values()) == {SANDBOX + name for name in {**given, **places}} - {f"{SANDBOX}MEMORY_MB"}
    assert {"limits.cpus = 2.5", "limits.pids = 64", "limits.timeout_ms = 60000"} <= told_of.keys()


def test_an_open_network_is_what_the_rules_allow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(f"{SANDBOX}NETWORK", "open")
    with pytest.raises(InvalidInput, match=f"network.run_code .{SANDBOX}NETWORK.: asks for every host"):
        load_settings()
    monkeypatch.setenv("SKILLYARD_NETWORK__RULES", '["a.com"]')
    settings = load_settings()
    assert [rule.text for rule in settings.network.run_code if not isinstance(rule, str)] == ["a.com"]
    [note] = settings.notes
    assert note.endswith(f" by {SANDBOX}NETWORK")
    monkeypatch.setenv("SKILLYARD_NETWORK__RUN_CODE", "none")
    assert load_settings().network.run_code == ()
    assert told(load_settings(), "stands above")


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("TIMEOUT_SECONDS", "a minute", "TIMEOUT_SECONDS: must be a number"),
        ("PIDS_LIMIT", "1.5", "PIDS_LIMIT: must be a whole number"),
        ("READ_ONLY_ROOT", "false", "READ_ONLY_ROOT.: must be true: the root is shared"),
        ("READ_ONLY_ROOT", "perhaps", "READ_ONLY_ROOT: must be true or false"),
        ("NETWORK", "host", "NETWORK: must be one of none, allowlist, open"),
        ("WORKSPACE_ACCESS", "none", "WORKSPACE_ACCESS: must be one of rw, ro"),
        ("ENV_ALLOWLIST", "LANG", "ENV_ALLOWLIST: must be a JSON list of names"),
    ],
)
def test_wrong_variables_are_refused_by_name(monkeypatch: pytest.MonkeyPatch, name: str, text: str, said: str) -> None:
    monkeypatch.setenv(SANDBOX + name, text)
    with pytest.raises(InvalidInput, match=said):
        load_settings()


def test_an_opensandbox_server_in_the_variables_is_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    connection = {
        "DOMAIN": "sandboxes.lan:8080", "PROTOCOL": "http", "API_KEY": "key-of-theirs", "USE_SERVER_PROXY": "true",
        "REQUEST_TIMEOUT_SECONDS": "600",
    }  # fmt: skip
    for name, value in connection.items():
        monkeypatch.setenv(f"{SANDBOX}OPENSANDBOX_{name}", value)
    monkeypatch.setenv("SKILLFLAW_MCP_SANDBOX_PYTHON_IMAGE", "registry.lan/python:1")
    monkeypatch.setenv("SKILLFLAW_MCP_SANDBOX_IMAGE", "registry.lan/any:1")
    monkeypatch.setenv("SKILLFLAW_MCP_SANDBOX_TYPESCRIPT_IMAGE_REPOSITORY", "registry.lan/ts")
    monkeypatch.setenv("SKILLFLAW_MCP_SANDBOX_TYPESCRIPT_IMAGE_TAG", "v1")
    settings = load_settings()
    ours = settings.opensandbox
    assert settings.policy.isolation == "opensandbox"
    assert (ours.domain, ours.protocol, ours.key()) == ("sandboxes.lan:8080", "http", "key-of-theirs")
    assert (ours.use_server_proxy, ours.request_timeout_seconds) == (True, 600.0)
    for images in (ours, settings.oci):
        assert images.image == images.image_for("python") == images.image_for("") == "registry.lan/python:1"
        assert images.image_for("typescript") == images.image_for("javascript") == "registry.lan/ts:v1"
    chosen, in_force = settings.notes
    assert chosen == f"policy.isolation = 'opensandbox', since the variable {SANDBOX}OPENSANDBOX_DOMAIN is set"
    assert f"opensandbox.domain = 'sandboxes.lan:8080' by {SANDBOX}OPENSANDBOX_DOMAIN; " in in_force
    assert f"opensandbox.api_key = … by {SANDBOX}OPENSANDBOX_API_KEY; " in in_force
    assert "key-of" not in in_force


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("WORKSPACE_ACCESS", "ro", "sandbox.workspace_access .{name}.: would not hold for 'opensandbox'"),
        ("TMPFS_ENABLED", "false", "sandbox.tmpfs .{name}.: would not hold for 'opensandbox'"),
        ("READ_ONLY_ROOT", "false", "sandbox.read_only_root .{name}.: must be true"),
        ("NETWORK", "open", "network.run_code .{name}.: asks for every host"),
    ],
)
def test_what_an_opensandbox_server_cannot_hold_is_refused_by_the_name_of_the_variable(
    monkeypatch: pytest.MonkeyPatch, name: str, text: str, said: str
) -> None:
    monkeypatch.setenv(f"{SANDBOX}OPENSANDBOX_DOMAIN", "sandboxes.lan")
    monkeypatch.setenv(SANDBOX + name, text)
    with pytest.raises(InvalidInput, match=said.format(name=SANDBOX + name)):
        load_settings()


def test_a_named_isolation_stands_above_the_variable_and_no_key_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(f"{SANDBOX}OPENSANDBOX_DOMAIN", "sandboxes.lan")
    monkeypatch.setenv(f"{SANDBOX}OPENSANDBOX_API_KEY", "key-of-theirs")
    monkeypatch.setenv("SKILLYARD_OPENSANDBOX__API_KEY", "key-of-ours")
    monkeypatch.setenv("SKILLYARD_POLICY__ISOLATION", "native")
    settings = load_settings()
    assert settings.policy.isolation == "native"
    assert settings.opensandbox.key() == "key-of-ours"
    assert told(settings, f"stands above {SANDBOX}OPENSANDBOX_DOMAIN")
    assert told(settings, f"stands above {SANDBOX}OPENSANDBOX_API_KEY")
    assert "key-of" not in " ".join(settings.notes)
    assert "key-of" not in repr(settings)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        (f"{SANDBOX}OPENSANDBOX_DOMAIN", "http://sandboxes.lan"),
        (f"{SANDBOX}OPENSANDBOX_PROTOCOL", "ftp"),
        (f"{SANDBOX}OPENSANDBOX_USE_SERVER_PROXY", "perhaps"),
        (f"{SANDBOX}OPENSANDBOX_REQUEST_TIMEOUT_SECONDS", "-1"),
        ("SKILLFLAW_MCP_SANDBOX_IMAGE", "https://registry.lan/any:1"),
        ("SKILLFLAW_MCP_SANDBOX_IMAGE", "registry.lan:5000/any"),
        ("SKILLFLAW_MCP_SANDBOX_PYTHON_IMAGE", "python:"),
        ("SKILLFLAW_MCP_SANDBOX_PYTHON_IMAGE_REPOSITORY", "registry.lan/python"),
    ],
)
def test_a_wrong_server_is_refused_by_name(monkeypatch: pytest.MonkeyPatch, name: str, text: str) -> None:
    monkeypatch.setenv(name, text)
    with pytest.raises(InvalidInput, match=name):
        load_settings()


def test_variables_without_effect_are_told_of_without_their_values(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(f"{SANDBOX}OPENSANDBOX_KEY", "key-of-theirs")
    monkeypatch.setenv(f"{SANDBOX}OPENSANDBOX_DOMAIN", "")
    monkeypatch.setenv("HOME", "/srv/home")  # the tests' own is not to be told
    monkeypatch.setenv("SKILLFLAW_MCP_SANDBOX_BASE_DIR", "~/servers")
    monkeypatch.setenv(f"{SANDBOX}WORKSPACE", "rw")
    settings = load_settings()
    assert settings.policy.isolation == "native"
    assert settings.jail.dir == Path("/srv/home/servers")
    assert any("jail.dir = '/srv/home/servers' by SKILLFLAW_MCP_SANDBOX_BASE_DIR" in note for note in settings.notes)
    assert len(settings.notes) == 3
    assert any(f"{SANDBOX}WORKSPACE has no effect" in note for note in settings.notes)
    assert not any("key-of-theirs" in note or "DOMAIN" in note for note in settings.notes)


def test_places_are_closed_only_where_the_isolation_can(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SKILLYARD_SANDBOX__WORKSPACE_ACCESS", "ro")
    monkeypatch.setenv("SKILLYARD_POLICY__ISOLATIONS", '["gvisor"]')
    with pytest.raises(InvalidInput, match=r"sandbox.workspace_access: would not hold for 'gvisor', which policy.isol"):
        load_settings()


def test_variables_that_steer_programs_do_not_enter(monkeypatch: pytest.MonkeyPatch) -> None:
    names = ["LANG", "PATH", "LD_PRELOAD", "PYTHONPATH", "SKILLYARD_SECRETS_KEY", "LDAP_URL", "NOT_SET_ANYWHERE", "A B"]
    for name in names[:6]:
        monkeypatch.setenv(name, "value")
    monkeypatch.setenv("SKILLYARD_SECRETS_KEY", "")
    monkeypatch.setenv("SKILLYARD_SANDBOX__ENV_ALLOWLIST", str(names).replace("'", '"'))
    settings = load_settings()
    given, refused = settings.sandbox.variables(os.environ)
    assert given == {"LANG": "value", "LDAP_URL": "value"}
    assert refused.keys() == set(names) - given.keys()
    assert len(told(settings, "sandbox.env_allowlist: runs do not get")) == len(refused)
