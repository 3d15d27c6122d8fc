"""The work of ``skillyard image``: parts of sandboxes, as each backend wants them.

Beside the composition root, no other module knows backends and stores.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from skillyard.data_dir import DataDir

if TYPE_CHECKING:
    from collections.abc import Callable

    from skillyard.config.backends import OciSettings
    from skillyard.config.settings import Settings


async def write_e2b_template(
    directory: Path, base: str | None, digests: Sequence[str], places: DataDir | None
) -> list[Path]:
    """Writes the files of a template for the isolation e2b, and returns them.

    ``digests`` name built environments of ``places``. Raises InvalidInput.
    """
    from skillyard.domain.errors import InvalidInput, shown
    from skillyard.sandbox.e2b.template import BASE, write_template
    from skillyard.stores.clock import SystemClock
    from skillyard.stores.files.environments import LocalEnvironments

    packages: dict[str, Path] = {}
    if places is not None:
        built = LocalEnvironments(places.environments, SystemClock())
        for digest in digests:
            found = [each for each in await built.list() if digest and each.digest.startswith(digest)]
            if len(found) != 1:
                rule = "must be the digest of one built environment; `skillyard environment list` shows them"
                raise InvalidInput("--packages", rule, shown(digest))
            packages[found[0].digest] = built.packages(found[0].digest)
    return write_template(directory, base or BASE, packages)


async def build_run_image(
    settings: OciSettings, base: str | None, tag: str | None, languages: Sequence[str], *, offline: bool
) -> dict[str, object]:
    """Builds an image for the isolation oci, and looks into a container of it.

    Returns its ``tag``, ``id`` and ``python``, the ``settings`` that name it, and ``notes`` about what it lacks. Raises
    InvalidInput, SandboxFault, BackendAway.
    """
    from tempfile import TemporaryDirectory

    from skillyard._version import __version__
    from skillyard.domain.errors import SandboxFault
    from skillyard.sandbox.oci.backend import OciBackend
    from skillyard.sandbox.oci.engine import Engine
    from skillyard.sandbox.oci.image_build import BASE, build, usual_tag

    engine = Engine(settings.socket)
    try:
        name = tag or usual_tag(languages, __version__)
        built = await build(engine, base or BASE, name, languages, settings.uid, offline=offline)
    finally:
        await engine.close()
    with TemporaryDirectory(prefix="skillyard-image-") as scratch:
        backend = OciBackend(Path(scratch), settings.changed(image=built.id, images={}))
        try:
            probe = await backend.probe()
        finally:
            await backend.close()
    if not probe.ready:
        raise SandboxFault(f"{built.tag} was built, and sandboxes of it do not work: {probe.facts['why']}")
    told = {"tag": built.tag, "id": built.id, "python": probe.facts["python"], "notes": list(built.notes)}
    return {**told, "settings": built.settings(languages)}


MCP_IMAGES = {"python": ("python", "bash"), "typescript": ("javascript", "typescript", "bash")}
"""The images of jailed MCP servers, with the languages of each."""


async def build_mcp_images(settings: OciSettings, base: str | None, *, offline: bool) -> dict[str, object]:
    """Builds the images of jailed MCP servers, as :func:`build_run_image` does.

    Returns the ``images`` by language and the ``settings`` that name them.
    """
    from skillyard._version import __version__

    version = __version__.replace("+", "-")
    images = {}
    for name, languages in MCP_IMAGES.items():
        tag = f"skillyard/mcp-{name}:{version}"
        images[name] = await build_run_image(settings, base, tag, languages, offline=offline)
    by_language = ", ".join(
        f'{language} = "{images["typescript"]["tag"]}"' for language in ("javascript", "typescript")
    )
    lines = f'image = "{images["python"]["tag"]}"\nimages = {{ {by_language} }}\n'
    return {"images": images, "settings": f"[oci]\n{lines}"}


def build_machine_image(
    settings: Settings, output: Path | None, source: Path | None, packages: Sequence[str], said: Callable[[str], None]
) -> dict[str, str]:
    """Builds the image of machines for the isolation microvm.

    ``source`` is a root that is given, ``packages`` are further ones of one that is made. Returns its facts and its
    directory. Raises InvalidInput, BuildFailed.
    """
    from skillyard.sandbox.microvm.backend import USUAL
    from skillyard.sandbox.microvm.build import build_image

    place = output or Path(settings.microvm.image or settings.data_dir / USUAL)
    return {"directory": str(place), **build_image(place, source, packages, said)}
