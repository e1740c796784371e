"""Commands of golden scripts about ended processes of brokers (see ``controller_script``).

beat 1 on=NAME [fence]
                    broker 1 sends a heartbeat on the connection NAME
lose NAME           the connection NAME ends
refused 1           all listeners of broker 1 refused the last probe
accepted 1          a listener of broker 1 accepted the last probe, or did not respond
elected [as=N]      a new leadership begins on the node N (101 by default)
"""

from moldau.cluster.controller.controller import Controller
from moldau.cluster.decisions.ended_processes import Probe
from moldau.protocol.schema import Message


class ProcessCommands:
    """The part of the script interpreter that runs commands about ended processes."""

    controller: Controller
    now_ms: int
    next_offset: int

    def __init__(self) -> None:
        self._probes: dict[int, Probe] = {}
        """The last probe of each broker."""

    def run(self, line: str) -> str:
        raise NotImplementedError

    def _commit(self, records: list[Message] | tuple[Message, ...]) -> str:
        raise NotImplementedError

    def do_beat(self, words: list[str], flags: set[str], options: dict[str, str]) -> str:
        broker_id = int(words[0])
        said = self.run(" ".join(("heartbeat", words[0], *sorted(flags - {words[0]}))))
        broker = self.controller.image.brokers[broker_id]
        self.controller.ended_processes.heartbeat_received(broker_id, broker.epoch, options["on"])
        return said

    def do_lose(self, words: list[str], _flags: set[str], _options: dict[str, str]) -> str:
        return self._shown(self.controller.ended_processes.connection_ended(self.controller.image, words[0]))

    def do_elected(self, _words: list[str], _flags: set[str], options: dict[str, str]) -> str:
        image, own_id = self.controller.image, int(options.get("as", "101"))
        self.controller.activate(image, self.now_ms)
        return self._shown(self.controller.ended_processes.leadership_began(image, own_id))

    def do_refused(self, words: list[str], _flags: set[str], _options: dict[str, str]) -> str:
        return self._outcome(int(words[0]), is_refused=True)

    def do_accepted(self, words: list[str], _flags: set[str], _options: dict[str, str]) -> str:
        return self._outcome(int(words[0]), is_refused=False)

    def _outcome(self, broker_id: int, *, is_refused: bool) -> str:
        probe = self._probes.pop(broker_id)
        step = self.controller.ended_processes.probed(
            self.controller.image, probe.suspect, is_refused=is_refused
        )
        if step is None:
            return "the suspicion is over\n"
        if isinstance(step, Probe):
            return self._shown([step])
        return self._commit(list(self.controller.fence_ended(step, self.now_ms, self.next_offset)))

    def _shown(self, probes: list[Probe]) -> str:
        for probe in probes:
            self._probes[probe.suspect.broker_id] = probe
        return (
            "".join(
                f"probe broker {each.suspect.broker_id} at"
                f" {' '.join(f'{endpoint.host}:{endpoint.port}' for endpoint in each.endpoints)}"
                f" after {each.delay_ms} ms\n"
                for each in probes
            )
            or "nothing\n"
        )
