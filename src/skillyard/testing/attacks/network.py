"""Attacks on the network in every address family, and on other runs by it and by files."""

from __future__ import annotations

from functools import partial

from skillyard.testing.attacks.attack import CONTAINED, Family, Judgement, Place, escaped, judged

NETWORK = Family("network", walls=("net_namespace",), invariants=(5,))

NETWORK.program(
    "families",
    "Open sockets of every address family there is, with every type.",
    """
    def answers(family):
        calls = ("socket", NR["socket"]), ("socketpair", NR["socketpair"])
        return ",".join(f"{name}: {raw(number, family, kind, 0, 0)}" for name, number in calls for kind in (1, 2, 3, 5))
    refused = ["signal SIGSYS"]
    refused += [f"{name}: {no}" for name in ("socket", "socketpair") for no in ("EAFNOSUPPORT", "EPERM")]
    for family in (*range(3, 10), *range(11, 16), *range(17, 50)):
        told = in_child(lambda: answers(family))  # one child for all of a family: each costs an own kernel much
        tried.append(f"family {family}")
        got.extend(f"family {family}: {answer}" for answer in told.split(",") if answer not in refused)
    works("a pair of sockets", socket.socketpair)
    """,
    walls=("seccomp",),
)

NETWORK.program(
    "protocols",
    "Open raw sockets, packet sockets and transports whose modules the kernel would load: SCTP, DCCP, MPTCP.",
    """
    for family in (2, 10):
        for kind, protocol in ((3, 1), (3, 255), (3, 6), (3, 58), (10, 3), (1, 132), (5, 132), (6, 33), (1, 262),
                               (2, 136), (2, 1), (2, 58)):
            call_refused("socket", family, kind, protocol,
                         refused=("EPROTONOSUPPORT", "EPERM", "ESOCKTNOSUPPORT", "EACCES", "EAFNOSUPPORT"))
    works("a pair of sockets", socket.socketpair)
    """,
    walls=("seccomp",),
)

NETWORK.program(
    "netlink",
    "Talk to the kernel's network machinery: firewall, audit, devices, crypto, connectors.",
    """
    for protocol in range(1, 23):
        call_refused("socket", 16, 3, protocol, refused=("EPROTONOSUPPORT", "EPERM", "EAFNOSUPPORT"))
    works("a pair of sockets", socket.socketpair)
    """,
    walls=("seccomp",),
)

NETWORK.program(
    "outside",
    "Reach the world, private networks and the metadata service, by TCP and by datagrams, in both versions.",
    """
    # A network that nobody is in answers nothing. Nor does a provider's filter, whose backend tries ways that would.
    refused, silent = [], ("None",) if OWN_KERNEL or level("net_namespace") == "provider" else ()
    for family, kind, address in (
        (2, 1, ("1.1.1.1", 443)), (2, 1, ("10.0.0.1", 80)), (2, 1, ("192.168.0.1", 80)), (2, 1, ("172.17.0.1", 2375)),
        (2, 1, ("169.254.169.254", 80)), (2, 2, ("8.8.8.8", 53)), (2, 2, ("255.255.255.255", 9)),
        (2, 2, ("224.0.0.1", 9)),
        (10, 1, ("2606:4700:4700::1111", 443)), (10, 1, ("fe80::1", 80, 0, 1)), (10, 2, ("ff02::1", 9, 0, 1)),
        (10, 2, ("2001:4860:4860::8888", 53)),
    ):
        try:
            sock = socket.socket(family, kind)
        except OSError as error:
            tried.append(address[0])
            refused.append(name_of(error.errno))
            continue
        with sock:
            sock.settimeout(2)
            if kind == 2:
                try:
                    sock.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
                except OSError:
                    pass
                must_fail(f"send to {address[0]}", sock.sendto, b"verify", address, refused=(*REFUSED, "EINVAL"))
            else:
                must_fail(f"connect to {address[0]}", sock.connect, address, refused=(*REFUSED, *silent, "EINVAL"))
    tried.append("names")
    began = time.monotonic()
    try:
        got.append(f"resolved {socket.getaddrinfo('example.com', 80)[0][4]}")
    except OSError:
        pass
    works("names are unknown at once", lambda: time.monotonic() - began < 5)
    if len(refused) == 12:
        must_be("no socket at all", {"EAFNOSUPPORT"}, set(refused))
        works("a pair of sockets", socket.socketpair)
    else:
        server = works("listen on its own loopback", socket.create_server, ("127.0.0.1", 0))
        works("connect to its own loopback", lambda: socket.create_connection(server.getsockname(), 2).close())
    """,
)

