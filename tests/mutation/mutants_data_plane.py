"""Guards of the data plane (workers/data_frames.py, workers/data_plane.py), broken one by one."""

from __future__ import annotations

from typing import Final

from tests.mutation.mutant import Mutant

FRAMES, DATA = "tests/workers/test_data_frames.py", "tests/workers/test_data_plane.py"

DATA_PLANE_MUTANTS: Final = (
    Mutant(
        "longest frame",
        "workers/data_frames.py",
        "if length > self.allowed.get(kind, -1):",
        "if kind not in self.allowed:",
        FRAMES,
        ("test_a_frame_over_its_limit_is_refused_before_its_body_is_waited_for",),
    ),
    Mutant(
        "proof of the secret",
        "workers/data_plane.py",
        "if not hmac.compare_digest(claim,",
        "if False and not hmac.compare_digest(claim,",
        DATA,
        ("test_who_does_not_know_the_secret_is_turned_away",),
    ),
    Mutant(
        "slot before last delta",
        "workers/data_plane.py",
        "                if delta.finish_reason is not None:\n                    return delta\n",
        "                if delta.finish_reason is not None:\n"
        "                    self._connection.send(frames.encode_delta(self._number, delta))\n"
        "                    await asyncio.sleep(0.2)\n"
        "                    return delta\n",
        DATA,
        ("test_a_generation_takes_a_slot_until_before_its_last_delta",),
    ),
    Mutant(
        "lost connection",
        "workers/data_plane.py",
        "            self._patience.cancel()\n        self.cancel_all()",
        "            self._patience.cancel()",
        DATA,
        ("test_a_lost_connection_cancels_all_it_carried",),
    ),
    Mutant(
        "unread connection",
        "workers/data_plane.py",
        "if not self._connection.writable.is_set():",
        "if False:",
        DATA,
        ("test_an_ingress_that_does_not_read_stops_the_engine_not_the_memory",),
    ),
    Mutant(
        "paused stream",
        "workers/data_plane.py",
        "if not self.flow.is_set():",
        "if False:",
        DATA,
        ("test_a_paused_stream_waits_and_the_others_do_not",),
    ),
)
