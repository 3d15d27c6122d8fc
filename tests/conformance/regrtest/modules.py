"""Which of CPython's own test modules run, and where they are."""

from __future__ import annotations

import sys
import sysconfig
from pathlib import Path

SHORT = ("test_json", "test_csv", "test_re", "test_tempfile", "test_sqlite3", "test_decimal")

LONG = (
    "test_json", "test_csv", "test_re", "test_asyncio", "test_threading", "test_thread", "test_threading_local",
    "test_subprocess", "test_multiprocessing_fork", "test_multiprocessing_spawn",
    "test_multiprocessing_forkserver", "test_concurrent_futures", "test_tempfile", "test_sqlite3", "test_ssl",
    "test_hashlib", "test_hmac", "test_secrets", "test_ctypes", "test_socket", "test_socketserver",
    "test_select", "test_selectors", "test_epoll", "test_poll", "test_zipfile", "test_tarfile", "test_gzip",
    "test_bz2", "test_lzma", "test_zlib", "test_shutil", "test_decimal", "test_fractions", "test_statistics",
    "test_math", "test_random", "test_uuid", "test_struct", "test_array", "test_os", "test_posix",
    "test_posixpath", "test_pathlib", "test_glob", "test_fnmatch", "test_filecmp", "test_stat", "test_fileio",
    "test_io", "test_file", "test_largefile", "test_mmap", "test_memoryview", "test_shelve", "test_dbm",
    "test_signal", "test_fork1", "test_wait3", "test_wait4", "test_popen", "test_posix_spawn", "test_pty",
    "test_fcntl", "test_ioctl", "test_resource", "test_pwd", "test_grp", "test_time", "test_datetime",
    "test_zoneinfo", "test_calendar", "test_locale", "test_codecs", "test_unicodedata", "test_pickle",
    "test_copy", "test_marshal", "test_urllib", "test_urllib2", "test_urllib2_localnet", "test_urlparse",
    "test_httplib", "test_httpservers", "test_http_cookies", "test_ftplib", "test_smtplib", "test_poplib",
    "test_imaplib", "test_xmlrpc", "test_ipaddress", "test_email", "test_html", "test_htmlparser",
    "test_xml_etree", "test_xml_etree_c", "test_minidom", "test_sax", "test_pyexpat", "test_configparser",
    "test_tomllib", "test_argparse", "test_logging", "test_warnings", "test_unittest", "test_doctest",
    "test_contextlib", "test_contextlib_async", "test_queue", "test_sched", "test_heapq", "test_bisect",
    "test_itertools", "test_functools", "test_operator", "test_collections", "test_dataclasses", "test_enum",
    "test_typing", "test_types", "test_importlib", "test_import", "test_zipimport", "test_runpy",
    "test_pkgutil", "test_inspect", "test_ast", "test_dis", "test_tokenize", "test_compile", "test_code",
    "test_traceback", "test_faulthandler", "test_tracemalloc", "test_gc", "test_weakref", "test_atexit",
    "test_sys", "test_sysconfig", "test_platform", "test_site", "test_venv", "test_cmd_line", "test_context",
    "test_coroutines", "test_asyncgen", "test_exceptions", "test_str", "test_bytes", "test_int", "test_float",
    "test_dict", "test_list", "test_set",
)  # fmt: skip


IGNORED = {"test_socket": ("*UDPLITE*", "*VSOCK*")}
"""Patterns of tests that are left out: UDP-Lite is refused inside, and a refusal in a test's thread ends the report of
the whole module; machine sockets (vsock) are refused inside, and tests of theirs hang outside in a virtual machine."""

RESOURCES = {"test_socketserver": "network"}
"""Loopback is meant."""


def missing() -> str:
    """Why there is nothing to run, or an empty string. Debian keeps the tests in a package of its own."""
    place = _place()
    if (place / "__main__.py").exists() and (place / "test_json").exists():
        return ""
    return f"this Python ({sys.base_prefix}) is installed without its tests; on Debian: libpython3-testsuite"


def there(names: tuple[str, ...]) -> list[str]:
    """Those that this version of Python has."""
    place = _place()
    return [name for name in names if (place / name).is_dir() or (place / f"{name}.py").is_file()]


def _place() -> Path:
    prefix = {"base": sys.base_prefix, "installed_base": sys.base_prefix}
    return Path(sysconfig.get_path("stdlib", vars=prefix)) / "test"
