"""Inputs and states of a federation's session. The tables stand below the machines (client.py, server.py).

The messages of a secure sum go to a machine inside (sum/client.py, sum/server.py), those about group keys to another
(group_key/holder.py, group_key/keeper.py).
"""

from __future__ import annotations

from typing import Final

from tacit.protocol.core.machine import Input, State
from tacit.protocol.core.messages import Chunk, Resume
from tacit.protocol.group_key.states import TO_HOLDER
from tacit.protocol.session.messages import Finish, NewRoster, Welcome
from tacit.protocol.sum.messages import (
    AdvertiseKeys,
    AnswerComplaints,
    ConfirmSurvivors,
    FetchVector,
    MaskedInput,
    PeerComplaints,
    PeerKeys,
    PeerShares,
    ShareKeys,
    Survivors,
    UnmaskRequest,
    UnmaskShares,
    VectorChunk,
)

SUM_TO_CLIENT: Final = (PeerKeys, PeerShares, FetchVector, PeerComplaints, Survivors, UnmaskRequest)
"""Messages of the server within a secure sum."""

SUM_TO_SERVER: Final = (
    AdvertiseKeys,
    ShareKeys,
    MaskedInput,
    VectorChunk,
    AnswerComplaints,
    ConfirmSurvivors,
    UnmaskShares,
)
"""Messages of clients within a secure sum."""

WITHIN_ROUNDS: Final = (*SUM_TO_CLIENT, Chunk)
"""Messages of the server within a round."""

OUTSIDE_ROUNDS: Final = (Welcome, NewRoster, Finish, Resume, *(kind for kind in TO_HOLDER if kind is not Chunk))
"""Messages of the server outside of rounds; an Abort or a Chunk may come in both."""


class SessionTrigger(Input):
    """Inputs of the server of a session."""

    NEXT_ROUND = "start the next round"
    CHANGE_ROSTER = "go on with another roster"


class TrainingState(State):
    """Present activity of the client."""

    OFFLINE = "offline"
    AWAIT_WELCOME = "await the server's welcome"
    AWAIT_ROUND = "await the next round"
    FETCHING_MODEL = "fetch the model"
    TRAINING = "train"
    AGGREGATING = "take part in the secure sum"
    ENDED = "ended"


class SessionState(State):
    """Present activity of the server."""

    GATHERING = "gather the clients"
    KEYING = "let the clients agree on a group key"
    IN_ROUND = "run a round"
    BETWEEN_ROUNDS = "wait for the next model"
    DISTRIBUTING = "let the clients fetch the last model"
    ENDED = "ended"


NO_ROUND: Final = (
    TrainingState.OFFLINE,
    TrainingState.AWAIT_WELCOME,
    TrainingState.AWAIT_ROUND,
    TrainingState.ENDED,
)

IN_SUM: Final = (TrainingState.FETCHING_MODEL, TrainingState.TRAINING, TrainingState.AGGREGATING)
"""A client is in a sum from the round's start on: keys and shares are sent while it fetches and trains."""

CLIENT_CONTAINS: Final = {
    "sum": IN_SUM,
    "holder": tuple(
        state
        for state in TrainingState
        if state not in (TrainingState.OFFLINE, TrainingState.AWAIT_WELCOME, TrainingState.ENDED)
    ),
}
SERVER_CONTAINS: Final = {
    "sum": (SessionState.IN_ROUND,),
    "keeper": tuple(state for state in SessionState if state is not SessionState.ENDED),
}
"""Inner machines, and the states that contain them."""
