"""Names: looked up once, by the gate, for a connection and never for a question."""

from __future__ import annotations

from tests.conformance.gate.programs.attempts import program
from tests.conformance.gate.programs.place import Place
from tests.conformance.gate.programs.street import CLOSED, WORLD

A, TXT = 1, 16

REBINDING = """
    name, found = args["name"], []
    for turn in range(6):
        found.append(told(direct, name, 80, get(name)))
        found.append(told(http, name))
        found.append(told(connect, f"{name}:80", get(name)))
        found.append(told(socks, 3, name, 80, get(name)))
    return found
"""


def test_a_name_that_changes_its_address_is_dialled_where_it_was_checked(street: Place) -> None:
    """Its name server says a public address first and closed ones from the second question on."""
    listeners = street.world.listeners
    for number, closed in enumerate(("10.0.0.5", "169.254.169.254", "127.0.0.1")):
        name = f"rebind{number}.yard.test"
        listeners.names[name] = [WORLD, closed]
        listeners.asked.clear()
        told = street.yard.go(program(REBINDING), ["*.yard.test:80"], {"name": name})
        said = told.output
        assert "hello" in said[0], said[0]
        assert [answer for answer in said[1:] if "hello" in answer] == []
        asked = [question for question in listeners.asked if question == (name, A)]
        assert len(asked) == len(said), "each connection asks once, and dials what it checked"
        assert {asked.at for asked in street.world.seen} == {WORLD}
        assert any("closed unless" in one["reason"] for one in told.refused(name)), told.connections


def test_of_several_addresses_only_open_ones_are_dialled(street: Place) -> None:
    street.world.listeners.names["both.yard.test"] = ["10.0.0.5", "2600:5678::11"]
    told = street.yard.go(program(REBINDING), ["both.yard.test:80"], {"name": "both.yard.test"})
    assert all("hello" in answer for answer in told.output), told.output
    assert {asked.at for asked in street.world.seen} == {"2600:5678::11"}


SEARCHED = """
    found = []
    for name in args["names"]:
        found.append(told(direct, name, 80, get(name)))
        found.append(told(http, name))
        found.append(told(connect, f"{name}:80", get(name)))
        found.append(told(socks, 3, name, 80, get(name)))
    return found
"""


def test_no_other_name_is_looked_up_than_the_one_that_was_judged(street: Place) -> None:
    """The host's list of domains to search has yard.test."""
    names = ["api", "deep.api"]
    told = street.yard.go(program(SEARCHED), ["*", "!*.yard.test"], {"names": names})
    assert [answer for answer in told.output if "hello" in answer] == []
    assert {name for name, _ in street.world.listeners.asked} == set(names)
    assert not street.world.seen


TUNNELS = """
    found = {}
    servers = [("127.0.0.1", 53), ("8.8.8.8", 53), (args["server"], 53), ("::1", 53), ("2001:4860:4860::8888", 53)]
    for name in args["names"]:
        for kind in (1, 28, 16, 15, 5, 10, 33, 64, 65, 255):
            packet = question(name, kind)
            for server in servers:
                found[f"udp {server[0]} {name} {kind}"] = told(dns, packet, server)
            found[f"tcp {name} {kind}"] = told(dns_stream, packet, (args["server"], 53))
    for name in args["names"]:
        found[f"libc {name}"] = told(socket.getaddrinfo, name, 443)
    return found
"""


def test_questions_carry_nothing_out(street: Place) -> None:
    """Not in their labels, nor by their kind or server, though a wildcard allows such names: the answer is made up."""
    names = ["c2VjcmV0.data.api.yard.test", "x" * 60 + "." + "y" * 60 + ".api.yard.test", "api.yard.test",
             "nowhere.invalid", "data.nowhere.invalid"]  # fmt: skip
    rules = ["*.api.yard.test:443", "api.yard.test:443"]
    told = street.yard.go(program(TUNNELS), rules, {"names": names, "server": WORLD})
    assert street.world.listeners.asked == []
    assert street.world.listeners.heard == []
    assert all("api.yard.test" in how for how, said in told.output.items() if "1 records" in said)
    assert any("1 records" in said for said in told.output.values()), "allowed names are answered"
    assert [how for how, said in told.output.items() if said == "timeout"] == []
    assert told.refused("nowhere.invalid"), told.connections


def test_another_port_is_no_way_to_a_name_server(street: Place) -> None:
    code = program("""
    return {"direct": told(dns_stream, question("out.api.yard.test"), (args["server"], 53)),
            "connect": told(connect, f"{args['server']}:53", b"\\0\\x1e" + question("out.api.yard.test")),
            "socks": told(socks, 1, args["server"], 53, b"\\0\\x1e" + question("out.api.yard.test"))}
    """)
    told = street.yard.go(code, ["api.yard.test:443"], {"server": WORLD})
    assert told.output["connect"].startswith("HTTP/1.1 403")
    assert told.output["socks"] == "socks reply 2"
    assert street.world.listeners.asked == []
    assert [asked for asked in street.world.seen if asked.at in CLOSED] == []


HOSTILE_QUESTIONS = """
    from random import Random
    draw = Random(7)
    good = question("api.yard.test")
    packets = [b"", b"\\0", b"\\0" * 11, b"\\0" * 12, b"\\xff" * 512, good[:-1], good[:-4], good + b"\\0" * 400,
               good[:12] + b"\\xc0\\x0c" + good[-4:], good[:12] + b"\\xc0\\x0e\\xc0\\x0c" + good[-4:],
               good[:4] + b"\\0\\2" + good[6:] + good[12:], good[:4] + b"\\0\\0" + good[6:],
               good[:2] + b"\\x81" + good[3:],
               good[:2] + b"\\x79" + good[3:], good[:12] + b"\\x3f" + b"a" * 20,
               good[:12] + (b"\\x3f" + b"a" * 63) * 5 + good[-5:],
               question("a." * 126 + "test"), question("\\u00e4.yard.test"), question("API.TEST"),
               question("api.yard.test", 1)[:-2] + b"\\0\\3"]
    packets += [bytes(draw.randrange(256) for _ in range(draw.randrange(1, 300))) for _ in range(200)]
    found = {}
    for number, packet in enumerate(packets):
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
            sock.sendto(packet, ("127.0.0.1", 53))
        if number % 10 == 0:
            told(dns_stream, packet)
    with socket.create_connection(("127.0.0.1", 53), BOUND) as sock:
        sock.sendall(b"\\xff\\xff" + good)
        return {"still": told(dns, good), "stream": told(dns_stream, good),
                "works": told(direct, "api.yard.test", 80, get("api.yard.test"))}
"""


def test_hostile_questions_harm_nobody(place: Place) -> None:
    port = place.world.ports["http"]
    code = program(HOSTILE_QUESTIONS.replace('"api.yard.test", 80, get("api.yard.test")', f'"api.yard.test", {port}'))
    told = place.yard.go(code, [f"api.yard.test:{port}"])
    assert told.output["still"] == told.output["stream"] == "code 0, 1 records"
    assert "hello" in told.output["works"]