NETWORK.program(
    "interfaces",
    "See interfaces, routes, neighbours and sockets of the host, and change its own.",
    """
    import fcntl
    must_be("interfaces", ["lo"], sorted(name for _, name in socket.if_nameindex()))
    routes = open("/proc/net/route").read().count("\\n") - 1 if os.path.exists("/proc/net/route") else 0
    must_hold(f"no routes: {routes}", routes <= 0)
    for name in ("tcp", "tcp6", "udp", "udp6", "raw", "unix", "packet", "netlink"):
        try:
            lines = open(f"/proc/net/{name}").read().count("\\n") - 1
        except OSError:
            continue
        if name != "netlink":
            must_hold(f"nobody's sockets in {name}: {lines}", lines <= 0)
    down = struct.pack("16sh14x", b"lo", 0)
    no = (*REFUSED, "ENOTTY")  # so the filter answers, and a kernel that has no such request
    must_fail("take the loopback down", fcntl.ioctl, socket.socket(), 0x8914, down, refused=no)
    must_fail("another address", fcntl.ioctl, socket.socket(), 0x8916,
              struct.pack("16sH2s4s8x", b"lo", 2, b"\\0\\0", bytes([10, 0, 0, 1])), refused=no)
    if not OWN_KERNEL:  # whose marks nobody else sees
        must_fail("bind to a device's traffic", socket.socket().setsockopt, 1, 36, 1)
    works("ask for the flags", fcntl.ioctl, socket.socket(), 0x8913, down)
    """,
    walls=("net_namespace",),
    rests_on=("net_namespace",),
)

_LISTENERS = """
    open_ports = []
    for port in (*range(1, 1100), 2375, 3000, 3306, 5000, 5432, 6379, 7878, 8000, 8080, 8443, 8765, 8888, 9000, 9090,
                 9200, 11211, 27017, *args["ports"]):
        for family, host in ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")):
            with socket.socket(family, socket.SOCK_STREAM) as sock:
                sock.settimeout(1)
                if sock.connect_ex((host, port)) == 0:
                    open_ports.append(port)
    must_be("open ports", [], open_ports)
    server = works("listen", socket.create_server, ("127.0.0.1", 0))
    works("connect to it", lambda: socket.create_connection(server.getsockname(), 2).close())
    """


async def _listeners(place: Place) -> Judgement:
    """Looks at the ports that databases and servers use, and at those of planted listeners."""
    ports = [place.canaries.ports["tcp"]] if place.canaries is not None else []
    return judged(await place.attack(_LISTENERS, {"ports": ports}))


NETWORK.steps(
    "listeners", "Find listeners on the loopback: the server's own port, databases, other runs.", _listeners,
    rests_on=("net_namespace",),
)  # fmt: skip

