"""Well-known packages whose import takes long and changes nothing, for environments that have them.

Each stands here because ``tests/conformance/preload`` shows of the real package that its import starts no thread or
process, keeps nothing open, keeps no generator of random numbers but such as each run seeds anew, and reads no variable
of the environment but those of :data:`READS`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

CURATED: Mapping[str, tuple[str, ...]] = {
    "numpy": ("numpy",),
    "pandas": ("pandas",),
    "pillow": ("PIL.Image",),
    "matplotlib": ("matplotlib.pyplot",),
    "scipy": ("scipy.stats",),
    "scikit-learn": ("sklearn.base",),
    "openpyxl": ("openpyxl",),
    "lxml": ("lxml.etree",),
    "pyyaml": ("yaml",),
}
"""Modules by distribution (PEP 503), in the order of import. Of those that would pass ``native.preload_mb`` the last
are left out."""

READS: Mapping[str, str] = {
    "NPY_": "numpy: warnings, and which instructions of the processor are used",
    "NUMPY_": "numpy: large pages, warnings",
    "OPENBLAS_": "OpenBLAS: threads and sizes of its blocks; one thread counts while it is imported",
    "GOTO_": "OpenBLAS under its old name",
    "OMP_": "OpenMP: threads",
    "GOMP_": "OpenMP: threads",
    "ACC_": "OpenMP: devices, and a sandbox has none",
    "KMP_": "OpenMP of others, for which scikit-learn sets them",
    "GFORTRAN_": "the runtime of Fortran: units of files, which no module of these reads",
    "PANDAS_": "pandas: options that `pandas.set_option` sets at any time",
    "PILLOW_": "Pillow: blocks of its memory",
    "MPL": "matplotlib: backend, fonts, and directory; `matplotlib.use` and rcParams set them at any time",
    "MATPLOTLIBRC": "matplotlib: the file of its settings; `matplotlib.rc_file` reads one at any time",
    "FC_": "fontconfig: how fonts are found, the same in every run",
    "FONTCONFIG_": "fontconfig: how fonts are found, the same in every run",
    "FREETYPE_": "FreeType: how fonts are drawn",
    "XDG_": "directories of a user, the same in every run",
    "SCIPY_": "scipy: arrays of other libraries, which needs `preload = false`",
    "SKLEARN_": "scikit-learn: what `sklearn.set_config` sets at any time",
    "JOBLIB_": "joblib: how it starts processes, an argument of each call",
    "LOKY_": "joblib: how it starts processes, an argument of each call",
    "OPENPYXL_": "openpyxl: whether it uses lxml",
    "XML_": "libxml2: where it complains",
    "EXPAT_": "expat: where it complains",
    "OPENSSL_": "OpenSSL: its file of settings, the same in every run, and instructions of the processor",
    "PYPARSING": "pyparsing: warnings",
    "PYTHON": "Python: paths of time zones, documentation and user packages, the same in every run",
    "_PYTHON": "Python: where it was built",
    "SOURCE_DATE_EPOCH": "Python: dates in what it builds",
    "DEB_PYTHON_INSTALL_LAYOUT": "Python, as Debian packages it: where it installs packages",
    "HOME": "set by us, the same in every run",
    "PATH": "set by us, the same in every run",
    "LANG": "set by us, the same in every run",
    "LC_": "set by nobody",
}
"""The start of each variable's name that the imports of the table read, with its meaning. None of them harms anybody. A
run that is given such a variable imports for itself."""


def curated(distributions: Collection[str], modules: Collection[str]) -> tuple[str, ...]:
    """Returns the table's modules that an environment has; ``modules`` are its top-level names."""
    return tuple(
        name
        for distribution, names in CURATED.items()
        if distribution in distributions
        for name in names
        if name.partition(".")[0] in modules
    )


def is_read(variable: str) -> bool:
    return variable.startswith(tuple(READS))
