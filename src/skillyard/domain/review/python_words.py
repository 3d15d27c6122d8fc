"""Modules and calls of Python with their dangers, and the import names of packages."""

from __future__ import annotations

import re

MODULES: dict[str, tuple[str, str]] = {
    **dict.fromkeys(("ctypes", "cffi", "_ctypes"), ("warning", "calls native code and touches memory directly")),
    **dict.fromkeys(("subprocess", "pty", "pexpect", "sh", "plumbum"), ("warning", "starts programs")),
    **dict.fromkeys(
        ("pickle", "_pickle", "cPickle", "dill", "cloudpickle", "shelve", "joblib"),
        ("warning", "runs code that data brings, when it loads what is not its own"),
    ),
    "marshal": ("warning", "loads compiled code that nobody can read"),
    **dict.fromkeys(
        ("imp", "runpy", "zipimport", "pkgutil", "importlib", "code", "codeop"),
        ("warning", "loads code by a name or a file that is made at run time"),
    ),
    **dict.fromkeys(("winreg", "_winreg"), ("warning", "changes the settings of the host")),
    **dict.fromkeys(
        ("site", "sitecustomize", "usercustomize", "builtins", "gc", "inspect"),
        ("note", "looks into or changes the interpreter"),
    ),
    **dict.fromkeys(
        ("pynput", "keyboard", "mouse", "pyautogui", "pyperclip", "mss"), ("warning", "watches or drives a desktop")
    ),
}
"""Level and reason by the first part of a module's name."""

NETWORK = frozenset(
    {
        *("socket", "ssl", "urllib", "http", "ftplib", "smtplib", "imaplib", "poplib", "telnetlib", "xmlrpc"),
        *("socketserver", "requests", "httpx", "aiohttp", "urllib3", "websockets", "websocket", "paramiko"),
        *("pycurl", "grpc", "boto3", "botocore", "openai", "anthropic", "selenium", "playwright", "pymongo"),
        *("psycopg2", "psycopg", "redis", "scapy"),
    }
)
_HARMLESS = frozenset({"urllib.parse", "http.HTTPStatus", "urllib.error"})

CALLS: dict[str, tuple[str, str]] = {
    **dict.fromkeys(("eval", "exec", "builtins.eval", "builtins.exec"), ("warning", "executes text as code")),
    **dict.fromkeys(("compile", "builtins.compile"), ("warning", "makes code of text")),
    **dict.fromkeys(
        ("__import__", "builtins.__import__", "importlib.import_module", "importlib.__import__"),
        ("warning", "imports by a name that is made at run time"),
    ),
    **dict.fromkeys(
        ("os.system", "os.popen", "os.startfile", "os.posix_spawn", "os.posix_spawnp", "commands.getoutput"),
        ("warning", "starts programs"),
    ),
    **dict.fromkeys(("os.fork", "os.forkpty"), ("note", "starts processes")),
    **dict.fromkeys(("types.CodeType", "types.FunctionType"), ("warning", "makes functions of raw code")),
    **dict.fromkeys(
        ("sys.settrace", "sys.setprofile", "sys.addaudithook"), ("note", "watches or changes the interpreter")
    ),
    **dict.fromkeys(("sys.meta_path", "sys.path_hooks"), ("warning", "changes how imports work")),
    "__builtins__": ("warning", "reaches what is not named"),
}
"""Level and reason by the whole dotted name."""

REACHING = frozenset({"__subclasses__", "__globals__", "__builtins__", "__code__", "__reduce__", "__loader__"})
"""Attributes that lead from any object to the whole interpreter."""
SPAWNING = re.compile(r"os\.(?:exec[lv]p?e?|spawn[lv]p?e?)")
EXECUTING = frozenset(
    {"eval", "exec", "compile", "builtins.eval", "builtins.exec", "marshal.loads", "types.CodeType", "pickle.loads"}
)
DECODING = frozenset(
    {
        *("base64.b64decode", "base64.b32decode", "base64.b16decode", "base64.b85decode", "base64.a85decode"),
        *("base64.urlsafe_b64decode", "base64.standard_b64decode", "base64.decodebytes", "binascii.unhexlify"),
        *("binascii.a2b_base64", "binascii.a2b_hex", "bytes.fromhex", "bytearray.fromhex", "codecs.decode"),
        *("zlib.decompress", "gzip.decompress", "bz2.decompress", "lzma.decompress"),
    }
)

IMPORTED_AS: dict[str, tuple[str, ...]] = {
    "attrs": ("attr", "attrs"),
    "beautifulsoup4": ("bs4",),
    "biopython": ("Bio",),
    "google-api-python-client": ("googleapiclient", "apiclient"),
    "imageio-ffmpeg": ("imageio_ffmpeg",),
    "markdown-it-py": ("markdown_it",),
    "msgpack-python": ("msgpack",),
    "opencv-contrib-python": ("cv2",),
    "opencv-python": ("cv2",),
    "opencv-python-headless": ("cv2",),
    "pdfminer-six": ("pdfminer",),
    "pillow": ("PIL",),
    "protobuf": ("google",),
    "psycopg2-binary": ("psycopg2",),
    "py-yaml": ("yaml",),
    "pycryptodome": ("Crypto",),
    "pyjwt": ("jwt",),
    "pymupdf": ("fitz", "pymupdf"),
    "pyopenssl": ("OpenSSL",),
    "pyserial": ("serial",),
    "python-dateutil": ("dateutil",),
    "python-docx": ("docx",),
    "python-dotenv": ("dotenv",),
    "python-magic": ("magic",),
    "python-pptx": ("pptx",),
    "pywin32": ("win32api", "win32con", "win32com", "pythoncom"),
    "pyyaml": ("yaml", "_yaml"),
    "pyzmq": ("zmq",),
    "scikit-image": ("skimage",),
    "scikit-learn": ("sklearn",),
    "setuptools": ("setuptools", "pkg_resources"),
    "typing-extensions": ("typing_extensions",),
    "wand": ("wand",),
}
"""Where a package's import name is not its own, by normalized name (PEP 503)."""


def provides(requirement: str) -> frozenset[str]:
    """Returns the import names that a requirement is known or likely to give."""
    found = re.match(r"[A-Za-z0-9][A-Za-z0-9._-]*", requirement)
    name = re.sub(r"[-_.]+", "-", found[0]).lower() if found else ""
    plain = name.replace("-", "_")
    return frozenset({*IMPORTED_AS.get(name, ()), plain, plain.removeprefix("python_"), plain.removesuffix("_python")})


def is_wanted(dotted: str) -> bool:
    """Returns whether a review has something to say of this name."""
    return (
        dotted in CALLS
        or dotted in DECODING
        or dotted in EXECUTING
        or dotted.rpartition(".")[2] in REACHING
        or SPAWNING.fullmatch(dotted) is not None
    )


def is_network(module: str, name: str) -> bool:
    whole = f"{module}.{name}" if name else module
    return module.partition(".")[0] in NETWORK and module not in _HARMLESS and whole not in _HARMLESS