_MEET = """
import threading
mark, began, seen, taken = args["mark"], time.time(), [], []
known = {"tcp": (socket.AF_INET, ("127.0.0.1", 47123)), "tcp6": (socket.AF_INET6, ("::1", 47123)),
         "abstract": (socket.AF_UNIX, "\\0verify-meeting")}
ways = {way: known[way] for way in args["ways"]}
def serve(sock):
    sock.listen()
    while True:
        try:
            with sock.accept()[0] as peer:
                peer.sendall(mark.encode())
        except OSError:
            return
for way, (family, address) in ways.items():
    try:
        own = socket.socket(family)
        own.bind(address)
        threading.Thread(target=serve, args=(own,), daemon=True).start()
    except OSError as error:
        if error.errno not in (errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL):  # no socket, or no such address: nobody's
            taken.append(f"{way}: {name_of(error.errno)}")
while time.time() < began + args["hold_s"]:
    for way, (family, address) in ways.items():
        try:
            with socket.socket(family) as sock:
                sock.settimeout(0.5)
                sock.connect(address)
                said = sock.recv(64).decode()
        except OSError:
            continue
        if said and said != mark:
            seen.append(f"{way}: {said[:8]}")
    for place in ("/tmp", "/workspace", "/dev/shm"):
        try:
            with open(f"{place}/mark-{mark}", "w") as file:
                file.write(mark)
        except OSError as error:
            taken.append(f"{place}: {name_of(error.errno)}")
        seen += [f"{place}/{name}"[:40] for name in listed(place)
                 if name.startswith("mark-") and name != f"mark-{mark}"]
    seen += [f"process {pid}" for pid in listed("/proc")
             if pid.isdigit() and int(pid) > 1 and args["other"] in text_of(f"/proc/{pid}/environ")]
    time.sleep(0.02)
return {"began": began, "ended": time.time(), "seen": sorted(set(seen))[:8], "taken": sorted(set(taken))[:8]}
"""


async def _meet(place: Place, *, ways: list[str]) -> Judgement:
    """Two runs at once offer their mark in every way that both know, and look for the other's."""
    one, two = "a" * 16, "b" * 16
    runs = await place.at_once(
        _MEET, {"mark": one, "other": two, "ways": ways}, {"mark": two, "other": one, "ways": ways}
    )
    seen = [found for run in runs for found in (*run["seen"], *(f"taken {way}" for way in run["taken"]))]
    return escaped("; ".join(seen)[:300]) if seen else CONTAINED


NETWORK.steps(
    "meet-by-ports", "Meet another run on a port of the loopback.", partial(_meet, ways=["tcp", "tcp6"]),
    invariants=(3, 5),
)  # fmt: skip
NETWORK.steps(
    "meet-by-names", "Meet another run on an abstract unix socket.", partial(_meet, ways=["abstract"]),
    walls=("net_namespace", "landlock"), invariants=(3, 5),
)  # fmt: skip
NETWORK.steps(
    "meet-by-files", "Meet another run in /tmp, /workspace, /dev/shm, or see it in /proc.", partial(_meet, ways=[]),
    walls=("mount_namespace",), invariants=(3, 8),
)  # fmt: skip
NETWORK.program(
    "socket-options",
    "Send urgent data, filter packets by programs, join multicast groups, take flow labels and other protocols.",
    """
    no = ("EPERM", "ENOPROTOOPT", "EAFNOSUPPORT", "EOPNOTSUPP", "ENOTSUP")
    def option(family, kind, *words):
        with socket.socket(family, kind) as sock:
            sock.setsockopt(*words)
    code = ctypes.create_string_buffer(b"\\x06\\0\\0\\0\\xff\\xff\\0\\0", 8)
    group = socket.inet_pton(10, "ff02::99") + struct.pack("I", 1)
    label = bytes(15) + b"\\x01" + struct.pack("!IBBHHHI", 0, 1, 1, 1, 6, 1, 0)
    for what, *words in (
        ("another protocol above TCP", 2, 1, 6, 31, b"tls"),
        ("a program for packets", 2, 1, 1, 26, struct.pack("HxxxxxxP", 1, ctypes.addressof(code))),
        ("a multicast group", 10, 2, 41, 20, group),
        ("a multicast group of version 4", 2, 2, 0, 35, struct.pack("4s4si", bytes([224, 0, 0, 9]), bytes(4), 1)),
        ("a flow label", 10, 2, 41, 32, label),
    ):
        must_fail(what, option, *words, refused=no)
    one, two = socket.socketpair()
    must_fail("urgent data", one.send, b"x", 1, refused=no)
    works("plain data", one.send, b"x")
    """,
    walls=("seccomp",),
    invariants=(7,),
)
