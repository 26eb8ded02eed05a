"""`tacit dealer`, `tacit model-owner`, `tacit data-owner`: the parties of private inference on hosts of their own."""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path
from typing import Annotated, Any

from rich.console import Console

from tacit.cli import output
from tacit.cli.host import PartyToml, Quiet, connecting
from tacit.cli.serving_screen import show_serving

_SHOWN = 20


def dealer(party: PartyToml, quiet: Quiet = False) -> None:
    """Deal the random words of private inference, until it is stopped.

    It sees neither weights nor images; killed and started again, it deals fresh ones. With \\[adaptation] in its file
    it also sums what data owners have learned, until the rounds are over; killed and started again, it goes on after
    the last sum.

    Exit status: 0 the rounds are over; 1 it failed; 2 wrong input; 3 the rounds ended early; 130 Ctrl-C or SIGTERM.
    """
    console = Console(highlight=False, quiet=quiet)
    output.say(console, "starting")
    from tacit.cli.interruption import interruptible
    from tacit.parties.hosting.folder import WRONG_INPUT, open_party
    from tacit.parties.hosting.party_file import DealerFile
    from tacit.parties.links.endpoint import EndpointError
    from tacit.parties.session.event_log import EventLogError

    kinds = ((EndpointError, *WRONG_INPUT), output.WRONG_INPUT)
    with output.complaining(kinds, ((EventLogError, OSError), output.FAILED)):
        opened = open_party(DealerFile, party)
        _say_who(console, opened.roster.fingerprint, opened.file.tell)
        # Loads torch: what is wrong with the files is said before.
        if (own := opened.file.adaptation) is not None:
            from tacit.cli.adaptation_host import deal

            raise deal(console, opened, own)
        from tacit.parties.hosting.adaptation_host import run_dealer

        asyncio.run(interruptible(run_dealer(opened, show=partial(show_serving, console))))


def model_owner(party: PartyToml, quiet: Quiet = False) -> None:
    """Let data owners ask a model about images that only they see, until it is stopped. Nobody else sees the model.

    Killed and started again, it goes on: data owners ask once more for the pass that was lost. With \\[adaptation] in
    its file data owners learn beside the model instead, or ask with what they have learned; it learns nothing of that.

    Exit status: 1 it failed, or the dealer refused; 2 wrong input; 4 the dealer was not reached; 130 Ctrl-C or SIGTERM.
    """
    console = Console(highlight=False, quiet=quiet)
    output.say(console, "starting")
    from tacit.cli.interruption import interruptible
    from tacit.parties.hosting.folder import open_party
    from tacit.parties.hosting.party_file import ModelOwnerFile

    with connecting():
        opened = open_party(ModelOwnerFile, party)
        _say_who(console, opened.roster.fingerprint, opened.file.tell)
        # Loads torch: what is wrong with the files is said before.
        if (own := opened.file.adaptation) is not None:
            from tacit.cli.adaptation_host import teach

            teach(console, opened, own)
            return
        from tacit.parties.hosting.adaptation_host import run_model_owner

        asyncio.run(interruptible(run_model_owner(opened, show=partial(show_serving, console))))


def data_owner(
    party: PartyToml,
    json_file: Annotated[Path | None, output.json_option("Write answers and costs here.", metavar="FILE")] = None,
    quiet: Quiet = False,
) -> None:
    """Ask a model owner's model about this host's own images, which stay here. Nobody else learns the answers.

    Killed and started again with the same command, it goes on after the last answer, and asks nothing where all is
    answered. What is answered is in the folder of the party. With \\[adaptation] in its file it learns beside the model
    instead, with other data owners; the common adapters are in its folder after every round, and it asks with them when
    the purpose there is "prediction".

    Exit status: 0 all is answered, or learned; 1 it failed, one of the others refused, or an image was out of range; 2
    wrong input; 3 a round was lost; 4 one of the others was not reached, or lost; 130 Ctrl-C or SIGTERM.
    """
    console = Console(highlight=False, quiet=quiet)
    output.say(console, "starting")
    from tacit.cli.interruption import interruptible
    from tacit.parties.hosting.folder import open_party
    from tacit.parties.hosting.party_file import DataOwnerFile
    from tacit.protocol.core.errors import Code

    with connecting():
        opened = open_party(DataOwnerFile, party)
        output.say(console, f"roster {opened.roster.fingerprint}")
        # Loads torch: what is wrong with the files is said before.
        if (own := opened.file.learns) is not None:
            from tacit.cli.adaptation_host import learn

            raise learn(console, opened, own, json_file)
        from tacit.parties.hosting.data_owner_host import AnswersError, run_data_owner
        from tacit.parties.inference.conversation import InferenceError

        try:
            figures = asyncio.run(interruptible(run_data_owner(opened, show=partial(_show_asking, console))))
        except AnswersError as error:
            raise output.failure(error, output.FAILED) from None
        except InferenceError as error:
            lost = error.code in (Code.LEFT, Code.TIMEOUT)
            raise output.failure(error, output.SERVER_LOST if lost else output.FAILED) from None
    output.keep_json(json_file, "answers", figures)
    _show_answers(console, figures)
    output.all_answered(figures["images"])


def _say_who(console: Console, fingerprint: str, addresses: tuple[str, ...]) -> None:
    for address in addresses:
        output.say(console, f"the others reach it at {address}")
    output.say(console, f"roster {fingerprint}")


def _show_asking(console: Console, event: str, fields: dict[str, Any]) -> None:
    say = partial(output.say, console)
    if event == "images":
        answered = f", {fields['answered']} of them answered" if fields["answered"] else ""
        learned = f"; with what is learned after round {fields['learned']}" if "learned" in fields else ""
        say(f"{fields['images']} images{answered}{learned}")
    elif event == "agreed":
        say(f"model {fields['weights']}, {fields['input']} input")
    elif event == "answered":
        refused = f", {fields['refused']} of them refused: out of range" if fields["refused"] else ""
        say(f"  {fields['images']} of {fields['of']} images{refused}")
    elif event == "not-connected":
        say(f"  {fields['reason']}", style="yellow")
    elif event == "session-over":
        say(f"session over: {fields['detail']}", style="yellow")


def _show_answers(console: Console, figures: dict[str, Any]) -> None:
    images = figures["images"]
    console.print(output.answered_images(images[:_SHOWN]))
    count, right = len(images), figures["accuracy"]
    if count > _SHOWN:
        output.say(console, f"and {count - _SHOWN} more; --json FILE has all of them")
    output.say(
        console,
        f"{count} images{'' if right is None else f', {right:.1%} of them right'}; "
        f"{1000 * figures['online_seconds'] / count:.0f} ms an image online, and "
        f"{1000 * figures['waited_for_material_seconds'] / count:.0f} ms of waiting for material",
    )
