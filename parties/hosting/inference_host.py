"""The dealer and the model owner of private inference, each on a host of its own: they serve until they are stopped.

A dealer keeps nothing of a session. What a model owner keeps is a secret salt, so that the same model has the same
commitment when it is started again, and data owners go on with it; and what each data owner has used of its quota.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

from tacit.models.device import resolve_device
from tacit.models.file_system import FILES, replace_file
from tacit.parties.hosting.opening import OpenedParty, at_work
from tacit.parties.hosting.party_schema import DealerFile, ModelOwnerFile
from tacit.parties.hosting.state import Status
from tacit.parties.inference.dealer import DealerParty, DealerSettings
from tacit.parties.inference.model_owner import ModelOwnerParty, ModelOwnerSettings
from tacit.parties.inference.owner import Waiting
from tacit.parties.runs.served import read_served
from tacit.parties.session.diary import Diary, Tell
from tacit.parties.session.event_log import EventLog
from tacit.protocol.core.primitives import KEY_BYTES
from tacit.protocol.inference.quota import Quota


async def run_dealer(party: OpenedParty[DealerFile], *, show: Tell) -> None:
    """Serve, for ever. ValueError for a roster with another dealer as well; EndpointError if it cannot listen."""
    file, roster = party.file, party.roster
    # That there is one alone.
    status = Status(name=roster.dealer.name, role=file.role, process=os.getpid(), since=time.time())
    with at_work(party, status, show) as tell, EventLog(party.folder.events(party.name), party.name) as log:
        settings = DealerSettings(address=file.bind, keys=party.keys, roster=roster, patience=file.answer)
        await DealerParty(settings, Diary(log, tell)).run()


async def run_model_owner(party: OpenedParty[ModelOwnerFile], *, show: Tell) -> None:
    """Serve, for ever. ValueError or OSError for a model that cannot be used, or a roster without a dealer;
    EndpointError if it cannot listen, or the dealer cannot be reached."""
    file, device = party.file, resolve_device(party.file.device)
    status = Status(name=party.name, role=file.role, process=os.getpid(), since=time.time())
    with at_work(party, status, show) as tell, EventLog(party.folder.events(party.name), party.name) as log:
        diary = Diary(log, tell)
        model = read_served(Path(file.model)).prepared(salt=kept_salt(party.folder.salt))
        diary.write("model", weights=model.commitment.hex())
        settings = ModelOwnerSettings(
            **model_owner_settings(party, diary),
            input=file.input,
            most_images=file.most_images,
            most_batch=file.most_batch,
            device=device,
        )
        await ModelOwnerParty(settings, model, diary).run()


def model_owner_settings(party: OpenedParty[ModelOwnerFile], diary: Diary) -> dict[str, Any]:
    """Those that follow from the file of the party, whatever data owners come for. ValueError for no dealer."""
    file, roster = party.file, party.roster
    dealer = roster.dealer.name
    return {
        "address": file.bind,
        "dealer_address": file.dealer,
        "keys": party.keys,
        "roster": roster,
        "results": file.results,
        "quota": Quota(images=file.policy.images_a_day, refused=file.policy.refused_a_day),
        "ledger": party.folder.ledger,
        "patience": file.answer,
        "waiting": Waiting(
            seconds=file.patience, told=lambda reason: diary.write("not-connected", peer=dealer, reason=reason)
        ),
    }


def kept_salt(path: Path) -> bytes:
    """The salt of the commitment, which is made when it is first needed. ValueError for a file that holds none."""
    try:
        salt = FILES.read(path)
    except FileNotFoundError:
        salt = os.urandom(KEY_BYTES)
        replace_file(path, salt)
    if len(salt) != KEY_BYTES:
        raise ValueError(
            f"{path} holds no salt: remove it; data owners are then offered what looks like another model to them"
        )
    return salt
