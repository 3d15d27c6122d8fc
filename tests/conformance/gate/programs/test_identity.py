"""What is said on a connection is held to the name that was allowed."""

from __future__ import annotations

from tests.conformance.gate.programs.attempts import program
from tests.conformance.gate.programs.hostile_hellos import GOOD, HELLO, HELLOS
from tests.conformance.gate.programs.hostile_requests import PLAIN, PROXIED
from tests.conformance.gate.programs.place import Place


def test_the_server_name_is_the_allowed_one(place: Place) -> None:
    place.world.seen.clear()
    told = place.yard.go(
        program(HELLOS, HELLO),
        [place.world.rule("api.yard.test", "https")],
        {"port": place.world.ports["https"]},
    )
    said = told.output
    assert {kind: ways for kind, ways in said.items() if kind in GOOD and set(ways.values()) != {"serverhello"}} == {}
    passed = {(kind, way) for kind, ways in said.items() for way, answer in ways.items() if answer == "serverhello"}
    assert {kind for kind, _ in passed} == GOOD
    assert {kind: ways for kind, ways in said.items() if "timeout" in ways.values()} == {}
    assert said["another"]["direct"].startswith(("alert 49", "alert"))
    assert place.world.seen == []
    reasons = " ".join(one["reason"] for one in told.refused("api.yard.test"))
    assert "other.yard.test" in reasons, told.connections


def test_each_request_is_for_the_allowed_host(place: Place) -> None:
    """Whatever the gate makes of a request, the server behind it sees none for another host and none that was hidden in
    the body of another."""
    world = place.world
    world.seen.clear()
    port = world.ports["http"]
    code = program(PLAIN)
    told = place.yard.go(code, [world.rule("api.yard.test", "http")], {"port": port})
    said = told.output
    assert "hello" in said["good / direct"], said["good / direct"]
    assert "hello" in said["good / connect"]
    allowed = {"api.yard.test", f"api.yard.test:{port}"}
    assert [asked for asked in world.seen if asked.headers.get("host", "api.yard.test").lower() not in allowed] == []
    assert [asked for asked in world.seen if "other.yard.test" in asked.target] == []
    assert [asked for asked in world.seen if asked.method not in ("GET", "POST")] == []
    reasons = {one["reason"] for one in told.refused()}
    assert any("other.yard.test" in reason for reason in reasons), told.connections


def test_the_proxy_goes_nowhere_else(place: Place) -> None:
    world = place.world
    world.seen.clear()
    port = world.ports["http"]
    code = program(PROXIED)
    told = place.yard.go(code, [world.rule("api.yard.test", "http")], {"port": port})
    said = told.output
    assert said["good"].endswith("hello"), said["good"]
    assert [
        asked for asked in world.seen if asked.headers.get("host") not in ("api.yard.test", f"api.yard.test:{port}")
    ] == []
    assert [asked for asked in world.seen if "other.yard.test" in asked.target] == []
    assert [kind for kind, answer in said.items() if answer.count("hello") > 1] == []
    assert said["another"].startswith("HTTP/1.1 403"), said["another"]
    assert said["connect"].startswith("HTTP/1.1 403"), said["connect"]
    assert told.refused("other.yard.test", port), told.connections
    assert [one for one in told.allowed() if (one["host"], one["port"]) != ("api.yard.test", port)] == []


def test_only_the_ports_of_the_rule(place: Place) -> None:
    world = place.world
    world.listeners.heard.clear()
    others = {name: port for name, port in world.ports.items() if name not in ("http", "dns")}
    code = program("""
    found = {}
    for name, port in args["ports"].items():
        found[f"direct {name}"] = told(direct, "api.yard.test", port, "x\\n")
        found[f"connect {name}"] = told(connect, f"api.yard.test:{port}", "x\\n")
        found[f"socks {name}"] = told(socks, 3, "api.yard.test", port, "x\\n")
    return found
    """)
    told = place.yard.go(code, [world.rule("api.yard.test", "http")], {"ports": others})
    direct = {said for how, said in told.output.items() if how.startswith("direct")}
    assert direct == {"ECONNREFUSED"}
    assert {said.split("\r")[0][:12] for how, said in told.output.items() if how.startswith("connect")} == {
        "HTTP/1.1 403"
    }
    assert {said for how, said in told.output.items() if how.startswith("socks")} == {"socks reply 2"}
    assert world.listeners.heard == []
    assert told.allowed() == []
    for name, port in others.items():
        reasons = [one["reason"] for one in told.refused("api.yard.test", port)]
        assert any("port" in reason for reason in reasons), (name, told.connections)
