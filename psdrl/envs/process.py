"""gymnasium environments, each in a process of its own: one that dies or hangs is replaced.

The child holds a `Lane`, which deals with what an environment raises; the parent deals with the child's death and
silence. Children are forked from a server that has seen neither threads nor a GPU."""

import multiprocessing
import signal
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

import cloudpickle  # type: ignore[import-untyped]
import numpy as np
from numpy.typing import NDArray

from psdrl.envs.gym import GymVector
from psdrl.envs.lane import Env, Lane, Row
from psdrl.envs.vector import EnvSpec, State
from psdrl.errors import UserError

START = 120.0  # seconds that a child may take to import packages and to make its environment


class Gone(Exception):
    """The child died or did not answer in time; the text continues the environment's name."""


class Job(NamedTuple):
    """What a child is to do."""

    make: Callable[[], Env]
    spec: EnvSpec
    seed: int
    restarts: int


def serve(pipe: Connection, job: bytes) -> None:
    """The child: answers (command, argument) with (whether it went well, result or reason, new faults)."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all processes of a terminal; the parent decides
    lane: Lane | None = None
    before = None
    answer: Any
    while True:
        try:
            command, argument = pipe.recv()
        except EOFError:  # the parent is gone
            return
        try:
            if command == "make":
                lane, answer = Lane(*cloudpickle.loads(job)), None
            elif lane is None or command == "close":
                return lane.close() if lane else None
            elif command == "step":
                before = lane.mark()
                answer = lane.step(argument)
            elif command == "state":
                answer = lane.state(before if argument else None)
            else:
                answer = getattr(lane, command)(*argument)
            pipe.send((True, answer, [lane.faults.pop(0) for _ in list(lane.faults)]))
        except UserError as error:
            pipe.send((False, str(error), []))


class ProcessLane:
    """A lane in another process: what `Lane` does, and a new process when that one is gone."""

    def __init__(self, job: Job, timeout: float) -> None:
        self._job, self._timeout = job, timeout
        self.faults: list[str] = []
        self._deaths = self._in_a_row = 0
        self._early: tuple[Row | None, Gone | None] | None = None  # an outcome that `state` had to wait for
        self._flying = False
        self._start()

    def _start(self) -> None:
        """A new child, with a seed of its own after a death."""
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["psdrl.envs.process"])
        seed = self._job.seed
        if self._deaths:
            seed = int(np.random.SeedSequence([seed, self._deaths, 1]).generate_state(1)[0]) >> 1
        self._pipe, theirs = context.Pipe()
        job = cloudpickle.dumps(tuple(self._job._replace(seed=seed)))
        self._child = context.Process(target=serve, args=(theirs, job), daemon=True)
        self._child.start()
        theirs.close()
        self._post("make", None)
        self._answer(max(self._timeout, START))

    def _ask(self, command: str, argument: Any) -> Any:
        self._post(command, argument)
        return self._answer()

    def _post(self, command: str, argument: Any) -> None:
        try:
            self._pipe.send((command, argument))
        except OSError:
            raise Gone("died") from None

    def _answer(self, timeout: float | None = None) -> Any:
        try:
            if not self._pipe.poll(timeout or self._timeout):
                raise Gone(f"did not answer within {timeout or self._timeout:g} s (--env-timeout)")
            fine, answer, faults = self._pipe.recv()
        except (EOFError, OSError):
            self._child.join(1)
            raise Gone(f"died with exit code {self._child.exitcode}") from None
        if not fine:
            raise UserError(answer)
        self.faults += faults
        return answer

    def reset(self) -> NDArray:
        """First observation of the first episode, from the seed."""
        try:
            if self._flying:
                self._answer()
            self._flying, self._early = False, None
            return self._ask("reset", ())
        except Gone as gone:
            raise UserError(f"{self._job.spec.name} {gone} in its first reset.") from None

    def send(self, action: np.int64) -> None:
        """Begin a step."""
        self._flying = True
        try:
            self._post("step", action)
        except Gone as gone:
            self._early = None, gone

    def _outcome(self) -> tuple[Row | None, Gone | None]:
        """The row of the step under way, or how the child was lost; waits for it once."""
        try:
            return self._early or (self._answer(), None)
        except Gone as gone:
            return None, gone

    def recv(self) -> Row:
        """The outcome of the step."""
        row, gone = self._outcome()
        self._early, self._flying = None, False
        while row is None:
            assert gone is not None
            try:
                row = self._replaced(gone)
            except Gone as again:
                gone = again
        if row.terminated or row.truncated:
            self._in_a_row = 0
        return row

    def _replaced(self, gone: Gone) -> Row:
        """A new child that starts an episode."""
        self._deaths, self._in_a_row = self._deaths + 1, self._in_a_row + 1
        name = self._job.spec.name
        if self._in_a_row > self._job.restarts:
            raise UserError(f"{name} {gone}, {self._in_a_row} times without an episode that ended: mend it.") from gone
        self.faults.append(f"{name} {gone}; its episode is discarded")
        self._kill()
        self._start()
        return Row(self._ask("reset", ()), 0.0, False, False, started=True, failed=True)

    def state(self) -> State | None:
        """As of the last recv; None if the child is gone."""
        if self._flying:
            self._early = self._outcome()
            if self._early[0] is None:
                return None
        try:
            return {"deaths": self._deaths, "in_a_row": self._in_a_row, "lane": self._ask("state", self._flying)}
        except Gone:
            return None

    def restore(self, state: State) -> NDArray | None:
        """The observation of `state`, from which the environment goes on; None if it does not play as it did."""
        self._in_a_row = state["in_a_row"]
        try:
            if state["deaths"] != self._deaths:
                self._deaths = state["deaths"]
                self._kill()
                self._start()
            self._early, self._flying = None, False
            return self._ask("restore", (state["lane"],))
        except Gone:
            self._kill()
            self._start()
            return None

    def lives(self) -> int:
        """Lives left in an Atari game."""
        return self._ask("lives", ())

    def render(self) -> Any:
        """A picture, if made for it."""
        return self._ask("render", ())

    def _kill(self) -> None:
        self._pipe.close()
        self._child.kill()
        self._child.join()

    def close(self) -> None:
        """End the child; one that does not end in time is killed."""
        try:
            self._post("close", None)
            self._child.join(5)
        except Gone:
            pass
        self._kill()


class ProcessVector(GymVector):
    """gymnasium environments that step side by side, each in its process."""

    lanes: list[ProcessLane]  # type: ignore[assignment]

    def __init__(self, spec: EnvSpec, make: Callable[[], Env], seeds: list[int], restarts: int, timeout: float) -> None:
        self.spec, self.num_envs = spec, len(seeds)
        self.lanes = [ProcessLane(Job(make, spec, seed, restarts), timeout) for seed in seeds]

    def state(self) -> State | None:
        states = {str(i): lane.state() for i, lane in enumerate(self.lanes)}
        return None if None in states.values() else states
