"""Both sides of a sum in the mode `none`: docs/spec/secure-aggregation.md, *Without secure aggregation*."""

from typing import Any

from aggregation_client import AggregationClient
from aggregation_server import AggregationServer
from constants import require
from parameters import pack_words


class PlainClient(AggregationClient):
    def start(self, now: float) -> None:
        terms = self.terms
        self.sent = 0
        whole = terms.chunks == 1
        self.send("masked-input", {"complaints": terms.bitmap([]), "signatures": b""}, self.chunk(0) if whole else None)
        if whole:
            self.go_to("DONE", None)
        else:
            self.go_to("AWAIT_SURVIVORS", now + terms.train_seconds + terms.input_seconds + terms.phase_seconds)

    def admits(self, kind: str) -> bool:
        return self.state == "AWAIT_SURVIVORS" and kind in ("abort", "fetch-vector")

    def on_fetch_vector(self, body: dict[str, Any], now: float) -> None:
        require(body["chunk"] == self.sent, "UNEXPECTED")
        self.send("vector-chunk", {"chunk": self.sent}, self.chunk(self.sent))
        self.sent += 1
        if self.sent == self.terms.chunks:
            self.go_to("DONE", None)


class PlainServer(AggregationServer):
    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.state = "MASKED_INPUT"

    def admits(self, member: int, kind: str) -> bool:
        if not self.over and member not in self.out:
            require(kind in ("masked-input", "vector-chunk", "abort"), "UNEXPECTED")
        return super().admits(member, kind)

    def owners(self, member: int) -> list[int]:
        return []

    def close_masked_input(self, now: float) -> None:
        self.survivors.sort()
        require(len(self.survivors) >= max(self.terms.fewest_survivors, 1), "THRESHOLD")
        self.state, self.own_deadline = "COMPLETED", None
        words = pack_words(self.total, self.terms.ring_bits)
        self.report({"event": "sum", "words": words, "survivors": self.terms.names(self.survivors)})
