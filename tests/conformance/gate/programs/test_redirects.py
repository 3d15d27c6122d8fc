"""What an allowed host says is no policy: redirects lead nowhere else."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from tests.conformance.gate.programs.clients import PRELUDE
from tests.conformance.gate.programs.place import Place
from tests.conformance.gate.programs.street import CLOSED
from tests.conformance.gate.programs.yard import ENVIRONMENT

FOLLOW: Mapping[str, str] = {
    "urllib": """
def reach(url):
    import urllib.request
    return urllib.request.urlopen(url, timeout=15).read().decode()
""",
    "urllib, no proxy": """
def reach(url):
    import urllib.request
    return urllib.request.build_opener(urllib.request.ProxyHandler({})).open(url, timeout=15).read().decode()
""",
    "curl": """
def reach(url):
    return program("curl", "-sSfL", "--max-time", "15", url)
""",
    "curl, no proxy": """
def reach(url):
    return program("curl", "-sSfL", "--noproxy", "*", "--max-time", "15", url)
""",
    "requests": """
def reach(url):
    import requests
    answer = requests.get(url, timeout=15)
    answer.raise_for_status()
    return answer.text
""",
}
MAIN = """

def main(args):
    trust(args["ca"])
    return {url: timed(reach, url) for url in args["urls"]}
"""


@pytest.mark.parametrize("client", FOLLOW)
def test_redirects_to_what_is_refused_are_refused(client: str, street: Place) -> None:
    if client == "requests" and (why := street.why_not("packages")):
        pytest.skip(why)
    world = street.world
    world.listeners.names["trap.yard.test"] = ["10.0.0.5"]
    ends = ["http://10.0.0.5/hello", "http://169.254.169.254/hello", "http://other.yard.test/hello",
            "http://trap.yard.test/hello",
            "https://127.0.0.1/hello", "http://[fd00::5]/hello", "http://localhost:3128/", "http://api.yard.test:53/hello",
            "http://20.0.0.11/hello", "http://0x0a000005/hello", "http://api.yard.test@10.0.0.5/hello"]  # fmt: skip
    urls = [f"http://api.yard.test/to/{307 if number % 2 else 302}?u={end}" for number, end in enumerate(ends)]
    chain = "http://api.yard.test/to/302?u=http://api.yard.test/to/301?u=http://10.0.0.5/hello"
    good = "http://api.yard.test/to/302?u=http://api.yard.test/hello"
    told = street.yard.go(
        PRELUDE + FOLLOW[client] + MAIN,
        ["api.yard.test:80"],
        {"ca": world.authority.ca_pem, "urls": [good, chain, *urls]},
        environment=ENVIRONMENT if client == "requests" else "base",
    )
    assert told.output[good]["said"] == "hello", told.output[good]
    assert {url for url, attempt in told.output.items() if attempt["said"] is not None} == {good}
    assert max(attempt["s"] for attempt in told.output.values()) < 5
    assert [asked for asked in world.seen if asked.at in CLOSED or asked.headers["host"] != "api.yard.test"] == []
    assert told.refused("other.yard.test"), told.connections
