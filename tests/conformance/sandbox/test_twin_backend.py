"""The sandbox twin passes the suite, save for checks of a real kernel, interpreter or shell."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from skillyard.testing.sandbox_suite import CHECKS, Check, Ground, library
from skillyard.testing.twin_sandbox import TwinBackend, TwinHost
from tests.conformance.sandbox.conftest import Hold
from tests.conformance.sandbox.twin_programs import play

pytestmark = pytest.mark.anyio


NEEDS_PROCESSES = "real processes, programs of the host, or a shell"
NEEDS_KERNEL = "a kernel that counts what programs take, and whose file system they use"
NEEDS_GUEST = "an interpreter for the guest"
BEYOND = {
    NEEDS_PROCESSES: """
        programs-both_names_of_the_interpreter_work programs-certificates_are_there endings-kill_ends_the_whole_tree
        endings-timeout_keeps_the_output_and_ends_the_tree endings-single_sandbox_ends_with_its_program
        endings-wait_is_not_held_up_by_a_pipe_in_other_hands endings-destroy_ends_what_runs
        endings-timeout_ends_processes_that_go_on_as_others
        endings-sandbox_that_was_cleared_has_no_processes_that_go_on_as_others
        trees-programs_may_end_what_serves_files
        trees-closed_directories_and_files_are_in_the_tree files-write_sets_the_mode mounts-directory_is_shown
        content-programs_of_a_tree_are_executed
    """,
    NEEDS_KERNEL: """
        endings-usage_is_told limits-memory_hog_of_many_ends_as_memory limits-limits_of_two_sandboxes_do_not_add_up
        limits-full_disk_is_no_memory_kill limits-one_sandbox_at_its_limits_leaves_others_alone
        files-names_move_and_multiply_between_directories files-sparse_file_is_harmless files-hostile_trees_are_removed
    """,
    NEEDS_GUEST: "mounts-packages_of_the_environment_can_be_imported endings-code_that_comes_too_late_is_lost",
}
SECTIONS = {"walls": NEEDS_KERNEL, "keeping": NEEDS_PROCESSES, "guest": NEEDS_GUEST, "commands": NEEDS_GUEST}


def beyond(check: Check) -> str:
    """Returns what the check proves that the twin does not have; empty for all others."""
    if check in library.CHECKS:
        return NEEDS_KERNEL
    named = (why for why, ids in BEYOND.items() if check.id in ids.split())
    return SECTIONS.get(check.section) or next(named, "")


def test_each_check_that_is_left_out_exists() -> None:
    ids = {check.id for check in CHECKS}
    assert {id for names in BEYOND.values() for id in names.split()} <= ids
    assert SECTIONS.keys() <= {check.section for check in CHECKS}


@pytest.fixture(scope="module")
async def ground(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Ground]:
    host = TwinHost()

    async def reopen() -> TwinBackend:
        return TwinBackend(play, host)

    backend = TwinBackend(play)
    yield Ground(backend, tmp_path_factory.mktemp("scratch"), reopen=reopen)
    await backend.close()
    assert backend.held == host.held == {}


async def test_conformance(check: Check, ground: Ground, hold: Hold) -> None:
    if why := beyond(check):
        pytest.skip(f"it needs {why}")
    await hold(check, ground)
